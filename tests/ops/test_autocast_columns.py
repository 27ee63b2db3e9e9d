"""The autocast columns of the op table against torch itself: registrations in the dispatcher, formats of results, and
what autocast reaches inside composite ops, by running them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from precision_audit import ops
from tests.torch_schemas import ALL_OVERLOADS, overloads, schema

aten = torch.ops.aten

# Registered in builds with cuDNN only, so the dispatcher of a CPU build does not have it.
CUDA_BUILDS_ONLY = {"_cudnn_rnn"} if torch.version.cuda is None else set()


@pytest.mark.parametrize(("device", "key"), [("cpu", "AutocastCPU"), ("cuda", "AutocastCUDA")])
def test_autocast_columns_equal_the_dispatcher_overload_by_overload(device: str, key: str) -> None:
    wrong = []
    for name in ALL_OVERLOADS:
        row = ops.OPS.get(name)
        for overload in overloads(name):
            full = f"aten::{name}" + ("" if overload == "default" else f".{overload}")
            registered = torch._C._dispatch_has_kernel_for_dispatch_key(full, key)
            functional = not schema(name, overload).is_mutable
            claimed = row is not None and bool(row.autocast(device, overload)) and functional
            if registered != claimed and name not in CUDA_BUILDS_ONLY:
                wrong.append(full)
    assert wrong == []


# op, arguments that are fp32, arguments that are bf16: the policy shows in the formats of the results
POLICY_SHOWS: list[tuple[str, Any, tuple[Any, ...], str]] = [
    ("linear", aten.linear.default, (torch.ones(2, 3), torch.ones(4, 3)), "low"),
    ("prelu", aten.prelu.default, (torch.ones(2, 3), torch.ones(1)), "low"),
    ("scaled_dot_product_attention", aten.scaled_dot_product_attention.default, (torch.ones(1, 2, 4, 8),) * 3, "low"),
    ("mse_loss", aten.mse_loss.default, (torch.ones(3).bfloat16(), torch.ones(3).bfloat16()), "fp32"),
    ("prod", aten.prod.default, (torch.ones(3).bfloat16(),), "fp32"),
    ("stack", aten.stack.default, ([torch.ones(3).bfloat16(), torch.ones(3)],), "promote"),
    ("softmax", aten.softmax.int, (torch.ones(3).bfloat16(), 0), ""),
    ("mul", aten.mul.Tensor, (torch.ones(3), torch.ones(3)), ""),
]


@pytest.mark.parametrize(("name", "overload", "args", "policy"), POLICY_SHOWS, ids=[each[0] for each in POLICY_SHOWS])
def test_a_policy_is_what_autocast_does(name: str, overload: Any, args: tuple[Any, ...], policy: str) -> None:
    assert ops.OPS[name].autocast("cpu", overload._overloadname) == policy
    with torch.autocast("cpu", torch.bfloat16):
        result = overload(*args)
    inputs = {
        each.dtype for arg in args for each in (arg if isinstance(arg, list) else [arg]) if hasattr(each, "dtype")
    }
    expected = {"low": torch.bfloat16, "fp32": torch.float32, "promote": torch.float32, "": inputs.pop()}[policy]
    assert result.dtype == expected


def _rnn_parameters(inputs: int, hidden: int, gates: int) -> list[torch.Tensor]:
    shapes = [(gates * hidden, inputs), (gates * hidden, hidden), (gates * hidden,), (gates * hidden,)]
    return [torch.full(shape, 0.1) for shape in shapes]


COMPOSITES: list[tuple[str, Any, tuple[Any, ...]]] = [
    ("gru", aten.gru.input, (torch.ones(5, 2, 8), torch.ones(1, 2, 4), _rnn_parameters(8, 4, 3), True, 1, 0.0, True,
     False, False)),
    ("rnn_tanh", aten.rnn_tanh.input, (torch.ones(5, 2, 8), torch.ones(1, 2, 4), _rnn_parameters(8, 4, 1), True, 1,
     0.0, True, False, False)),
    ("lstm", aten.lstm.input, (torch.ones(5, 2, 8), [torch.ones(1, 2, 4)] * 2, _rnn_parameters(8, 4, 4), True, 1,
     0.0, True, False, False)),
    ("lstm_cell", aten.lstm_cell.default, (torch.ones(2, 8), [torch.ones(2, 4)] * 2, *_rnn_parameters(8, 4, 4))),
    ("gru_cell", aten.gru_cell.default, (torch.ones(2, 8), torch.ones(2, 4), *_rnn_parameters(8, 4, 3))),
    ("einsum", aten.einsum.default, ("ij,jk->ik", [torch.ones(2, 3), torch.ones(3, 4)])),
    ("tensordot", aten.tensordot.default, (torch.ones(2, 3), torch.ones(3, 4), [1], [0])),
    ("bilinear", aten.bilinear.default, (torch.ones(2, 3), torch.ones(2, 4), torch.ones(5, 3, 4))),
    ("inner", aten.inner.default, (torch.ones(2, 3), torch.ones(4, 3))),
    ("linalg_multi_dot", aten.linalg_multi_dot.default, ([torch.ones(2, 3), torch.ones(3, 4), torch.ones(4, 5)],)),
    ("matrix_power", aten.matrix_power.default, (torch.ones(3, 3), 3)),
    ("linalg_matmul", aten.linalg_matmul.default, (torch.ones(2, 3), torch.ones(3, 4))),
    ("affine_grid_generator", aten.affine_grid_generator.default, (torch.ones(1, 2, 3), [1, 1, 4, 4], False)),
    ("cov", aten.cov.default, (torch.ones(3, 4),)),
    ("pad", aten.pad.default, (torch.ones(1, 2, 4, 4), [1, 1, 1, 1], "reflect")),
    ("nll_loss_nd", aten.nll_loss_nd.default, (torch.ones(3, 5), torch.tensor([1, 2, 3]))),
    ("hstack", aten.hstack.default, ([torch.ones(3), torch.ones(3)],)),
    ("det", aten.det.default, (torch.eye(3),)),
    ("linalg_norm", aten.linalg_norm.ord_str, (torch.ones(3, 4), "nuc")),
    ("_scaled_dot_product_attention_math", aten._scaled_dot_product_attention_math.default, (torch.ones(1, 2, 4,
     8),) * 3),
    # composite or not, autocast finds nothing inside
    ("batch_norm", aten.batch_norm.default, (torch.ones(2, 4), None, None, torch.zeros(4), torch.ones(4), True, 0.1,
     1e-5, True)),
    ("cosine_similarity", aten.cosine_similarity.default, (torch.ones(2, 4), torch.ones(2, 4))),
    ("layer_norm", aten.layer_norm.default, (torch.ones(2, 4), [4])),
    ("log_softmax", aten.log_softmax.int, (torch.ones(2, 4), 1)),
    ("var", aten.var.correction, (torch.ones(2, 4),)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "overload", "args"), COMPOSITES, ids=[each[0] for each in COMPOSITES])
def test_what_autocast_reaches_inside_is_in_the_table(
    name: str, overload: Any, args: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        reached = _reached(overload, args, monkeypatch)
    except RuntimeError as error:
        if "could not create a primitive" not in str(error):
            raise
        pytest.skip(f"oneDNN has no {name} in bf16 on this processor")
    listed = set(ops.OPS[name].inner("cpu"))
    assert reached <= listed
    assert bool(reached) == bool(listed)


def _reached(overload: Any, args: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Registered ops below the outermost call that autocast took over: there the op is called twice, by its caller and,
    with its inputs cast, by autocast."""
    # the profiler folds exactly these pairs into one
    monkeypatch.setattr("torch.autograd.profiler_util.EventList._remove_dup_nodes", lambda self: None)
    with torch.no_grad(), torch.autograd.profiler.profile() as profile, torch.autocast("cpu", torch.bfloat16):
        overload(*args)
    registered = {name for name, row in ops.OPS.items() if row.cpu}
    found = set()
    for event in profile.function_events:
        called = event.name.removeprefix("aten::")
        if called in registered and event.cpu_parent is not None:
            found |= {called} & {child.name.removeprefix("aten::") for child in event.cpu_children}
    return found


def test_what_a_composite_op_is_whole_or_makes_of_its_result() -> None:
    assert ops.OPS["square"].whole("cuda") == "pow" and ops.OPS["square"].whole("cpu") == ""
    assert ops.OPS["upsample_bilinear2d"].autocast("cuda", "vec") == ""
    assert ops.OPS["upsample_bilinear2d"].whole("cuda") == "upsample_bilinear2d"
    assert ops.OPS["affine_grid_generator"].inner_result("cuda") == "low"
    assert ops.OPS["gru"].inner("cpu") == ("cat", "linear", "stack")
