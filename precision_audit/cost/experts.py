"""The experts' grouped product (`torch._grouped_mm`) as fp8 sees it: may it, and what would it gain?

Takes such an op and the tensors it reads; gives its sizes, what stands against fp8, and predicted seconds. Rows are
sorted by expert and `offs` says where each expert's end, so how many an expert gets is known at run time alone: M is
the mean, rows over experts. Never offers a swap: the weights of all experts are one parameter [experts, K, N] of the
model, no module of their own that could be replaced. torchao quantises them in the model itself (`quantize_` with
`Float8TrainingOpConfig`, recipe fp8 rowwise), so that is what is judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from precision_audit import recipes
from precision_audit.cost import worth as pricing
from precision_audit.divisible import divisible
from precision_audit.hardware.recipes import lacking
from precision_audit.records import Hardware, Mode, Op, Operand, Tensor

OPS = frozenset({"_grouped_mm", "transformers::grouped_mm_fallback"})
BACKEND, RECIPE = "torchao_grouped", "fp8_rowwise"
NO_MODULE = (
    "experts share one parameter and are no nn.Linear to swap: quantise them in the model, with torchao's "
    "quantize_ and Float8TrainingOpConfig"
)


@dataclass(frozen=True, slots=True)
class Experts:
    """y[rows of e, N] = x[rows of e, K] · weight[e, K, N] for every expert e."""

    count: int
    k: int | str
    n: int | str
    m: int | str  # rows of one expert; "" where data decide them
    k_example: int
    n_example: int
    m_example: int  # the mean, where data decide


def experts(inputs: Sequence[Tensor]) -> Experts | None:
    """The sizes; None for a grouped product of another shape (a gradient of the weights, written by hand)."""
    rows, weight = inputs[0], inputs[1]
    if len(weight.hint) != 3 or len(rows.hint) not in (2, 3):
        return None
    count, k, n = weight.hint
    decided = len(rows.hint) == 2  # by data
    m = max(1, -(-rows.hint[0] // count)) if decided else rows.hint[1]
    return Experts(count, weight.shape[1], weight.shape[2], "" if decided else rows.shape[1], k, n, m)


def obstacles(found: Experts, mode: Mode, hardware: Hardware) -> tuple[str, tuple[str, ...]]:
    """Why fp8 is not possible, "" where it is; and the conditions under which it is."""
    row = recipes.recipe(BACKEND, RECIPE)
    lacks = lacking(row, hardware)
    problems, conditions = [lacks] if lacks else [], []
    k, n, m = row.multiple_training if mode == "training" else row.multiple
    for name, size, multiple in (("K", found.k, k), ("N", found.n, n), ("M per expert", found.m, m)):
        if size == "":
            if multiple > 1:
                conditions.append(f"rows of each expert % {multiple} == 0 in backward, as offs decides at run time")
            continue
        answer = divisible(size, multiple)
        if answer.verdict == "never":
            problems.append(f"{name}={size} is not a multiple of {multiple}")
        elif answer.condition:
            conditions.append(answer.condition)
    return "; ".join(problems), tuple(conditions)


def refusal(inputs: Sequence[Tensor], mode: Mode, hardware: Hardware) -> str:
    """Why the op is not swapped: what stands against fp8, else that there is no module."""
    found = experts(inputs)
    if found is None:
        return "a grouped product without one weight per expert"
    return obstacles(found, mode, hardware)[0] or NO_MODULE


def worth(op: Op, inputs: Sequence[Tensor], found: Experts, low: str, hardware: Hardware, mode: Mode) -> pricing.Worth:
    """As many linears as there are experts, which share the launches of one grouped kernel."""
    shared = replace(hardware, launch=hardware.launch / found.count)
    operands = tuple(Operand(each.value, name) for each, name in zip(op.operands, ("input", "weight"), strict=False))
    as_linear = replace(op, op="linear", target="aten.linear.default", kind="matmul", operands=operands)
    sized, tensors = pricing.resized(as_linear, inputs[:2], found.k_example, found.n_example, found.m_example)
    one = pricing.worth(sized, tensors, BACKEND, RECIPE, low, shared, mode)
    reason = f"{one.reason}, for each of {found.count} experts" if one.reason else ""
    return replace(one, seconds=one.seconds * found.count, seconds_low=one.seconds_low * found.count, reason=reason)
