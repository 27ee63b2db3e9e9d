"""By which recipes each linear could be swapped on a device, and which linears must choose alike.

Takes a graph, a policy and the device; gives `Swap`s by op, one per way of quantising, and groups of op keys. A recipe
counts where the device has it, the mode is its own and the sizes fit; of several that quantise alike the cheapest
stands for all (in inference one that stores its weights quantised), and one that can be built here before one that
cannot. Where a backend builds no module the swap can be planned and emulated all the same, unless only
what can be built is asked for. Chooses nothing and runs nothing.

Together go the linears of one parent module that read the same value and are of one kind of shape: q, k and v of an
attention, gate and up of an MLP. A library fuses them or quantises their input once; a router beside them, whose
outputs are few, goes by itself. Calls of one module go together because a swap replaces the module.
"""

from __future__ import annotations

from collections.abc import Iterator

from precision_audit import backends
from precision_audit.backends._linear import Linear, describe, index_of
from precision_audit.cost.swapped import seconds
from precision_audit.divisible import divisible
from precision_audit.hardware.recipes import lacking
from precision_audit.policy.match import Matcher
from precision_audit.recipes import RECIPES, Recipe
from precision_audit.records import Graph, Hardware, Op, Policy, Refusal, Swap, Tensor

BUILDABLE = ("torchao", "torchao_quantize")  # backends whose modules run here, emulated where the device is another
_HEADS = 32  # outputs from which a narrower product can be heads of an attention (grouped queries), not a router's


def alternatives(
    graph: Graph, policy: Policy, hardware: Hardware, built_only: bool = False
) -> dict[str, tuple[Swap, ...]]:
    """Swaps by op key, in graph order; ops without any are left out."""
    rows = [row for row in RECIPES.values() if _usable(row, graph, hardware, built_only)]
    matcher = Matcher(policy, graph)
    found: dict[str, tuple[Swap, ...]] = {}
    for op in graph.ops:
        if op.op == "linear" and not op.fixed and rows:
            rule = matcher.first(op).rule
            allowed = [
                row for row in rows
                if rule.classification == "follow"
                or (rule.classification == "fp8-eligible" and row.backend == rule.backend
                    and rule.recipe in ("", row.name))
            ]  # fmt: skip
            swaps = tuple(_by_scheme(op, graph, hardware, allowed, policy.low))
            if swaps:
                found[op.key] = swaps
    return found


def together(graph: Graph) -> tuple[tuple[str, ...], ...]:
    """Groups of linears that get the same, each in graph order."""
    tensors = {value: tensor for op in graph.ops for value, tensor in zip(op.values, op.outputs, strict=True)}
    groups: list[list[str]] = []
    by_place: dict[tuple[str, str], list[tuple[str, int]]] = {}
    by_module: dict[str, list[str]] = {}
    for op in graph.ops:
        read = {operand.argument: operand.value for operand in op.operands}
        if op.op != "linear" or op.fixed or not {"input", "weight"} <= read.keys() or not op.module:
            continue
        wide = tensors[read["weight"]].hint[0]
        by_place.setdefault((op.module.rpartition(".")[0], read["input"]), []).append((op.key, wide))
        by_module.setdefault(op.module, []).append(op.key)
    for members in by_place.values():
        groups.extend(_of_one_kind(members))
    groups.extend(keys for keys in by_module.values() if len(keys) > 1)
    return _joined(groups, {op.key: i for i, op in enumerate(graph.ops)})


def lacks(policy: Policy, hardware: Hardware) -> Iterator[str]:
    """Rules that name a recipe which the device has not, with the reason."""
    for rule in policy.rules:
        row = RECIPES.get((rule.backend, rule.recipe)) if rule.classification == "fp8-eligible" else None
        if row is not None and (why := lacking(row, hardware)):
            yield f"{rule.origin} {rule.name}: {why}"


def unbuilt(graph: Graph, policy: Policy, hardware: Hardware) -> tuple[str, ...]:
    """Backend and recipe of the swaps that are left out where only what can be built here is considered."""
    whole = alternatives(graph, policy, hardware)
    found = {(swap.backend, swap.recipe) for swaps in whole.values() for swap in swaps if swap.backend not in BUILDABLE}
    return tuple(f"{backend} {recipe}" for backend, recipe in sorted(found))


def scheme_of(swap: Swap) -> str:
    """How a swap quantises."""
    return RECIPES[swap.backend, swap.recipe].scheme


def _usable(row: Recipe, graph: Graph, hardware: Hardware, built_only: bool) -> bool:
    if graph.mode not in row.modes or not row.activations or (built_only and row.backend not in BUILDABLE):
        return False
    return not lacking(row, hardware)


def _by_scheme(op: Op, graph: Graph, hardware: Hardware, rows: list[Recipe], low: str) -> Iterator[Swap]:
    linear = describe(op, graph, trained=graph.mode == "training")
    if isinstance(linear, str):
        return
    inputs = _inputs(op, graph)

    def price(row: Recipe) -> tuple[bool, float]:
        return row.backend not in BUILDABLE, seconds(op, inputs, row, low, hardware, graph.mode)

    seen: set[str] = set()
    for row in sorted(rows, key=price):  # the table's order where they cost the same
        if row.scheme in seen:
            continue
        swap = _offered(op, graph, hardware, row, linear)
        if swap is not None:
            seen.add(row.scheme)
            yield swap


def _inputs(op: Op, graph: Graph) -> list[Tensor]:
    tensors = index_of(graph).tensors
    return [tensors[operand.value] for operand in op.operands if operand.value in tensors]


def _offered(op: Op, graph: Graph, hardware: Hardware, row: Recipe, linear: Linear) -> Swap | None:
    """The backend's own offer; where it builds nothing here, what the table says of sizes."""
    backend = backends.listed().get(row.backend)
    found = backend.offer(op, graph, row.name, graph.mode, hardware) if backend is not None else None
    if isinstance(found, Swap):
        return found
    if isinstance(found, Refusal) and row.backend in BUILDABLE:
        return None
    constraints: list[str] = []
    needed = row.multiple_training if graph.mode == "training" else row.multiple
    for size, multiple in zip((linear.k, linear.n, linear.m), needed, strict=True):
        fit = divisible(size, multiple)
        if fit.verdict == "never":
            return None
        constraints.extend([fit.condition] if fit.condition else [])
    kind = "te.Linear" if row.backend == "transformer_engine" else row.backend
    sizes = (linear.k, linear.n, linear.m)
    return Swap(op.key, op.module, row.backend, row.name, *sizes, tuple(constraints), linear.notes, kind)


def _of_one_kind(members: list[tuple[str, int]]) -> Iterator[list[str]]:
    """Members whose widths are equal, or divide one another and are no router's."""
    left = sorted(dict(members).items(), key=lambda each: -each[1])
    while len(left) > 1:
        _, widest = left[0]
        same = [key for key, wide in left if wide == widest or (widest % wide == 0 and wide >= _HEADS)]
        if len(same) > 1:
            yield same
        left = [each for each in left if each[0] not in same]


def _joined(groups: list[list[str]], position: dict[str, int]) -> tuple[tuple[str, ...], ...]:
    """Groups that share a member become one."""
    found: list[set[str]] = []
    for group in groups:
        meets = [each for each in found if not each.isdisjoint(group)]
        found = [each for each in found if each.isdisjoint(group)]
        found.append(set(group).union(*meets))
    ordered = (tuple(sorted(each, key=position.__getitem__)) for each in found)
    return tuple(sorted(ordered, key=lambda keys: position[keys[0]]))
