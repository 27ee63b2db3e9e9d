"""PA110 underflow

What it does: reports an op whose result vanishes in the low format and is needed: a division or inverse root loses
elements for it, or the whole result is rounded away and a relative error of a tenth or more reaches an output. Also
running variances so small that a cast of the module leaves a few steps of them.
Why it is a hazard: fp16 holds nothing below 6e-8 and loses digits from 6e-5 down. The squares of 1e-4 are gone, a
softmax written without its shift is zero over zero, a factor of 1e-9 that is taken back later has erased everything.
What to do: scale before squaring, subtract the maximum before exp, or keep the chain in fp32 until numbers are back.
References: IEEE 754 binary16 subnormals.
"""

from __future__ import annotations

from collections.abc import Iterator

from precision_audit.records import Beside, Evidence, Finding, Op
from precision_audit.rules import Context, Example, found
from precision_audit.rules.families import base
from precision_audit.rules.vanish import LOGS, Vanish
from precision_audit.verify.limits import limit

_GARBAGE = 0.1  # relative error from which a result says nothing any more
_CHANGED = 0.01  # share of integers from which they say something else


def check(context: Context) -> Iterator[Finding]:
    vanish = Vanish(context)
    guarded = {site.singular.key for site in vanish.sites()}
    told = _told_elsewhere(vanish)
    for op in context.computed():
        if op.key in guarded or base(op) in LOGS or not vanish.reach.free(op) or not vanish.lost_first(op):
            continue
        for value in (o.value for o in op.operands):
            culprit = vanish.underflowed(value) if vanish.is_singular(op, value) else None
            if culprit is not None and culprit.key not in told:
                told.add(culprit.key)
                yield _divided(vanish, culprit, op, value)
    for op in context.computed():
        if op.key not in told and vanish.reach.free(op) and _erased(vanish, op) and _persists(context, op):
            told.update((op.key, *(reader.key for reader in vanish.readers_of_small(op))))
            yield _garbage(vanish, op)
    for state in context.graph.ops:
        if state.kind in ("parameter", "buffer") and all(_vanishes(vanish, value) for value in state.values):
            for op in vanish.reach.first_uses(state.values[0]):
                if op.key not in told and vanish.reach.free(op) and _differs(context, op) and _persists(context, op):
                    told.add(op.key)
                    yield _state(vanish, state, op)
    yield from _coarse_statistics(vanish, told)


def _coarse_statistics(vanish: Vanish, told: set[str]) -> Iterator[Finding]:
    """Variances that a cast of the module rounds to a few steps above zero. The op takes them in any format, and so the
    low model beside the captured one has them whole."""
    context = vanish.context
    if context.policy.autocast:  # which leaves buffers alone
        return
    for op in context.computed():
        value = context.operand(op, "running_var")
        seen = context.ranges.get(value)
        if not value or seen is None or seen.basis != "PROVED" or op.key in told or not vanish.reach.free(op):
            continue
        eps = dict(op.attributes).get("eps")
        least = seen.smallest + (eps if isinstance(eps, float) else 0.0)
        error = min(1.0, vanish.zero_at / least / 2) if least else 0.0  # of the root of what is off by half a step
        if seen.smallest < (context.low.min_normal or 0.0) and error > (
            limit(context.policy, "relative_l2", "") or 1.0
        ):
            yield found(
                __name__,
                "warning",
                op,
                f"{base(op)}: {value} down to {seen.smallest:.3g}, eps included {least:.3g} → off by up to "
                f"{100 * error:.2g} % in {context.policy.low}, once the module is cast",
                Evidence(
                    "PROVED",
                    f"half a step of {context.policy.low} near zero is {vanish.zero_at:.3g}",
                    (("smallest", seen.smallest), ("limit", vanish.zero_at), ("error", error)),
                ),
                remedy="keep the running statistics and the op that reads them in high precision",
                of=value,
                pins=(op.key,),
            )


def _told_elsewhere(vanish: Vanish) -> set[str]:
    """Ops whose result a logarithm, or a guard that vanishes, reads and loses: told there (PA107, PA109)."""
    logs = (op for op in vanish.context.computed() if base(op) in LOGS and vanish.lost_first(op))
    found = {maker.key for op in logs for operand in op.operands for maker in vanish.upstream(operand.value)}
    for site in vanish.sites():
        if any(vanish.reach.lost(value) for value in site.singular.values):
            found.update(op.key for op in (site.op, *site.between, *vanish.upstream(site.guarded)))
    return found


def _divided(vanish: Vanish, culprit: Op, singular: Op, value: str) -> Finding:
    smallest = min(vanish.context.ranges[each].smallest for each in culprit.values)
    lost = vanish.lost_first(singular)
    return found(
        __name__,
        "note" if vanish.shielded(culprit) else "error",
        culprit,
        f"{base(culprit)}: down to {smallest:.3g} → zero in {vanish.context.low.name}; {base(singular)} divides by it",
        Evidence(
            "OBSERVED",
            f"smallest {smallest:.3g}, zero at {vanish.zero_at:.3g}; {lost} elements lost at {singular.key}",
            (("smallest", smallest), ("limit", vanish.zero_at), ("lost", float(lost))),
        ),
        remedy="scale before, subtract the maximum before exp, or keep the chain to the division in high precision",
        pins=vanish.pins(vanish.upstream(value), vanish.readers_of_small(culprit), (culprit, singular)),
    )


def _garbage(vanish: Vanish, op: Op) -> Finding:
    amax = max(vanish.context.ranges[value].amax for value in op.values)
    fresh = max(vanish.context.beside[value].fresh for value in op.values)
    low = vanish.context.low
    return found(
        __name__,
        "note" if vanish.shielded(op) else "error",
        op,
        f"{base(op)}: nothing above {amax:.3g} → a relative error of {fresh:.2g} in {low.name}, and an output keeps it",
        Evidence(
            "OBSERVED",
            f"magnitudes up to {amax:.3g}; {low.name} loses digits below {low.min_normal or 0.0:.3g}",
            (("amax", amax), ("limit", low.min_normal or 0.0), ("error", fresh)),
        ),
        remedy="scale the numbers up first, or keep them in high precision until they are back in range",
        pins=vanish.pins((op,), vanish.readers_of_small(op), vanish.makers_of_small(op)),
    )


def _state(vanish: Vanish, state: Op, op: Op) -> Finding:
    amax, low = vanish.context.ranges[state.key].amax, vanish.context.policy.low
    return found(
        __name__,
        "note" if vanish.shielded(op) else "error",
        op,
        f"{base(op)}: {state.key} holds nothing above {amax:.3g} → zero in {low}",
        Evidence(
            "PROVED",
            f"zero at {vanish.zero_at:.3g}, largest {amax:.3g}",
            (("amax", amax), ("limit", vanish.zero_at)),
        ),
        remedy="rescale the tensor, or keep it and the ops that read it in high precision",
        of=state.key,
        pins=vanish.pins((op,), vanish.readers_of_small(op)),
    )


def _vanishes(vanish: Vanish, value: str) -> bool:
    seen = vanish.context.ranges.get(value)
    return seen is not None and seen.basis == "PROVED" and 0 < seen.amax <= vanish.zero_at


def _differs(context: Context, op: Op) -> bool:
    """The low model's result is garbage here, and what else the op reads was not."""
    made = [context.beside[value] for value in op.values if value in context.beside]
    read = [context.beside[o.value] for o in op.operands if o.value in context.beside]
    garbage = any(each.drift >= _GARBAGE or each.lost for each in made)
    return garbage and not any(each.drift >= _GARBAGE or each.lost for each in read)


def _erased(vanish: Vanish, op: Op) -> bool:
    """Whether the op itself, not its operands, is what is rounded away, in every element."""
    context = vanish.context
    for value in op.values:
        beside, seen = context.beside.get(value), context.ranges.get(value)
        if beside is not None and seen is not None and beside.fresh >= _GARBAGE:
            return 0 < seen.amax <= (context.low.min_normal or 0.0)
    return False


def _is_wrong(beside: Beside) -> bool:
    return beside.drift >= _GARBAGE or beside.lost > 0 or beside.changed >= _CHANGED


def _persists(context: Context, op: Op) -> bool:
    """Whether an error of that size reaches an output by ops that all have it."""
    waiting, seen = list(op.values), set(op.values)
    while waiting:
        value = waiting.pop()
        if value in context.graph.outputs:
            return True
        for reader in context.readers.get(value, ()):
            for made in reader.values:
                beside = context.beside.get(made)
                if made not in seen and beside is not None and _is_wrong(beside):
                    seen.add(made)
                    waiting.append(made)
    return False


def bad() -> Example:
    import torch
    from torch import nn

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            small = x * 1e-9  # PA110
            y: torch.Tensor = small * 1e9
            return y

    return Example(Model(), (torch.tensor([1.0, 2.0]),), policy="fp16-inference")


def good() -> Example:
    import torch
    from torch import nn

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            small = x * 1e-3
            y: torch.Tensor = small * 1e3
            return y

    return Example(Model(), (torch.tensor([1.0, 2.0]),), policy="fp16-inference")
