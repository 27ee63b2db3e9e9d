"""What a search may choose beside the format of each op: which module takes a linear's place, and who must agree.

Takes `Choices` and prices; gives the swap of each linear that is cheaper than the plain low format at the present worth
of error, and decisions in which what the search has forced is said. The choice comes before the cut: a linear's low
cost is the smallest of its choices' (time + λ · share), and whether it runs low at all is then the cut's to say. A
linear that is swapped reads its weight as captured, so that the low weight's cast and share belong to the plain choice.
Ops that belong together choose one and the same, from what all of them have. Never asks a device or a backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from precision_audit.records import Decision, Graph, Policy, Swap

Source = str | tuple[str, str]  # of error: an op's key, `cast:VALUE`, or the latter with the reader's key

HIGH, LOW = "high", "low"


@dataclass(frozen=True, slots=True)
class Choices:
    """`swaps` by op, `seconds` and `shares` by op and recipe; `together` are ops that get the same. `forced` says what
    an op gets whatever it costs: "high", "low" (no swap), or a recipe's name."""

    swaps: Mapping[str, tuple[Swap, ...]] = field(default_factory=dict)
    seconds: Mapping[tuple[str, str], float] = field(default_factory=dict)
    shares: Mapping[tuple[str, str], float] = field(default_factory=dict)
    together: tuple[tuple[str, ...], ...] = ()
    forced: Mapping[str, str] = field(default_factory=dict)


NO_CHOICES = Choices()


def demanded(decisions: Sequence[Decision], choices: Choices, policy: Policy) -> Sequence[Decision]:
    """The decisions, of free ops those that are forced."""
    if not choices.forced:
        return decisions
    return [
        replace(each, chosen=policy.high if choices.forced[each.op] == HIGH else policy.low)
        if not each.chosen and each.op in choices.forced
        else each
        for each in decisions
    ]


def picked(
    graph: Graph,
    policy: Policy,
    choices: Choices,
    lam: float,
    seconds: Callable[[int, str], float],
    shares: Mapping[Source, float],
) -> list[Swap]:
    """The swap of every linear for which one is the cheapest way to run low, in graph order."""
    if not choices.swaps:
        return []
    position = {op.key: i for i, op in enumerate(graph.ops)}
    grouped = set(chain.from_iterable(choices.together))
    groups = [*choices.together, *((key,) for key in choices.swaps if key not in grouped)]
    found: list[Swap] = []
    for keys in groups:
        plain = sum(
            seconds(position[key], policy.low) + lam * _plain_share(graph, position[key], shares) for key in keys
        )
        found.extend(_cheapest(keys, choices, lam, plain))
    return sorted(found, key=lambda swap: position[swap.op])


def _cheapest(keys: Sequence[str], choices: Choices, lam: float, plain: float) -> Iterable[Swap]:
    """One recipe for all of `keys`, or nothing where the plain low format costs as little."""
    offers = [{swap.recipe: swap for swap in choices.swaps.get(key, ())} for key in keys]
    asked = {choices.forced[key] for key in keys if key in choices.forced}
    best, least = "", plain
    for recipe in offers[0]:
        if not all(recipe in each for each in offers):
            continue
        cost = sum(choices.seconds[key, recipe] + lam * choices.shares.get((key, recipe), 0.0) for key in keys)
        if asked == {recipe} or (not asked and cost < least):
            best, least = recipe, cost
    return [each[best] for each in offers] if best else []


def _plain_share(graph: Graph, position: int, shares: Mapping[Source, float]) -> float:
    """Of the op itself in the low format, and of its weight and bias, which a swap reads as captured."""
    op = graph.ops[position]
    read = [(f"cast:{each.value}", op.key) for each in op.operands if each.argument != "input"]
    return shares.get(op.key, 0.0) + sum(shares.get(source, 0.0) for source in read)
