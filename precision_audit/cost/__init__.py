"""What a plan costs on a device: time and memory, predicted from shapes and the device's row, never measured here.

Takes a graph, the plan that was made for it, the policy, the device and what was measured of the model; gives `Cost`:
seconds of every op in the high format, in the low one and under the plan, of casts and of the optimizer's update, peak
memory, the largest batch that fits. "Low" is the model as a cast of all of it leaves it: every op that can run low, no
casts. Decides nothing: that is the plan's business, which charges by the same functions.

roofline    seconds of one op and one cast
swapped     seconds of a linear under a recipe of quantisation
products    the matrix products in an op, and what share of its peak a GPU reaches with them
rates       what kernels were measured to reach, read off between sizes
memory      bytes at the peak
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

from precision_audit import ops
from precision_audit.cost import roofline, swapped
from precision_audit.cost.memory import STATE, all_in, batch_rows, largest_batch, memory, under
from precision_audit.cost.products import bandwidth_of
from precision_audit.formats import bytes_of, is_float
from precision_audit.hardware import has_tf32
from precision_audit.plan.reading import alike
from precision_audit.recipes import Recipe, recipe
from precision_audit.records import (
    Cost,
    Facts,
    Graph,
    Hardware,
    Layer,
    Mode,
    ModuleCost,
    Op,
    OpCost,
    Plan,
    Policy,
    Tensor,
)

_UPDATE_TENSORS = 7  # read or written by Adam's update for each parameter: p, g, m, v in; p, m, v out


def cost(
    graph: Graph, plan: Plan, policy: Policy, hardware: Hardware, facts: Facts, layers: Sequence[Layer] = ()
) -> Cost:
    """Of one step at the example's sizes. `layers` are the verdicts on single linears, made elsewhere."""
    prices = _Prices(graph, plan, policy, hardware)
    found = [
        prices.op(position) for position, op in enumerate(graph.ops) if op.kind not in STATE and op.kind != "input"
    ]
    free = {op.key for op in graph.ops if _free(op, policy)}
    high, low, made = (
        all_in(graph, policy.high, policy.high),
        all_in(graph, policy.low, policy.high),
        under(graph, plan),
    )
    spent_high, spent_low = memory(graph, high, facts), memory(graph, low, facts, low_states=policy.low)
    spent = memory(graph, made, facts)
    whole_high, casts = sum(each.seconds_high for each in found), prices.casts()
    update = _update(graph, hardware)
    rows = batch_rows(graph)
    return Cost(
        device=hardware.name,
        measured=bool(hardware.rates),
        seconds_high=whole_high + update,
        seconds_low=sum(each.seconds_low for each in found) + update * bytes_of(policy.low) / bytes_of("fp32"),
        seconds=sum(each.seconds for each in found) + casts + update,
        cast_seconds=casts,
        touchable=sum(each.seconds_high for each in found if each.op in free) / (whole_high + update or 1.0),
        memory_high=spent_high,
        memory_low=spent_low,
        memory=spent,
        capacity=int(hardware.memory),
        batch=rows,
        largest_batch=largest_batch(graph, made, spent, hardware.memory, rows),
        largest_batch_high=largest_batch(graph, high, spent_high, hardware.memory, rows),
        ops=tuple(found),
        modules=tuple(_modules(graph, found)),
        layers=tuple(layers),
        update_seconds=update,
        fp32_products=(roofline.compute_format(policy) or "fp32") if has_tf32(hardware) else "",
    )


class _Prices:
    """Seconds of the ops of one graph; ops that differ in names alone are priced once."""

    def __init__(self, graph: Graph, plan: Plan, policy: Policy, hardware: Hardware) -> None:
        self._graph, self._plan, self._policy, self._hardware = graph, plan, policy, hardware
        self._mode: Mode = graph.mode
        self._tensors: dict[str, Tensor] = {
            value: tensor for op in graph.ops for value, tensor in zip(op.values, op.outputs, strict=True)
        }
        self._formats = dict(plan.formats)
        self._compute = roofline.compute_format(policy)
        self._same = alike(graph)
        self._recipes = _recipes(graph, plan)
        norms = {op.key for op in graph.ops if op.kind == "norm"}
        self._with_norm = {swap.op for swap in plan.swaps if not norms.isdisjoint(swap.covers)}
        self._work: dict[int, tuple[int, int]] = {}
        self._known: dict[tuple[int, str], float] = {}
        self._swapped: dict[tuple[int, Recipe], float] = {}
        self._bounds: dict[tuple[int, str], roofline.Bound] = {}

    def op(self, position: int) -> OpCost:
        op, same, low = self._graph.ops[position], self._same[position], self._policy.low
        captured = _captured(op, self._policy.high)
        runs = self._formats.get(op.key, captured)
        inputs = [self._tensors[operand.value] for operand in op.operands if operand.value in self._tensors]
        if same not in self._work:
            self._work[same] = ops.flops(op, inputs), ops.bytes_moved(op, inputs, "")
        high = self._seconds(position, captured, inputs)
        as_low = self._seconds(position, low, inputs) if _free(op, self._policy) else high
        row = self._recipes.get(op.key)
        if row is not None:
            if (same, row) not in self._swapped:
                self._swapped[same, row] = swapped.seconds(op, inputs, row, low, self._hardware, self._mode)
            spent = self._swapped[same, row]
            if op.key in self._with_norm:
                spent -= swapped.saved_by_norm(op, inputs, row, low, self._hardware)
        else:
            spent = self._seconds(position, runs, inputs)
        flops, moved = self._work[same]
        return OpCost(op.key, flops, moved, high, as_low, spent, self._bound(position, runs, inputs))

    def casts(self) -> float:
        """Of all casts at run time."""
        maker = {value: op for op in self._graph.ops for value in op.values}
        spent = 0.0
        for cast in self._plan.casts:
            tensor, op = self._tensors[cast.value], maker[cast.value]
            made = tensor.format if op.kind in STATE else self._formats.get(op.key, tensor.format)
            spent += roofline.cast_seconds(tensor, made, cast.to, self._hardware, self._mode)
        return spent

    def _seconds(self, position: int, format_: str, inputs: Sequence[Tensor]) -> float:
        key = self._same[position], format_
        if key not in self._known:
            compute = self._compute if format_ == self._policy.high else ""
            op = self._graph.ops[position]
            self._known[key] = roofline.op_seconds(op, inputs, format_, self._hardware, self._mode, compute=compute)
        return self._known[key]

    def _bound(self, position: int, format_: str, inputs: Sequence[Tensor]) -> roofline.Bound:
        key = self._same[position], format_
        if key not in self._bounds:
            self._bounds[key] = roofline.bound(self._graph.ops[position], inputs, format_, self._hardware)
        return self._bounds[key]


def _recipes(graph: Graph, plan: Plan) -> Mapping[str, Recipe]:
    """The recipe of every linear that a swap computes, covered ones too."""
    found = {}
    linears = {op.key for op in graph.ops if op.kind == "matmul"}
    for swap in plan.swaps:
        for key in (swap.op, *(each for each in swap.covers if each in linears)):
            found[key] = recipe(swap.backend, swap.recipe)
    return found


def _captured(op: Op, high: str) -> str:
    """The format of its floats as captured: the high one where any of them has it."""
    floats = [tensor.format for tensor in op.outputs if is_float(tensor.format)]
    return floats[0] if floats and high not in floats else high


def _free(op: Op, policy: Policy) -> bool:
    """Whether a plan may choose the format of an op at all."""
    if op.kind in STATE or op.kind == "input" or op.fixed or not ops.has_label(op):
        return False
    return any(tensor.format == policy.high for tensor in op.outputs)


def _update(graph: Graph, hardware: Hardware) -> float:
    """Seconds of the optimizer's update, as of Adam's in one kernel; 0 in inference."""
    if graph.mode == "inference":
        return 0.0
    again = {name for names in graph.storages for name in names[1:]}
    trained = (op for op in graph.ops if op.kind == "parameter" and op.outputs[0].requires_grad and op.key not in again)
    moved = sum(prod(op.outputs[0].hint) * bytes_of(op.outputs[0].format) for op in trained) * _UPDATE_TENSORS
    return moved / bandwidth_of(hardware) + hardware.launch if moved else 0.0


def _modules(graph: Graph, found: Iterable[OpCost]) -> list[ModuleCost]:
    """Sums by module path, in the order of the graph; "" is the model."""
    where = {op.key: op.module for op in graph.ops}
    sums: dict[str, list[float]] = {"": [0.0, 0.0, 0.0]}
    for each in found:
        parts = where[each.op].split(".") if where[each.op] else []
        for depth in range(len(parts) + 1):
            total = sums.setdefault(".".join(parts[:depth]), [0.0, 0.0, 0.0])
            for index, value in enumerate((each.seconds_high, each.seconds_low, each.seconds)):
                total[index] += value
    return [ModuleCost(module, *total) for module, total in sums.items()]
