"""PA211 plain low precision gives another answer

What it does: reports an output that the model gives otherwise when it runs wholly in the low format, where no other
rule has named a cause on the way to it: lost elements, a relative error of a fifth, one decision in twenty; or any
error beyond the policy's tolerance which the sum of all rounding errors does not explain. It names the op where the
error begins. Runs after all other rules.
Why it is a hazard: a model that is cast as a whole gives this answer. What the policy keeps high anyway may be what
saves the converted model, and whoever changes the policy should know.
What to do: keep the op named, and what makes its operands, in the high format; `convert` does.
References: none needed, the model was run both ways.
"""

from __future__ import annotations

from collections.abc import Iterator

from precision_audit.records import Beside, Evidence, Finding, Op
from precision_audit.rules import Context, Example, found
from precision_audit.rules.reach import Reach
from precision_audit.rules.upstream import Upstream
from precision_audit.verify.limits import limit

LAST = 2

_WRONG = 0.2  # relative error of an output
_CHANGED = 0.05  # share of an integer output
_BEGINS = 0.03  # what an op adds by itself to be where it begins; what an operand is off by to be followed


def check(context: Context) -> Iterator[Finding]:
    if context.policy.autocast:
        return
    reach, told = Reach(context), _told(context)
    explained = any(each.rule == "PA210" for each in context.told)
    wrong = _WRONG if explained else min(_WRONG, limit(context.policy, "relative_l2", "") or _WRONG)
    named = {each.op for each in context.told if each.rule == "PA204"}  # as a note: a loss 1 - x, small beside one
    for value in dict.fromkeys(context.graph.outputs):
        beside = context.as_cast.get(value)
        if beside is None or not _is_wrong(beside, wrong) or _ancestors(context, value) & told:
            continue
        culprit = _begins(context, value, reach, min(_BEGINS, beside.drift / 4 if beside.drift else _BEGINS))
        if culprit.key in named or not reach.free(culprit):
            continue
        named.add(culprit.key)
        yield _finding(context, culprit, value, beside)


def _told(context: Context) -> set[str]:
    """Ops that another rule has named, or keeps high, or would if the user had not turned it off; but for what was kept
    high when the output was wrong all the same."""
    real = [each for each in context.told if each.severity != "note" or each.overridden]
    real = [each for each in real if not each.pins or not context.kept.issuperset(each.pins)]
    return {key for each in real for key in (each.op, *each.pins) if key}


def _is_wrong(beside: Beside, limit: float) -> bool:
    return beside.lost > 0 or beside.drift >= limit or beside.changed >= _CHANGED


def _ancestors(context: Context, value: str) -> set[str]:
    """Keys of the ops that lead to a value, its own maker among them."""
    found: set[str] = set()
    waiting = [value]
    while waiting:
        op = context.maker.get(waiting.pop())
        if op is not None and op.key not in found:
            found.add(op.key)
            waiting.extend(_read(context, op))
    return found


def _begins(context: Context, value: str, reach: Reach, begins: float) -> Op:
    """The op from which the error comes: back over wrong operands until an op makes it by itself, or has none. A
    decision makes none: there the scores are looked at."""
    op, seen = context.maker[value], set[str]()
    while op.key not in seen:
        seen.add(op.key)
        own = [context.as_cast[each] for each in op.values if each in context.as_cast]
        if any(each.fresh >= begins or each.fresh_lost for each in own):
            break
        read = [each for each in _read(context, op) if each in context.as_cast]
        wrong = [each for each in read if _is_wrong(context.as_cast[each], begins)]
        read = wrong if wrong or reach.free(op) else read
        if not read:
            break
        op = context.maker[max(read, key=lambda each: _size(context.as_cast[each]))]
    return op


def _read(context: Context, op: Op) -> list[str]:
    """What the op reads, and what was written to its results since."""
    if "writers" not in context.shared:
        context.shared["writers"] = Upstream(context).writers
    writers = context.shared["writers"]
    later = (each.key for value in op.values for each in writers.get(value, ()) if len(each.values) == 1)
    return [*(operand.value for operand in op.operands), *(key for key in later if key != op.key)]


def _size(beside: Beside) -> tuple[int, float]:
    return beside.lost, max(beside.drift, beside.changed)


def _finding(context: Context, culprit: Op, value: str, beside: Beside) -> Finding:
    low = context.policy.low
    though = ", although what else was found is kept high" if context.kept else ""
    if beside.lost:
        what = f"{beside.lost} elements are lost"
    elif beside.changed:
        what = f"{beside.changed:.0%} of the elements change"
    else:
        what = f"the relative error is {beside.drift:.2g}"
    number = context.graph.outputs.index(value)
    return found(
        __name__,
        "warning",
        culprit,
        f"{culprit.op}: where it begins that output {number} is another one in plain {low}{though} → {what}",
        Evidence(
            "OBSERVED",
            f"the model run wholly in {low} beside the captured one{though}",
            (("error", beside.drift), ("changed", beside.changed), ("lost", float(beside.lost))),
        ),
        remedy=f"keep it and what makes its operands in {context.policy.high}",
        pins=(culprit.key,),
    )


def bad() -> Example:
    return _example(scale=3e-4)


def good() -> Example:
    return _example(scale=1.0)


def _example(scale: float) -> Example:
    import torch
    from torch import nn

    class Nearest(nn.Module):
        def forward(self, x: torch.Tensor, centres: torch.Tensor) -> torch.Tensor:
            apart = (x[:, None] - centres[None]).pow(2)  # PA211
            return apart.sum(-1).argmin(-1)

    generator = torch.Generator().manual_seed(0)
    points = [torch.randn(count, 4, generator=generator) * scale for count in (60, 20)]
    return Example(Nearest(), (points[0], points[1]), policy="fp16-inference")
