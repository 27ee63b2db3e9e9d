"""Peak memory of one step, and the largest batch that fits.

Takes the graph, the plan (or one format for everything) and the facts; gives `Memory` in bytes. Inference: weights, and
the values that live at the busiest moment of the graph's order, each from its maker to its last reader. Training:
weights, what the forward pass saves for the backward one, gradients, the optimizer's state, and weights that are kept
in a second format. A view has the memory of what it views; memory under several names counts once. Never runs anything,
knows no allocator: workspaces, fragments and what the process holds besides are not in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

from precision_audit import ops
from precision_audit.formats import FORMATS, bytes_of, is_float
from precision_audit.recipes import RECIPES
from precision_audit.records import Cast, Facts, Fold, Graph, Memory, Op, Plan, Tensor

STATE = ("parameter", "buffer", "constant")
_ADAM_STATES = 2  # tensors for each parameter where the optimizer is not known: Adam's two
_USABLE = 0.9  # of the device, the rest being the allocator's, the kernels' and the libraries'
_FAR = 2**20  # times the example's batch: where only what grows with it counts

# What backward needs of an op, by kind: "inputs", "output", "second" (indices: what is not the first operand) or
# "nothing". Kinds that are not named save their inputs.
_SAVES = {
    "view_layout": "nothing", "concat": "nothing", "cast": "nothing", "factory": "nothing", "comparison": "nothing",
    "control": "nothing", "int_bool": "nothing", "random": "nothing", "gather_index": "second", "softmax": "output",
    "reduction": "nothing", "scatter_write": "second", "attention": "both",
}  # fmt: skip
_SAVES_OF_OP = {
    "add": "nothing", "sub": "nothing", "rsub": "nothing", "neg": "nothing", "clone": "nothing", "relu": "output",
    "exp": "output", "tanh": "output", "sigmoid": "output", "sqrt": "output", "rsqrt": "output", "reciprocal": "output",
    "threshold": "output", "hardtanh": "inputs", "dropout": "mask", "max_pool2d": "indices", "max": "indices",
    "min": "indices", "embedding": "second",
}  # fmt: skip
_STOPS = ("detach", "detach_", "argmax", "argmin")


@dataclass(frozen=True, slots=True)
class Held:
    """Formats under one assignment: of an op's outputs, of what an op reads by value, of stored weights."""

    made: Mapping[str, str]  # value → format; absent: as captured
    read: Mapping[tuple[str, str], str] = field(default_factory=dict)  # (value, op key) → format of the cast it reads
    narrow: Mapping[str, float] = field(default_factory=dict)  # swapped op → bytes of an element it saves of its input
    weights: int = 0
    copies: int = 0


def memory(graph: Graph, held: Held, facts: Facts, *, low_states: str = "") -> Memory:
    """At the example's sizes. `low_states`: the format of gradients and optimizer state where not the parameters'."""
    live = _Lives(graph, held)
    if graph.mode == "inference":
        return Memory(held.weights, int(live.peak(1.0)), copies=held.copies)
    trained = [op for op in graph.ops if op.kind == "parameter" and op.outputs[0].requires_grad]
    gradients = sum(_bytes(op.outputs[0], low_states) for op in _once(graph, trained))
    return Memory(
        weights=held.weights,
        activations=int(live.saved(1.0)),
        gradients=gradients,
        optimizer=_states(facts, gradients, low_states),
        copies=held.copies,
    )


def all_in(graph: Graph, format_: str, high: str) -> Held:
    """Everything that is captured high in one format, weights included."""
    made = {
        value: format_
        for op in graph.ops if not op.fixed or op.kind in STATE
        for value, tensor in zip(op.values, op.outputs, strict=True) if tensor.format == high
    }  # fmt: skip
    weights = sum(_bytes(op.outputs[0], made.get(op.key, "")) for op in _once(graph, _state(graph)))
    return Held(made, weights=weights)


def under(graph: Graph, plan: Plan) -> Held:
    """What a plan makes, casts and stores."""
    formats = dict(plan.formats)
    made = {
        value: formats[op.key]
        for op in graph.ops if op.key in formats and op.kind not in STATE
        for value, tensor in zip(op.values, op.outputs, strict=True) if is_float(tensor.format)
    }  # fmt: skip
    conversions: list[Cast | Fold] = [*plan.casts, *plan.folds]
    read = {(each.value, key): each.to for each in conversions for key in each.consumers}
    stored = {fold.value: fold.to for fold in plan.folds if not fold.copy}
    recipes = {swap.op: RECIPES[swap.backend, swap.recipe] for swap in plan.swaps}
    quantised: dict[str, float] = {}
    copies = sum(fold.bytes for fold in plan.folds if fold.copy)
    known = {op.key: op for op in graph.ops}
    narrow: dict[str, float] = {}
    for key, recipe in recipes.items():
        weight = next((o.value for o in known[key].operands if o.argument == "weight"), "")
        size = bytes_of(recipe.scheme) if recipe.scheme in FORMATS else 1.0
        if recipe.backend == "transformer_engine":
            # It keeps the quantised input alone, and a quantised weight in both orders beside the master.
            narrow[key] = size
            copies += int(2 * prod(known[weight].outputs[0].hint) * size) if weight in known else 0
        elif recipe.stored and weight in known:
            quantised[weight] = size
    if graph.mode == "training":
        parameters = {op.key for op in _state(graph)}
        copies += sum(
            int(prod(known[each.value].outputs[0].hint) * bytes_of(each.to))
            for each in plan.casts if each.value in parameters
        )  # fmt: skip
    weights = sum(_stored(op, stored, quantised) for op in _once(graph, _state(graph)))
    return Held(made, read, narrow, weights, copies)


def largest_batch(graph: Graph, held: Held, spent: Memory, capacity: float, rows: int) -> int:
    """Rows that fit; 0 where that is not known. Everything but activations stays as it is."""
    room = capacity * _USABLE - (spent.total - spent.activations)
    if not capacity or not rows or room <= 0:
        return 0
    live = _Lives(graph, held)
    at = live.peak if graph.mode == "inference" else live.saved
    near, far = at(_FAR), at(2 * _FAR)
    slope = (far - near) / _FAR
    if slope <= 0:
        return 0
    factor = (room - max(0.0, near - slope * _FAR)) / slope
    return max(0, int(factor * rows))


def batch_rows(graph: Graph) -> int:
    """Rows of the example's batch: the leading size that all inputs with two dimensions or more share; 0 for none."""
    inputs = [op.outputs[0] for op in graph.ops if op.kind == "input" and op.outputs and len(op.outputs[0].hint) >= 2]
    leading = {tensor.hint[0] for tensor in inputs}
    return leading.pop() if len(leading) == 1 else 0


class _Lives:
    """Bytes of values over the graph's order; what follows from an input grows with the batch."""

    def __init__(self, graph: Graph, held: Held) -> None:
        self._graph, self._held = graph, held
        self._base: dict[str, str] = {}  # value → the value whose memory it has
        self._tensor: dict[str, Tensor] = {}
        self._grows: dict[str, bool] = {}
        self._learns: dict[str, bool] = {}  # a gradient reaches it; what export leaves on the values does not say so
        for op in graph.ops:
            entering = [each.value for each in op.operands]
            shares = bool(entering) and op.kind not in STATE and _is_view(op, [self._tensor[v] for v in entering])
            grows = op.kind == "input" or any(self._grows.get(value, False) for value in entering)
            for value, tensor in zip(op.values, op.outputs, strict=True):
                self._tensor[value] = tensor
                self._base[value] = self._base.get(entering[0], entering[0]) if shares or op.mutates else value
                self._grows[value] = grows
                through = any(self._learns.get(each, False) for each in entering) and op.op not in _STOPS
                self._learns[value] = is_float(tensor.format) and (tensor.requires_grad or through)
        self._weights = {op.key for op in graph.ops if op.kind in STATE}

    def peak(self, factor: float) -> float:
        """The most that lives at once, inputs all the while."""
        born: dict[tuple[str, str], int] = {}
        last: dict[tuple[str, str], int] = {}

        def lives(value: str, as_read: str, start: int, end: int) -> None:
            key = self._base[value], as_read
            born.setdefault(key, start)
            last[key] = max(last.get(key, 0), end)

        for position, op in enumerate(self._graph.ops):
            runs = 2 * position + 1  # a cast that it reads is made in the step before, where its source lives too
            for operand in op.operands:
                as_read = self._held.read.get((operand.value, op.key), "")
                if as_read and (self._base[operand.value], as_read) not in born:
                    lives(operand.value, "", runs - 1, runs - 1)
                lives(operand.value, as_read, runs - 1 if as_read else runs, runs)
            for value in op.values:
                lives(value, "", runs, runs)
        end = 2 * len(self._graph.ops)
        for value in self._graph.outputs:
            if value in self._base:
                lives(value, "", end, end)
        change = [0.0] * (end + 2)
        for (value, as_read), start in born.items():
            if value in self._weights:
                continue
            is_input = value in self._grows and "/" not in value
            size = self._size(value, as_read, factor)
            change[start] += size
            change[(end if is_input and not as_read else last[value, as_read]) + 1] -= size
        most = now = 0.0
        for each in change:
            now += each
            most = max(most, now)
        return most

    def saved(self, factor: float) -> float:
        """What backward reads, each memory and format once, and the gradient of the largest value."""
        kept: dict[tuple[str, str], float] = {}
        extra = largest = 0.0
        for op in self._graph.ops:
            if op.kind in (*STATE, "input") or not any(self._learns[value] for value in op.values):
                continue
            for value in op.values:
                largest = max(largest, self._size(value, "", factor))
            for value, as_read in self._needed(op):
                if value not in self._weights:
                    narrow = self._held.narrow.get(op.key)
                    if narrow is None:
                        kept[value, as_read] = self._size(value, as_read, factor)
                    else:
                        kept[value, f"by {op.key}"] = self._elements(value, factor) * narrow
            extra += self._further(op, factor)
        return sum(kept.values()) + extra + largest

    def _needed(self, op: Op) -> Iterator[tuple[str, str]]:
        """(memory, format of the cast it is read through) of what an op saves."""
        what = _SAVES_OF_OP.get(op.op) or _SAVES.get(op.kind, "inputs")
        if what in ("output", "both"):
            yield self._base[op.values[0]], ""
        if what in ("inputs", "both", "second"):
            for operand in op.operands[1 if what == "second" else 0 :]:
                yield self._base[operand.value], self._held.read.get((operand.value, op.key), "")

    def _further(self, op: Op, factor: float) -> float:
        """Masks of a byte, indices of eight."""
        what = _SAVES_OF_OP.get(op.op)
        size = {"mask": 1, "indices": 8}.get(what or "", 0)
        return self._elements(op.values[0], factor) * size

    def _size(self, value: str, as_read: str, factor: float) -> float:
        tensor = self._tensor[value]
        format_ = as_read or self._held.made.get(value, tensor.format)
        return self._elements(value, factor) * (_width(format_) if format_ else 0.0)

    def _elements(self, value: str, factor: float) -> float:
        return prod(self._tensor[value].hint) * (factor if self._grows[value] else 1.0)


def _is_view(op: Op, inputs: list[Tensor]) -> bool:
    return op.kind == "view_layout" and not ops.bytes_moved(op, inputs, "")


def _state(graph: Graph) -> Iterator[Op]:
    return (op for op in graph.ops if op.kind in STATE)


def _once(graph: Graph, found: Iterable[Op]) -> Iterator[Op]:
    """Without further names of the same storage."""
    again = {name for names in graph.storages for name in names[1:]}
    return (op for op in found if op.key not in again)


def _stored(op: Op, stored: Mapping[str, str], quantised: Mapping[str, float]) -> int:
    if op.key in quantised:
        return int(prod(op.outputs[0].hint) * quantised[op.key])
    return _bytes(op.outputs[0], stored.get(op.key, ""))


def _states(facts: Facts, gradients: int, low_states: str) -> int:
    """Of the optimizer that was seen, else Adam's."""
    seen = facts.training.optimizer if facts.training is not None else None
    if seen is None:
        return _ADAM_STATES * gradients
    whole = sum(state.bytes for state in seen.states)
    return int(whole * bytes_of(low_states) / bytes_of("fp32")) if low_states else whole


def _bytes(tensor: Tensor, format_: str = "") -> int:
    chosen = format_ if format_ and is_float(tensor.format) else tensor.format
    return int(prod(tensor.hint) * _width(chosen)) if chosen else 0


def _width(format_: str) -> float:
    return bytes_of(format_)
