"""The op table: complete, its codes valid, roles as stated, kernels and accumulators as the CPU shows them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from precision_audit import ops
from precision_audit.ops import work as op_work
from precision_audit.records import Op, Operand, Tensor
from tests.op_records import recorded, tensor
from tests.torch_schemas import SOME_VERSIONS, overloads, schema

aten = torch.ops.aten
LONG = torch.int64
# Targets of a captured graph that are no aten ops: regions, control flow, vmap, the experts of transformers.
OUTSIDE = frozenset(
    {"wrap_with_autocast", "wrap_with_set_grad_enabled", "cond", "while_loop", "scan", "flex_attention", "flat_apply"}
    | {"_add_batch_dim", "_remove_batch_dim", "_vmap_increment_nesting", "_vmap_decrement_nesting"}
    | {"transformers::grouped_mm_fallback"}
)
KERNEL_COLUMNS = ("cpu_fp64", "cpu_fp16", "cpu_bf16", "cuda_fp16", "cuda_bf16")


def ids(*shape: int) -> torch.Tensor:
    return tensor(*shape, dtype=LONG)


# the table -----------------------------------------------------------------------------------------------------------


def test_every_row_is_an_op_of_torch() -> None:
    known = {name.removeprefix("aten::").partition(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    assert set(ops.OPS) - known - SOME_VERSIONS <= OUTSIDE <= set(ops.OPS)
    assert set(ops.OPS) >= SOME_VERSIONS
    assert len(ops.OPS) - len(OUTSIDE) >= 841


CODES = {
    "arithmetic": {"none", "exact", "rounding", "accumulating", "na"},
    "default": {"low", "keep", "follow", "neutral"},
    "acc_cpu": {"", "fp32", "own", "?"},
    "acc_cuda": {"", "fp32", "own", "?"},
    "flops": {"", *op_work.FLOPS},
    "depth": {"", *op_work.DEPTH},
    "widens": {"", "cpu"},
    "bytes": {"", "view", "gather", "made", "written", "dropout", "convert"},
    **{column: {a + b for a in "yn?-" for b in "yn?-"} for column in KERNEL_COLUMNS},
}


@pytest.mark.parametrize("column", CODES)
def test_a_column_holds_its_codes_only(column: str) -> None:
    assert {getattr(row, column) for row in ops.OPS.values()} <= CODES[column]


@pytest.mark.parametrize("column", ["mixed", "stays", "any"])
def test_roles_name_arguments_of_the_op(column: str) -> None:
    for row in ops.OPS.values():
        arguments = {a.name for overload in overloads(row.name) for a in schema(row.name, overload).arguments} | {"*"}
        for code in getattr(row, column).split():
            assert code.rpartition(":")[2] in arguments, f"{row.name}: {column} names {code}"


def test_an_in_place_form_is_its_base_row() -> None:
    assert ops.row("relu_") is ops.row("relu") is ops.OPS["relu"]
    assert ops.row("uniform_") is ops.OPS["uniform_"]  # exists in place only
    assert ops.row("no_such_op") is None


# roles ---------------------------------------------------------------------------------------------------------------

NORM = (tensor(4, 6, 5), tensor(6), tensor(6), tensor(6), tensor(6))
ROLES: list[tuple[str, tuple[Op, list[Tensor]], str, str, str]] = [
    ("data of a norm", recorded(aten.batch_norm.default, *NORM, True, 0.1, 1e-5, True), "input", "cuda", "match"),
    ("affine of a batch norm", recorded(aten.batch_norm.default, *NORM, True, 0.1, 1e-5, True), "weight", "cuda",
     "mixed"),
    ("statistics", recorded(aten.batch_norm.default, *NORM, True, 0.1, 1e-5, True), "running_var", "cpu", "stays"),
    ("affine on the cpu", recorded(aten.layer_norm.default, tensor(2, 4), [4], tensor(4), tensor(4)), "bias", "cpu",
     "mixed"),
    ("affine on cuda", recorded(aten.layer_norm.default, tensor(2, 4), [4], tensor(4), tensor(4)), "bias", "cuda",
     "match"),
    ("a cast of the user's", recorded(aten.to.dtype, tensor(3), torch.float64), "self", "cpu", "any"),
    ("source of a copy", recorded(aten.copy.default, tensor(3), tensor(3)), "src", "cpu", "any"),
    ("target of a copy", recorded(aten.copy.default, tensor(3), tensor(3)), "self", "cpu", "match"),
    ("argmax", recorded(aten.argmax.default, tensor(3)), "self", "cpu", "any"),
    ("comparison with a number", recorded(aten.gt.Scalar, tensor(3), 0), "self", "cpu", "any"),
    ("comparison of two", recorded(aten.gt.Tensor, tensor(3), tensor(3)), "other", "cpu", "match"),
    ("an explicit dtype", recorded(aten.softmax.int, tensor(3), 0, torch.float32), "self", "cpu", "any"),
    ("no dtype", recorded(aten.softmax.int, tensor(3), 0), "self", "cpu", "match"),
    ("a spectrum", recorded(aten.fft_rfft.default, tensor(8)), "self", "cpu", "match"),
    ("shape only", recorded(aten.expand_as.default, tensor(1), tensor(3)), "other", "cpu", "any"),
    ("scales of fp8", recorded(aten._scaled_mm.default, tensor(16, 16, dtype=torch.float8_e4m3fn),
                               tensor(16, 16, dtype=torch.float8_e4m3fn).t(), tensor(), tensor(),
                               out_dtype=torch.bfloat16),
     "scale_a", "cuda", "stays"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("made", "argument", "kernels", "role"), [each[1:] for each in ROLES], ids=[e[0] for e in ROLES]
)
def test_roles(made: tuple[Op, list[Tensor]], argument: str, kernels: str, role: str) -> None:
    assert ops.role(made[0], argument, kernels) == role


def test_the_operands_of_an_unknown_op_match() -> None:
    op = Op("/mine#0", "lib.mine.default", "lib::mine", "unknown", "", "", (Operand("x", "x"),), ())
    assert ops.role(op, "x", "cpu") == "match"


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("name", ["batch_norm", "layer_norm", "group_norm", "instance_norm"])
def test_what_is_called_mixed_runs_mixed_on_the_cpu(name: str, low: torch.dtype) -> None:
    data, weight, bias = torch.ones(2, 4, 3, dtype=low), torch.ones(4), torch.ones(4)
    mean, variance = torch.zeros(4), torch.ones(4)
    calls = {
        "batch_norm": lambda: aten.batch_norm(data, weight, bias, mean, variance, True, 0.1, 1e-5, True),
        "layer_norm": lambda: aten.layer_norm(data.mT, [4], weight, bias),
        "group_norm": lambda: aten.group_norm(data, 2, weight, bias),
        "instance_norm": lambda: aten.instance_norm(data, weight, bias, mean, variance, True, 0.1, 1e-5, True),
    }
    assert "weight" in {code.rpartition(":")[2] for code in ops.OPS[name].mixed.split()}
    assert calls[name]().dtype == low


@pytest.mark.parametrize(
    ("made", "label"),
    [
        (recorded(aten.relu.default, tensor(3)), True),
        (recorded(aten.gt.Tensor, tensor(3), tensor(3)), True),
        (recorded(aten.argmax.default, tensor(3)), False),
        (recorded(aten.view.default, tensor(3), [3]), True),
        (recorded(aten.add.Tensor, ids(3), 1), False),
        (recorded(aten.fft_rfft.default, tensor(8)), False),
    ],
    ids=["float", "comparison", "argmax", "view", "integers", "complex"],
)
def test_has_label(made: tuple[Op, list[Tensor]], label: bool) -> None:
    assert ops.has_label(made[0]) is label


# kernels and accumulators --------------------------------------------------------------------------------------------

KERNELS = [
    ("relu", torch.relu), ("linear", lambda x: x @ x), ("cdist", lambda x: torch.cdist(x, x)),
    ("avg_pool3d", lambda x: torch.nn.functional.avg_pool3d(x[None, None], 2)), ("softmax", lambda x: x.softmax(-1)),
    ("linalg_cholesky", lambda x: torch.linalg.cholesky(x[0])), ("cumsum", lambda x: x.cumsum(-1)),
    ("layer_norm", lambda x: torch.nn.functional.layer_norm(x, [4])), ("pdist", lambda x: torch.pdist(x[0])),
    ("lgamma", torch.lgamma), ("sort", lambda x: x.sort().values), ("erfinv", torch.erfinv),
]  # fmt: skip


@pytest.mark.parametrize("low", ["bf16", "fp16", "fp64"])
@pytest.mark.parametrize(("name", "run"), KERNELS, ids=[name for name, _ in KERNELS])
def test_kernels_on_the_cpu(name: str, run: Any, low: str) -> None:
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}[low]
    try:
        run((torch.eye(4) * 0.5).expand(2, 4, 4).to(dtype).clone())
        runs = True
    except (RuntimeError, NotImplementedError):
        runs = False
    assert ops.has_kernel(name, low, "cpu", backward=False) is runs


def test_kernels_that_nobody_knows_are_not_claimed() -> None:
    assert ops.has_kernel("no_such_op", "bf16", "cuda", backward=False) is None
    assert ops.has_kernel("gru", "bf16", "cuda", backward=False) is None
    assert ops.has_kernel("linear", "fp8_e4m3fn", "cuda", backward=False) is None
    assert ops.has_kernel("linalg_cholesky", "fp32", "cpu", backward=True) is True
    assert ops.has_kernel("argmax", "bf16", "cpu", backward=True) is True  # has no gradient, needs no kernel for one


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("sum", lambda ones: ones.sum()),
        ("mean", lambda ones: ones.mean() * len(ones)),
        ("linear", lambda ones: torch.nn.functional.linear(ones, ones[None])),
        ("cumsum", lambda ones: ones.cumsum(0)[-1]),
        ("index_add", lambda ones: ones.new_zeros(1).index_add(0, torch.zeros(len(ones), dtype=LONG), ones)),
        ("scatter_add", lambda ones: ones.new_zeros(1).scatter_add(0, torch.zeros(len(ones), dtype=LONG), ones)),
    ],
)
def test_sums_are_kept_in_the_format_stated(name: str, total: Any) -> None:
    """bf16 counts to 256: a sum of 512 ones that is kept in bf16 stops there."""
    exact = total(torch.ones(512, dtype=torch.bfloat16)).item() == 512
    assert ops.accumulates_in(name, "bf16", "cpu") == ("fp32" if exact else "bf16")


class _Casts(TorchDispatchMode):
    """Casts between float formats that are executed while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[torch.dtype, torch.dtype]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is aten._to_copy.default:
            self.made.append((args[0].dtype, result.dtype))
        return result


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("rms_norm", lambda x: torch.nn.functional.rms_norm(x, (8,), torch.ones(8, dtype=x.dtype))),
        ("layer_norm", lambda x: torch.nn.functional.layer_norm(x, (8,), torch.ones(8, dtype=x.dtype))),
        ("group_norm", lambda x: torch.nn.functional.group_norm(x, 2)),
        ("softmax", lambda x: x.softmax(-1)),
        ("log_softmax", lambda x: x.log_softmax(-1)),
        ("gelu", torch.nn.functional.gelu),
        ("mean", lambda x: x.mean(-1)),
        ("linear", lambda x: torch.nn.functional.linear(x, x)),
    ],
)
def test_an_op_that_widens_casts_within_itself(name: str, run: Any, low: torch.dtype) -> None:
    x = torch.randn(8, 8, dtype=low)
    with _Casts() as casts, torch.no_grad():
        run(x)
    format_ = {torch.bfloat16: "bf16", torch.float16: "fp16"}[low]
    there_and_back = [(low, torch.float32), (torch.float32, low)]
    assert casts.made == (there_and_back if ops.widens(name, format_, "cpu") else [])
    assert not ops.widens(name, "fp32", "cpu") and not ops.widens(name, format_, "cuda")


def test_accumulators_of_ops_that_sum_nothing_or_run_high() -> None:
    assert ops.accumulates_in("relu", "bf16", "cpu") == ""
    assert ops.accumulates_in("sum", "fp64", "cuda") == "fp64"
    assert ops.accumulates_in("cumsum", "fp16", "cuda") == "fp16"
    assert ops.accumulates_in("no_such_op", "fp16", "cuda") == ""
