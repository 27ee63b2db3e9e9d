"""Autocast's decisions on hand-built graphs: rules, casts, composite ops, and what torch.autocast refuses."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from precision_audit import autocast, ops, policy
from precision_audit.autocast.dry_run import formats_made
from precision_audit.formats import dtype_of, format_of
from precision_audit.policy.match import Matcher
from precision_audit.records import Decision, Graph, InputError, Op, Plan, Rule
from tests.fake_autocast import fake_autocast
from tests.op_records import LINE, Chain, recorded, tensor
from tests.torch_schemas import overloads, schema

aten = torch.ops.aten
POLICIES = ("amp-cpu-bf16", "amp-cpu-fp16", "amp-cuda-bf16", "amp-cuda-fp16")


def propagate(graph: Graph, name: str = "amp-cpu-bf16", *first: Rule) -> tuple[dict[str, Decision], Plan]:
    chosen = policy.load(name)
    chosen = dataclasses.replace(chosen, rules=(*first, *chosen.rules))
    decisions, plan = autocast.propagate(graph, chosen)
    return {decision.op.rpartition("/")[2].partition("#")[0]: decision for decision in decisions}, plan


def formats(graph: Graph, plan: Plan) -> dict[str, str]:
    made = dict(plan.formats)
    return {op.op: made[op.key] for op in graph.ops if op.operands and op.key in made}


def casts(plan: Plan) -> set[tuple[str, str, tuple[str, ...]]]:
    short = [tuple(key.rpartition("/")[2].partition("#")[0] for key in cast.consumers) for cast in plan.casts]
    return {(cast.value, cast.to, consumers) for cast, consumers in zip(plan.casts, short, strict=True)}


# rules ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", POLICIES)
def test_shipped_policies_classify_every_overload_as_the_table(name: str) -> None:
    chosen = policy.load(name)
    matcher = Matcher(chosen, Graph((), (), "training"))
    rows = autocast.policy_rows(chosen.autocast, chosen.low)
    wrong = []
    for op in ops.OPS:
        for overload in overloads(op):
            if schema(op, overload).is_mutable:
                continue
            rule = matcher.first(Op("k", f"aten.{op}.{overload}", op, ops.OPS[op].kind, "", "", (), ())).rule
            given = "promote" if rule.promote else rule.classification
            named = [kind for kind, names in rows.items() if op in names or f"{op}.{overload}" in names]
            expected = {"banned": "keep-fp32"}.get(named[0], named[0]) if named else "inherit"
            if given != expected:
                wrong.append(f"{op}.{overload}: {given}, expected {expected}")
    assert wrong == []


def test_decisions_name_the_rule_and_its_line() -> None:
    chain = Chain()
    x, w = chain.state("x", tensor(2, 3)), chain.state("w", tensor(4, 3), "parameter")
    y = chain.run(aten.relu.default, chain.run(aten.linear.default, x, w))
    found, plan = propagate(chain.graph(y))
    linear, relu = found["linear"], found["relu"]
    assert (linear.classification, linear.chosen, linear.accumulate) == ("safe-in-bf16", "bf16", "fp32")
    assert linear.reason.startswith("policy amp-cpu-bf16.yaml:") and linear.reason.endswith("lower-precision")
    assert (relu.classification, relu.chosen) == ("inherit", "bf16")
    assert (plan.policy, plan.low, plan.autocast_device, plan.folds) == ("amp-cpu-bf16", "bf16", "cpu", ())


def test_the_first_rule_that_matches_decides() -> None:
    chain = Chain()
    x, w = chain.state("x", tensor(2, 3)), chain.state("w", tensor(4, 3), "parameter")
    graph = chain.graph(chain.run(aten.linear.default, x, w))
    kept, plan = propagate(graph, "amp-cpu-bf16", Rule("mine", "mine.yaml:3", "keep-fp32", op=("linear",)))
    assert (kept["linear"].classification, kept["linear"].chosen, plan.casts) == ("keep-fp32", "fp32", ())
    assert kept["linear"].reason == "policy mine.yaml:3 mine"


# casts ---------------------------------------------------------------------------------------------------------------


def test_activations_are_cast_for_each_consumer_and_leaves_once() -> None:
    chain = Chain()
    x, w = chain.state("x", tensor(3, 3)), chain.state("w", tensor(3, 3), "parameter")
    first = chain.run(aten.mm.default, x, w)
    second = chain.run(aten.matmul.default, x, w)
    graph = chain.graph(first, second)
    _, plan = propagate(graph)
    assert casts(plan) == {("x", "bf16", ("mm",)), ("x", "bf16", ("matmul",)), ("w", "bf16", ("mm", "matmul"))}
    assert {cast.bytes for cast in plan.casts} == {9 * (4 + 2)}
    assert autocast.autocast_cast_count(graph, "cpu", "bf16") == 3


def test_a_frozen_parameter_is_cast_for_each_consumer() -> None:
    chain = Chain()
    x, w = chain.state("x", tensor(3, 3)), chain.state("w", tensor(3, 3), "buffer")
    graph = chain.graph(chain.run(aten.mm.default, x, w), chain.run(aten.matmul.default, x, w))
    assert len(propagate(graph)[1].casts) == autocast.autocast_cast_count(graph, "cpu", "bf16") == 4


@pytest.mark.parametrize(
    ("dtype", "to"),
    [(torch.float32, "bf16"), (torch.float16, "bf16"), (torch.bfloat16, ""), (torch.float64, ""), (torch.int64, "")],
)
def test_what_is_cast_low(dtype: torch.dtype, to: str) -> None:
    chain = Chain()
    x = chain.state("x", tensor(3, 3, dtype=dtype))
    graph = chain.graph(chain.run(aten.mm.default, x, chain.state("w", tensor(3, 3, dtype=dtype))))
    assert casts(propagate(graph)[1]) == ({("x", to, ("mm",)), ("w", to, ("mm",))} if to else set())


def test_low_inputs_of_fp32_ops_are_widened() -> None:
    chain = Chain()
    x, w, target = chain.state("x", tensor(4, 3)), chain.state("w", tensor(4, 3)), chain.state("t", tensor(4, 4))
    loss = chain.run(aten.mse_loss.default, chain.run(aten.linear.default, x, w), target)
    graph = chain.graph(loss)
    found, plan = propagate(graph)
    made = next(op.key for op in graph.ops if op.op == "linear")
    assert (made, "fp32", ("mse_loss",)) in casts(plan)
    assert (found["mse_loss"].classification, found["mse_loss"].chosen) == ("keep-fp32", "fp32")


@pytest.mark.parametrize(
    ("name", "overload", "expected"),
    [
        ("amp-cpu-bf16", aten.cat.default, "fp32"),  # promoted by autocast
        ("amp-cuda-fp16", aten.cat.default, "fp32"),  # promoted by the op
        ("amp-cuda-fp16", aten.atan2.default, "fp32"),
        ("amp-cpu-bf16", aten.mul.Tensor, "fp32"),
    ],
)
def test_mixed_inputs_give_the_widest_format(name: str, overload: Any, expected: str) -> None:
    chain = Chain()
    x = chain.state("x", tensor(3, 3))
    low = chain.run(aten.mm.default, x, x)
    mixed = chain.run(overload, [low, x]) if overload is aten.cat.default else chain.run(overload, low, x)
    graph = chain.graph(mixed)
    found, plan = propagate(graph, name)
    assert formats(graph, plan)[overload._schema.name.removeprefix("aten::")] == expected
    promoted_here = overload is not aten.mul.Tensor and (name, overload) != ("amp-cuda-fp16", aten.cat.default)
    assert any(cast.to == "fp32" for cast in plan.casts) is promoted_here
    assert found[overload._schema.name.removeprefix("aten::")].promote is promoted_here


def test_a_tensor_of_no_dimension_does_not_promote() -> None:
    chain = Chain()
    x, scale = chain.state("x", tensor(3, 3)), chain.state("scale", tensor())
    low = chain.run(aten.mm.default, x, x)
    graph = chain.graph(
        chain.run(aten.mul.Tensor, low, scale), chain.run(aten.add.Tensor, low, chain.state("b", tensor(3)))
    )
    assert formats(graph, propagate(graph)[1]) == {"mm": "bf16", "mul": "bf16", "add": "fp32"}


def test_in_place_forms_are_left_alone_and_keep_the_format_of_what_they_write() -> None:
    chain = Chain()
    x = chain.state("x", tensor(3, 3))
    low = chain.run(aten.mm.default, x, x)
    graph = chain.graph(chain.run(aten.addmm_.default, low, low, low), chain.run(aten.add_.Tensor, low, x))
    found, plan = propagate(graph)
    assert formats(graph, plan) == {"mm": "bf16", "addmm": "bf16", "add": "bf16"}
    assert "in-place" in found["addmm_"].reason and not any("addmm_" in c.consumers[0] for c in plan.casts)


@pytest.mark.parametrize(
    ("overload", "args", "name", "expected", "widened"),
    [
        (aten.softmax.int, (1,), "amp-cuda-fp16", "fp32", True),
        (aten.softmax.int, (1,), "amp-cpu-fp16", "fp16", False),
        (aten.softmax.int, (1, torch.float64), "amp-cuda-fp16", "fp64", False),
        (aten.sum.dim_IntList, ([1],), "amp-cuda-fp16", "fp32", True),
        (aten.norm.Scalar, (2,), "amp-cuda-fp16", "fp32", True),
        (aten.exp.default, (), "amp-cuda-fp16", "fp32", True),
        (aten.exp.default, (), "amp-cpu-fp16", "fp16", False),
        (aten.square.default, (), "amp-cuda-fp16", "fp32", True),  # is pow by another name
        (aten.square.default, (), "amp-cpu-fp16", "fp16", False),
        (aten.mean.default, (), "amp-cuda-fp16", "fp16", False),
    ],
)
def test_ops_that_compute_into_fp32(
    overload: Any, args: tuple[Any, ...], name: str, expected: str, widened: bool
) -> None:
    chain = Chain()
    x = chain.state("x", tensor(3, 3))
    graph = chain.graph(chain.run(overload, chain.run(aten.mm.default, x, x), *args))
    _, plan = propagate(graph, name)
    assert plan.formats[-1][1] == expected
    assert any(cast.to == "fp32" for cast in plan.casts) is widened


def test_resizing_by_scale_is_fp32_on_cuda_though_its_overload_is_not_registered() -> None:
    chain = Chain()
    x, w = chain.state("x", tensor(1, 2, 4, 4)), chain.state("w", tensor(2, 2, 1, 1), "parameter")
    low = chain.run(aten.conv2d.default, x, w)
    graph = chain.graph(chain.run(aten.upsample_bilinear2d.vec, low, None, False, [2.0, 2.0]))
    assert formats(graph, propagate(graph, "amp-cuda-fp16")[1]) == {"conv2d": "fp16", "upsample_bilinear2d": "fp32"}
    assert formats(graph, propagate(graph, "amp-cpu-bf16")[1]) == {"conv2d": "bf16", "upsample_bilinear2d": "bf16"}


def test_the_user_s_own_formats_stay() -> None:
    chain = Chain()
    x, w = chain.state("x", tensor(3, 3)), chain.state("w", tensor(3, 3), "parameter")
    wide = chain.run(aten.to.dtype, chain.run(aten.mm.default, x, w), torch.float32, fixed="explicit cast")
    inside = chain.run(aten.linear.default, wide, w, region="autocast cpu off", fixed="region")
    graph = chain.graph(inside)
    found, plan = propagate(graph)
    assert formats(graph, plan) == {"mm": "bf16", "to": "fp32", "linear": "fp32"}
    assert (found["to"].classification, found["linear"].classification) == ("fixed", "fixed")
    assert {consumers for _, _, consumers in casts(plan)} == {("mm",)}


# composite ops -------------------------------------------------------------------------------------------------------


def _gru(chain: Chain) -> torch.Tensor:
    x, h = chain.state("x", tensor(5, 2, 8)), chain.state("h", tensor(1, 2, 4))
    shapes = ((12, 8), (12, 4), (12,), (12,))
    weights = [chain.state(f"w{i}", tensor(*shape), "parameter") for i, shape in enumerate(shapes)]
    result: torch.Tensor = chain.run(aten.gru.input, x, h, weights, True, 1, 0.0, True, False, False)[0]
    return result


def test_ops_with_autocast_inside_run_in_a_region() -> None:
    chain = Chain()
    graph = chain.graph(chain.run(aten.relu.default, _gru(chain)))
    found, plan = propagate(graph)
    assert found["gru"].autocast and not found["relu"].autocast
    assert (plan.autocast, plan.casts) == (tuple(op.key for op in graph.ops if op.op == "gru"), ())
    assert formats(graph, plan)["gru"] == "fp32"  # a low linear is added to a state in fp32
    assert formats(graph, propagate(graph, "amp-cuda-fp16")[1])["gru"] == "fp16"


@pytest.mark.parametrize("name", ["amp-cpu-bf16", "amp-cpu-fp16"])
@pytest.mark.parametrize(
    ("overload", "args"),
    [
        (aten.einsum.default, ("ij,jk->ik", [torch.ones(2, 3), torch.ones(3, 4)])),
        (aten.einsum.default, ("ij->ji", [torch.ones(2, 3)])),
        (aten.tensordot.default, (torch.ones(2, 3), torch.ones(3, 4), [1], [0])),
        (aten.inner.default, (torch.ones(2, 3), torch.ones(4, 3))),
        (aten.bilinear.default, (torch.ones(2, 3), torch.ones(2, 4), torch.ones(5, 3, 4))),
        (aten.linalg_multi_dot.default, ([torch.ones(2, 3), torch.ones(3, 4), torch.ones(4, 5)],)),
        (aten.matrix_power.default, (torch.ones(3, 3), 3)),
        (aten.lstm_cell.default, (torch.ones(2, 8), [torch.ones(2, 4)] * 2, torch.ones(16, 8), torch.ones(16, 4))),
        (aten.gru_cell.default, (torch.ones(2, 8), torch.ones(2, 4), torch.ones(12, 8), torch.ones(12, 4))),
        (aten.rnn_tanh_cell.default, (torch.ones(2, 8), torch.ones(2, 4), torch.ones(4, 8), torch.ones(4, 4))),
        (aten.affine_grid_generator.default, (torch.ones(1, 2, 3), [1, 1, 4, 4], False)),
        (aten.cov.default, (torch.ones(3, 4),)),
        (aten.pad.default, (torch.ones(1, 2, 4, 4), [1, 1, 1, 1], "reflect")),
        (aten.pad.default, (torch.ones(1, 2, 4, 4).half(), [1, 1, 1, 1], "constant")),
        (aten.nll_loss_nd.default, (torch.ones(3, 5).bfloat16(), torch.tensor([1, 2, 3]))),
    ],
)  # fmt: skip
def test_results_of_composite_ops_are_those_of_a_real_run(name: str, overload: Any, args: tuple[Any, ...]) -> None:
    low = policy.load(name).low
    with torch.no_grad(), torch.autocast("cpu", dtype_of(low)):
        real = overload(*args)
    chain = Chain()
    for i, leaf in enumerate(tree_leaves(args)):
        if isinstance(leaf, torch.Tensor):
            chain.state(f"x{i}", leaf)
    graph = chain.graph(tree_leaves(chain.run(overload, *args))[0])
    _, plan = propagate(graph, name)
    assert plan.formats[-1][1] == format_of(tree_leaves(real)[0].dtype)
    assert plan.autocast == (graph.ops[-1].key,)


def test_one_value_read_twice_and_roles_without_casts_go_into_a_region() -> None:
    chain = Chain()
    x = chain.state("x", tensor(3, 3))
    square = chain.run(aten.mm.default, x, x)  # autocast casts x twice, and sums two fp32 gradients
    graph = chain.graph(square, chain.run(aten.prod.default, square, dtype=torch.float32, fixed="explicit cast"))
    _, plan = propagate(graph)
    assert plan.autocast == tuple(op.key for op in graph.ops if op.operands)
    assert plan.casts == () and formats(graph, plan) == {"mm": "bf16", "prod": "fp32"}
    assert autocast.autocast_cast_count(graph, "cpu", "bf16") == 3


def test_an_unknown_op_is_run_as_autocast_finds_it() -> None:
    chain = Chain()
    x = chain.state("x", tensor(3, 3))
    graph = chain.graph(chain.run(aten.relu.default, x))
    unknown = dataclasses.replace(graph.ops[-1], op="lib::mine", target="lib.mine.default", kind="unknown")
    _, plan = propagate(dataclasses.replace(graph, ops=(*graph.ops[:-1], unknown)))
    assert plan.autocast == (unknown.key,)


# what autocast refuses -----------------------------------------------------------------------------------------------


def _bce(chain: Chain, **fields: Any) -> Graph:
    x, t = chain.state("x", tensor(3)), chain.state("t", tensor(3))
    return chain.graph(chain.run(aten.binary_cross_entropy.default, x, t, **fields))


def test_binary_cross_entropy_is_refused_on_cuda_with_the_user_s_line() -> None:
    with pytest.raises(InputError) as caught:
        propagate(_bce(Chain(), source=LINE), "amp-cuda-fp16")
    message = str(caught.value)
    assert message.startswith("model.py:7: ") and "binary_cross_entropy_with_logits" in message and "\n" not in message
    with pytest.raises(RuntimeError, match="unsafe to autocast"), fake_autocast("cuda", torch.float16):
        aten.binary_cross_entropy(torch.empty(3, device="cuda"), torch.empty(3, device="cuda"))


def test_binary_cross_entropy_is_kept_on_the_cpu_and_counts_nothing() -> None:
    assert propagate(_bce(Chain()))[0]["binary_cross_entropy"].chosen == "fp32"
    assert autocast.autocast_cast_count(_bce(Chain()), "cuda", "fp16") == 0


def test_a_third_format_cannot_be_widened() -> None:
    chain = Chain()
    pair = [chain.state("a", tensor(3, dtype=torch.float16)), chain.state("b", tensor(3))]
    with pytest.raises(InputError, match=r"fp16 input of cat.*expected fp32 or bf16"):
        propagate(chain.graph(chain.run(aten.cat.default, pair)))
    with pytest.raises(RuntimeError, match="Unexpected floating ScalarType"), torch.autocast("cpu", torch.bfloat16):
        torch.cat([torch.ones(3).half(), torch.ones(3)])


# the process is left as it was ---------------------------------------------------------------------------------------


def test_a_dry_run_leaves_autocast_as_it_was() -> None:
    op, inputs = recorded(aten.mm.default, tensor(2, 2), tensor(2, 2))
    with torch.autocast("cpu", torch.float16):
        assert formats_made(op, inputs, "cuda", "bf16") == ("bf16",)
        assert formats_made(op, inputs) == ("fp32",)
        assert torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.float16
    assert not torch.is_autocast_enabled("cuda") and torch.is_autocast_cache_enabled()


def test_what_cannot_be_run_without_data_is_unknown() -> None:
    op, inputs = recorded(aten.mm.default, tensor(2, 2), tensor(2, 2))
    assert formats_made(dataclasses.replace(op, target="lib.mine.default"), inputs) is None
    assert formats_made(dataclasses.replace(op, target="aten.no_such_op.default"), inputs) is None
    missing, inputs = recorded(aten.view.default, tensor(2, 2), [4])
    assert formats_made(dataclasses.replace(missing, attributes=()), inputs) is None
