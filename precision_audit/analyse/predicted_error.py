"""What a plan's error will be, and what to keep high so that it is smaller.

Takes `Share`s and a plan, or a set of ops that run low; gives the predicted relative error of the outputs, and the
fewest ops that must run high for it to fall to a target. Never runs anything. What is unknown counts for nothing:
a prediction holds for what the shares know.

An op kept high among low ones saves little by itself, since what it makes is rounded for its low readers all the same.
Which ops to keep high together is therefore asked of a minimum cut, as the planner asks for its formats: an op that
runs low pays its share, a value made high and read low the share of its rounding, an op kept high a price; the weight
of error against price is raised until the prediction meets the target.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from precision_audit import ops
from precision_audit.analyse.deltas import swap_source
from precision_audit.plan.contract import FREE
from precision_audit.plan.cut import DOWN, Group, Problem, solve
from precision_audit.policy.match import STATE
from precision_audit.recipes import RECIPES
from precision_audit.records import Cast, Fold, Graph, Op, Plan, Share, Tensor

_STEPS = 40  # bisections of the weight of error against price, over 24 decades
_FEW = 64  # up to so many ops kept high, each is tried without


def predicted_error(shares: Iterable[Share], plan: Plan, graph: Graph) -> float:
    """Relative error of all outputs together: the root of the sum of squares, each output relative to its norm."""
    formats, low = dict(plan.formats), plan.low
    swapped = {key for swap in plan.swaps for key in swap.linears}
    sources = {swap_source(key) for key in swapped}
    rows = ((swap, RECIPES.get((swap.backend, swap.recipe))) for swap in plan.swaps)
    sources |= {swap_source(key, row.scheme) for swap, row in rows if row is not None for key in swap.linears}
    computed = {op.key for op in graph.ops if op.kind not in STATE}
    runs_low = {key for key in computed if formats.get(key) == low and key not in swapped}
    read: dict[str, set[str]] = {}
    made: list[Cast | Fold] = [*plan.casts, *plan.folds]
    for each in made:
        if each.to == low:
            read.setdefault(each.value, set()).update(each.consumers)
    made_low = {value for op in graph.ops if op.key in runs_low for value in op.values}
    return math.sqrt(
        max(0.0, sum(share.share for share in shares if _incurred(share, runs_low, sources, read, made_low)))
    )


def error_when_low(shares: Iterable[Share], low: Collection[str], graph: Graph, swapped: Collection[str] = ()) -> float:
    """The same where the ops `low` run low (those in `swapped` in fp8), every other high, and a value made high is
    rounded for its low readers."""
    return _Sources(shares, graph, low, swapped).error(set())


def heaviest(
    shares: Iterable[Share],
    plan: Plan | Collection[str],
    graph: Graph,
    target: float,
    swapped: Collection[str] = (),
) -> tuple[str, ...]:
    """Keys of the fewest ops to keep high so that the predicted error is at most `target`, in graph order. The ops that
    run low are those of the plan; or `plan` names them, and `swapped` those in fp8. A product counts for more than one
    op, by its part of the work: to keep it high costs more."""
    if isinstance(plan, Plan):
        swapped = [key for swap in plan.swaps for key in swap.linears]
        plan = [key for key, format in plan.formats if format == plan.low]
    sources = _Sources(shares, graph, plan, swapped)
    if not sources.keys or sources.error(set()) <= target:
        return ()
    below, above = -30.0, 30.0  # of log2 of the weight, a price of one op against the whole error
    best = set(sources.keys)
    for _ in range(_STEPS):
        middle = (below + above) / 2
        kept = sources.kept(2.0**middle)
        if sources.error(kept) <= target:
            above, best = middle, kept
        else:
            below = middle
    return tuple(key for key in sources.keys if key in _without_the_idle(sources, best, target))


def needless(
    shares: Iterable[Share],
    low: Collection[str],
    graph: Graph,
    kept: Collection[str],
    candidates: Iterable[str],
    target: float,
    swapped: Collection[str] = (),
) -> set[str]:
    """Those of `candidates` that need not be high among `kept` for the predicted error to stay within `target`, dearest
    first; none where it is above that with all of them. `low` are the ops that would run low if nothing were kept."""
    sources, still, idle = _Sources(shares, graph, low, swapped), set(kept), set[str]()
    if not sources.error(still) <= target:
        return idle
    for key in sorted(candidates, key=lambda key: (-sources.price.get(key, 0.0), key)):
        if sources.error(still - {key}) <= target:
            still.discard(key)
            idle.add(key)
    return idle


def weights(shares: Iterable[Share], swapped: Collection[str]) -> dict[str, float]:
    """By op, what it adds when it runs low: its own share and that of the values rounded for it."""
    adds: dict[str, float] = {}
    for share in shares:
        key = share.reader or share.source.removeprefix("swap:")
        own = share.reader or (share.source != key) == (key in swapped)
        if own and not share.pair:
            adds[key] = adds.get(key, 0.0) + share.share
    return adds


def _without_the_idle(sources: _Sources, kept: set[str], target: float) -> set[str]:
    """Drop what is not needed, dearest first; the cut trades by weight, and may keep one op too many."""
    if len(kept) > _FEW:
        return kept
    for key in sorted(kept, key=lambda key: (-sources.price[key], key)):
        if sources.error(kept - {key}) <= target:
            kept = kept - {key}
    return kept


class _Sources:
    """The shares as a problem of labels: which ops are low decides which sources count."""

    def __init__(self, shares: Iterable[Share], graph: Graph, low: Collection[str], swapped: Collection[str]) -> None:
        wanted = set(low) | set(swapped)
        self._swapped = set(swapped)
        self.keys = [op.key for op in graph.ops if op.key in wanted and op.kind not in STATE]
        self._shares = [share for share in shares if share.share]
        self._maker = {value: op.key for op in graph.ops for value in op.values}
        self.price = _prices(graph, self.keys)
        self._number = {key: number for number, key in enumerate(self.keys)}
        self._as_arrays()

    def _as_arrays(self) -> None:
        """Each share's number of its op or reader, second reader and maker; -1, the entry past the last, never runs
        low. A share without a second reader has its reader for one."""
        number = self._number
        self._is_swapped = np.array([key in self._swapped for key in self.keys] + [False])
        self._worth = np.array([share.share for share in self._shares])
        self._is_read = np.array([bool(share.reader) for share in self._shares], dtype=bool)
        self._by_swap = np.array([share.source.startswith("swap:") for share in self._shares], dtype=bool)
        keys = [share.reader or share.source.removeprefix("swap:") for share in self._shares]
        made = [self._maker.get(share.source[len("cast:") :], "") if share.reader else "" for share in self._shares]
        self._key = np.array([number.get(key, -1) for key in keys], dtype=int)
        self._second = np.array(
            [number.get(share.pair or key, -1) for share, key in zip(self._shares, keys, strict=True)], dtype=int
        )
        self._source = np.array([number.get(key, -1) for key in made], dtype=int)

    def error(self, kept: set[str]) -> float:
        """Predicted error with the ops `kept` high."""
        low = np.array([key not in kept for key in self.keys] + [False])  # the last stands for what never runs low
        own = np.where(self._by_swap, (low & self._is_swapped)[self._key], (low & ~self._is_swapped)[self._key])
        read = low[self._key] & low[self._second] & ~low[self._source]
        counted = np.where(self._is_read, read, own)
        return math.sqrt(max(0.0, float(self._worth[counted].sum())))

    def kept(self, weight: float) -> set[str]:
        """The ops to keep high when the whole error is worth `weight` prices."""
        count = len(self.keys)
        whole = self.error(set()) ** 2 or 1.0
        high = np.array([self.price[key] for key in self.keys])
        low = np.zeros(count)
        groups = []
        for share in self._shares:
            worth = weight * min(share.share / whole, 1e6)
            key = share.reader or share.source.removeprefix("swap:")
            number = self._number.get(key)
            if number is None or share.pair or share.share < 0 or not self._counts(share):
                continue
            source = self._number.get(self._maker.get(share.source[len("cast:") :], "")) if share.reader else None
            if source is None:
                low[number] += worth
            elif source != number:
                groups.append(Group(source, (number,), worth, DOWN))
        free = np.full(count, FREE, dtype=np.int8)
        chosen = solve(Problem(high, low, free, (), groups))
        return {key for key, is_low in zip(self.keys, chosen.tolist(), strict=True) if not is_low}

    def _counts(self, share: Share) -> bool:
        """An op that is swapped has its fp8 product's share instead of its own."""
        if share.reader:
            return True
        return share.source.startswith("swap:") or share.source not in self._swapped


def _incurred(
    share: Share,
    low: Collection[str],
    swapped: Collection[str],  # sources of the swaps
    read: Mapping[str, set[str]],
    made_low: Collection[str],
) -> bool:
    if not share.reader:
        return share.source in (swapped if share.source.startswith("swap:") else low)
    value = share.source[len("cast:") :]
    readers = read.get(value, ())
    return value not in made_low and share.reader in readers and (not share.pair or share.pair in readers)


def _prices(graph: Graph, keys: Sequence[str]) -> dict[str, float]:
    """1, and for what does most of the work as much as many ops."""
    tensors: dict[str, Tensor] = {v: t for op in graph.ops for v, t in zip(op.values, op.outputs, strict=True)}
    by_key = {op.key: op for op in graph.ops}
    work = {key: _flops(by_key[key], tensors) for key in keys}
    whole = sum(work.values()) or 1
    return {key: 1.0 + 4.0 * len(keys) * work[key] / whole for key in keys}


def _flops(op: Op, tensors: Mapping[str, Tensor]) -> int:
    return ops.flops(op, [tensors[operand.value] for operand in op.operands if operand.value in tensors])
