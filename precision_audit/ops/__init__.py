"""The op table: what is known of every aten op, one row of `ops.csv` each.

Gives rows by name and what follows from a row for one op: the role of an argument, FLOPs, bytes, reduction depth,
kernels, accumulators. Never chooses a format: `default` is what a plain mixed-precision policy does, and policies say
so themselves. An in-place form (`relu_`) is its base row. An op without a row is unknown: `row` gives None, its
operands must match its format, nothing is claimed of its kernels.

To add an op, add a row. The columns:
  name, kind, subclass   the aten base name; what it is (kinds are what a policy's `kind:` may name)
  arithmetic    none (moves values) · exact · rounding (once per element) · accumulating · na (no float data)
  default       low (products) · keep (may leave the low range or lose what matters) · follow · neutral (views, no
                float)
  cuda, cpu     torch.autocast's policy: low · fp32 · fp32-out (computed into fp32 unless a dtype is given) · promote ·
                banned · empty (not registered); `low:default|padding` names the overloads when not all are registered
  inner_cuda, inner_cpu   registered ops that autocast reaches inside a composite one, found by running it. `=pow`: the
                op is nothing but that op, whose policy it has. `!low`, `!fp32`: the format of the result where a fake
                tensor does not show it, because a kernel makes the inner calls
  acc_cpu, acc_cuda   sums in low formats are kept in: fp32 · own (the op's own format) · ? (not known) · empty (no sum)
  flops, depth  names of formulas in `op_work`; empty: none
  bytes         empty (reads all operands, writes all outputs) · view (none) · gather (reads what it writes) · made
                (writes only) · written (reads all but the first operand) · dropout (none in evaluation) · convert
                (none if the format is the same)
  cpu_fp64 … cuda_bf16   kernels, forward then backward: y · n · ? (not known) · - (no gradient, or no float at all)
  mixed, stays, any   arguments with that role (see `role`); `cpu:weight` on CPU kernels only, `*` every argument
  widens        kernels on which a low format is no faster: the op casts its first operand to fp32 and its result back
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from importlib import resources
from typing import Literal

from precision_audit.formats import bytes_of, is_float
from precision_audit.ops.work import depth_by, flops_by
from precision_audit.records import Op, Tensor

Role = Literal["match", "stays", "any", "mixed"]
Device = Literal["cuda", "cpu"]


@dataclass(frozen=True, slots=True)
class OpRow:
    """One row of `ops.csv`; the module's docstring explains the codes."""

    name: str
    kind: str
    subclass: str
    arithmetic: str
    default: str
    cuda: str
    cpu: str
    inner_cuda: str
    inner_cpu: str
    acc_cpu: str
    acc_cuda: str
    flops: str
    depth: str
    bytes: str
    cpu_fp64: str
    cpu_fp16: str
    cpu_bf16: str
    cuda_fp16: str
    cuda_bf16: str
    mixed: str
    stays: str
    any: str
    widens: str

    def autocast(self, device: str, overload: str) -> str:
        """torch.autocast's policy for one overload: low, fp32, fp32-out, promote, banned, or "" for none."""
        policy, _, overloads = (self.cuda if device == "cuda" else self.cpu).partition(":")
        return policy if not overloads or overload in overloads.split("|") else ""

    def inner(self, device: str) -> tuple[str, ...]:
        """Ops that autocast reaches inside this one."""
        codes = (self.inner_cuda if device == "cuda" else self.inner_cpu).split()
        return tuple(code.lstrip("=") for code in codes if not code.startswith("!"))

    def whole(self, device: str) -> str:
        """The one op that this op consists of, "" if there is more to it."""
        code = self.inner_cuda if device == "cuda" else self.inner_cpu
        return code[1:] if code.startswith("=") else ""

    def inner_result(self, device: str) -> str:
        """`low` or `fp32` where the table says what autocast inside the op makes of its result, else ""."""
        codes = (self.inner_cuda if device == "cuda" else self.inner_cpu).split()
        return next((code[1:] for code in codes if code.startswith("!")), "")


def _load() -> dict[str, OpRow]:
    text = resources.files("precision_audit.ops").joinpath("ops.csv").read_text(encoding="utf-8")
    rows = [OpRow(**line) for line in csv.DictReader(text.splitlines())]
    names = [row.name for row in rows]
    assert names == sorted(set(names)), "ops.csv: names must be sorted and unique"
    assert {f.name for f in fields(OpRow)} == set(next(csv.reader(text.splitlines())))
    return dict(zip(names, rows, strict=True))


OPS: dict[str, OpRow] = _load()

# Give their result the format of the operand `other`, whatever the one they convert has.
LIKE = frozenset({"to", "type_as"})


@lru_cache(maxsize=4096)
def row(name: str) -> OpRow | None:
    """The row of an op by its base name (`linear`); an in-place name falls back to its base."""
    found = OPS.get(name)
    return OPS.get(name[:-1]) if found is None and name.endswith("_") else found


def role(op: Op, argument: str, kernels: str) -> Role:
    """How `op` reads the float operand given for `argument` on devices with these kernels.

    match  in the op's own format
    stays  as captured, whatever the op's format (running statistics, scales)
    any    in any float format, without a cast and without effect on the result's format
    mixed  also high while the op runs low (the parameters of a norm)
    """
    known = row(op.op)
    if known is None:
        return "match"
    if _named(known.stays, argument, kernels):
        return "stays"
    if _named(known.any, argument, kernels) or _converts(op, known, argument) or _reads_alone(op):
        return "any"
    return "mixed" if _named(known.mixed, argument, kernels) else "match"


def _named(column: str, argument: str, kernels: str) -> bool:
    for code in column.split():
        device, _, name = code.rpartition(":")
        if name in (argument, "*") and device in ("", kernels):
            return True
    return False


def _converts(op: Op, known: OpRow, argument: str) -> bool:
    """An op with a dtype argument converts its first operand itself. A vector norm does so upwards only."""
    if not any(name == "dtype" and isinstance(value, str) and is_float(value) for name, value in op.attributes):
        return False
    first = bool(op.operands) and op.operands[0].argument == argument
    return first and not (known.subclass == "vector_norm" and op.follows)


def _reads_alone(op: Op) -> bool:
    """One operand and no number out: argmax, isnan, item. A complex result needs its float operand as it is."""
    return len(op.operands) == 1 and not any(
        is_float(tensor.format) or tensor.format.startswith("complex") for tensor in op.outputs
    )


def has_label(op: Op) -> bool:
    """Whether an op has a format to be chosen: it makes floats, or two operands must agree. One that makes complex
    numbers has none: of fp16 parts they would be in a format that hardly any kernel has."""
    if any(is_float(tensor.format) for tensor in op.outputs):
        return True
    if any(tensor.format.startswith("complex") for tensor in op.outputs):
        return False
    return sum(role(op, operand.argument, "") == "match" for operand in op.operands) >= 2


def flops(op: Op, inputs: Sequence[Tensor]) -> int:
    """Floating-point operations at the example's sizes; 0 for an op that moves values only or is unknown."""
    known = row(op.op)
    return flops_by(known.flops, op, inputs) if known and known.flops else 0


def reduction_depth(op: Op, inputs: Sequence[Tensor]) -> int | None:
    """How many values `op` sums into one: all reduced axes together, K of a product. None if it sums nothing."""
    known = row(op.op)
    return depth_by(known.depth, op, inputs) if known else None


def bytes_moved(op: Op, inputs: Sequence[Tensor], format: str) -> int:
    """Bytes read and written at the example's sizes, float tensors counted in `format` ("": as captured)."""
    known = row(op.op)
    rule = known.bytes if known else ""
    if rule == "view" or not op.outputs:
        return 0
    given = dict(op.attributes)
    if rule == "dropout" and given.get("train") is False:
        return 0
    if rule == "convert" and op.op != "contiguous" and inputs and inputs[0].format == op.outputs[0].format:
        return 0
    written = _size(op.outputs, format)
    if rule == "gather":
        return 2 * written + _size((tensor for tensor in inputs if not is_float(tensor.format)), format)
    if rule == "made":
        return written
    return written + _size(inputs[1:] if rule == "written" else inputs, format)


def _size(tensors: Iterable[Tensor], format: str) -> int:
    total = 0.0
    for tensor in tensors:
        if tensor.format:  # an output that is no tensor has none
            counted = format if format and is_float(tensor.format) else tensor.format
            total += math.prod(tensor.hint) * bytes_of(counted)
    return int(total)


def widens(name: str, format: str, kernels: str) -> bool:
    """Whether an op in a low format casts its first operand to fp32 within itself, and its result back."""
    known = row(name)
    return known is not None and bytes_of(format) < 4 and kernels in known.widens.split()


def has_kernel(name: str, format: str, kernels: str, backward: bool) -> bool | None:
    """Whether a device runs an op in a format; None where that is not known, as for every fp8. An op without a gradient
    needs no backward kernel. Every op runs in fp32, or nothing would be left to keep it in."""
    known = row(name)
    if format == "fp32":
        return True
    code = getattr(known, f"{kernels}_{format}", "??") if known else "??"
    return {"y": True, "-": True, "n": False}.get(code[1 if backward else 0])


def accumulates_in(name: str, format: str, kernels: str) -> str:
    """The format that an op's sums are kept in when it runs in `format`; "" if it sums nothing, or nobody knows."""
    known = row(name)
    if known is None:
        return ""
    code = known.acc_cuda if kernels == "cuda" else known.acc_cpu
    if code == "fp32" and bytes_of(format) < 4:
        return "fp32"
    return format if code in ("fp32", "own") else ""
