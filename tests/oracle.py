"""What the planner's optimum is measured against: the charged model by brute force, and random sketches."""

from __future__ import annotations

import itertools
from collections import defaultdict

from hypothesis import strategies as st

from precision_audit.cost import roofline
from precision_audit.plan.promotion import PROMOTING
from tests.sketches import H100, Sketch


class Oracle:
    """The charged model written from its rules, over sets: no groups, no edges, no vertices."""

    def __init__(self, graph, decided, policy):
        self.graph, self.policy = graph, policy
        self.made = {value: t for op in graph.ops for value, t in zip(op.values, op.outputs, strict=True)}
        self.maker = {value: i for i, op in enumerate(graph.ops) for value in op.values}
        self.root = list(range(len(graph.ops)))
        for members in (*graph.aliases, *graph.storages):
            first = self.root[self.maker[members[0]]]
            for value in members[1:]:
                old = self.root[self.maker[value]]
                self.root = [first if each == old else each for each in self.root]
        asked = {d.op: d.chosen for d in decided.decisions}
        pins = defaultdict(set)
        for i, op in enumerate(graph.ops):
            pins[self.root[i]] |= {asked.get(op.key, "") or self._fact(op)} - {""}
        self.pins = [self._agreed(pins[root]) for root in self.root]

    def cheapest(self):
        """Least price over all assignments that pins, facts and shared memory permit."""
        free = sorted({root for root, pin in zip(self.root, self.pins, strict=True) if not pin})
        choices = itertools.product(["fp32", "bf16"], repeat=len(free))
        return min(self.price(dict(zip(free, choice, strict=True))) for choice in choices)

    def price(self, chosen):
        """Price when the free classes run as `chosen`: every op, and every cast once per value, format and stretch
        between writes for all who read it so; a parameter that is read in both formats, the bytes of its copy."""
        graph, policy = self.graph, self.policy
        runs = [pin or chosen[root] for pin, root in zip(self.pins, self.root, strict=True)]
        wanted = defaultdict(set)
        total = 0.0
        for i, op in enumerate(graph.ops):
            inputs = [self.made[operand.value] for operand in op.operands]
            total += roofline.op_seconds(op, inputs, runs[i], H100, graph.mode) if inputs else 0.0
            for operand in op.operands:
                promoted = runs[i] == "fp32" and self._sure(op, operand.value)
                if not promoted and not self._reads_any(op, operand):
                    wanted[operand.value, self._writes_before(i, operand.value)].add(runs[i])
        for value in graph.outputs if policy.keep_io_types else ():
            wanted[value, self._writes_before(len(graph.ops), value)].add("fp32")
        stored = defaultdict(set)
        for (value, _), needs in wanted.items():
            has = runs[self.maker[value]]
            if self._foldable(graph.ops[self.maker[value]]):
                stored[self.root[self.maker[value]]] |= needs | ({"fp32"} & {self.pins[self.maker[value]]})
            else:
                total += sum(roofline.cast_seconds(self.made[value], has, to, H100, graph.mode) for to in needs - {has})
        for root, needs in stored.items():
            if {"fp32", "bf16"} <= needs:
                total += roofline.copy_seconds(graph.ops[root].outputs[0], "bf16", H100)
        return total

    def _fact(self, op):
        if op.kind == "input":
            return "fp32" if self.policy.keep_io_types else ""
        if op.kind != "parameter":
            return ""
        read_whole = any(
            self._reads_any(each, operand) for each in self.graph.ops for operand in each.operands
            if operand.value == op.key
        )  # fmt: skip
        return "" if self._foldable(op) and op.key not in self.graph.outputs and not read_whole else "fp32"

    def _agreed(self, pins):
        return "" if not pins else next(iter(pins)) if len(pins) == 1 else "fp32"

    def _foldable(self, op):
        return op.kind == "parameter" and self.policy.mode == "inference"

    def _reads_any(self, op, operand):
        if op.op in PROMOTING and op.mutates:
            return operand.argument != op.mutates
        spatial = any(self.made[each.value].shape for each in op.operands)
        return op.op in PROMOTING and spatial and not self.made[operand.value].shape

    def _sure(self, op, value):
        """Another operand is high whatever is chosen, and makes the op compute high."""
        others = [operand.value for operand in op.operands if operand.value != value]
        promotes = op.op in PROMOTING and not op.mutates and bool(self.made[value].shape)
        return promotes and any(self.pins[self.maker[o]] == "fp32" and self.made[o].shape for o in others)

    def _writes_before(self, position, value):
        writers = [op for op in self.graph.ops[:position] if op.mutates]
        targets = [next(o.value for o in op.operands if o.argument == op.mutates) for op in writers]
        return sum(any({target, value} <= set(members) for members in self.graph.aliases) for target in targets)


@st.composite
def sketches(draw):
    """Up to eight ops on an input, a scalar and two parameters, tied or not: unary, binary, in place, two outputs."""
    sketch = Sketch(draw(st.sampled_from(["inference", "training"])))
    size = draw(st.sampled_from([(64, 64), (1024, 1024), (2048, 2048)]))
    wide = [sketch.input("x", *size), sketch.parameter("p", *size), sketch.parameter("q", *size)]
    scalar = sketch.leaf("input", "scale")
    if draw(st.booleans()):
        sketch.storages.append(("p", "q"))
    for _ in range(draw(st.integers(1, 8))):
        runs = draw(st.sampled_from(["", "", "", "fp32", "bf16", "fp16"]))
        kind = draw(st.sampled_from(["relu", "matmul", "add", "atan2", "relu_", "add_", "aminmax"]))
        first, second = draw(st.sampled_from(wide)), draw(st.sampled_from([*wide, scalar]))
        shared = {value for members in sketch.aliases for value in members}
        own = [value for value in wide if value.startswith("/") and value not in shared]
        if kind == "aminmax":
            made = sketch.op(kind, first, runs=runs, outputs=2)
            wide += [f"{made}:0", f"{made}:1"]
        elif kind in ("relu_", "add_"):
            if own:
                target = draw(st.sampled_from(own))
                operands = (target,) if kind == "relu_" else (target, second)
                wide.append(sketch.op(kind[:-1], *operands, mutates="self"))
                sketch.aliases.append((target, wide[-1]))
        elif kind == "relu":
            wide.append(sketch.op(kind, first, runs=runs))
        else:
            second = first if kind == "matmul" and second == scalar else second
            wide.append(sketch.op(kind, first, second, runs=runs))
    outputs = draw(st.lists(st.sampled_from(wide), min_size=1, max_size=3))
    return sketch, tuple(outputs), draw(st.booleans())
