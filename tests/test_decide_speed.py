"""Deciding is fast, whatever the number of ops."""

from __future__ import annotations

import time

import pytest

from precision_audit import policy
from precision_audit.decide import decide
from precision_audit.records import Beside, Facts, Graph, Hardware, Op, Operand, Source, Tensor
from tests.backends.graphs import LINEAR, entering, state

GPU = Hardware("there", "", "9.0", (("fp32", 1.0), ("bf16", 2.0), ("fp8", 4.0)), 1.0, 0.0, "", "cuda")


@pytest.mark.slow
def test_twenty_thousand_ops_take_a_few_seconds_with_all_rules() -> None:
    start = time.perf_counter()
    whole = _stack(5000)
    written = time.perf_counter() - start
    assert sum("/" in op.key for op in whole.ops) == 20_000
    decide(_stack(2), policy.load("bf16-training"), GPU, {})  # imports and caches
    taken = []
    for _ in range(3):
        start = time.perf_counter()
        decided = decide(whole, policy.load("bf16-training"), GPU, {})
        taken.append(time.perf_counter() - start)
    assert len(decided.decisions) == 20_000
    assert min(taken) < 40 * written  # 1 to 3 s, as the machine is; 8 times what it takes to write the records down


def test_a_loop_of_7500_ops_is_pinned_whole_in_seconds() -> None:
    """A logistic map of 2500 turns whose error grows evenly to one half: the remedy leaves no turn out."""
    graph = _loop(2500)
    keys = [op.key for op in graph.ops if "/" in op.key]
    assert len(keys) == 7500
    steps = [0.5 * (number + 1) / len(keys) for number in range(len(keys))]
    seen = tuple(Beside(key, "bf16", 1e-3, drift, drift) for key, drift in zip(keys, steps, strict=True))
    start = time.perf_counter()
    found = decide(graph, policy.load("bf16-inference"), GPU, {}, facts=Facts(batches=1, beside=seen)).findings
    assert time.perf_counter() - start < 10.0  # 1.5 on two shared cores
    (loop,) = [each for each in found if each.rule == "PA207"]
    assert set(loop.pins) == set(keys) and loop.op == "/mul#0"


def _loop(turns: int) -> Graph:
    """x = 3.9 * x * (1 - x), each op with the line it was written on."""
    line, output = Source("model.py", 7, "forward", "x = 3.9 * x * (1 - x)"), (Tensor("fp32", (8,), (8,)),)
    made, last = [entering((8,), (8,))], "x"
    for turn in range(turns):
        scaled, rest, product = f"/mul#{2 * turn}", f"/rsub#{turn}", f"/mul#{2 * turn + 1}"
        for key, reads, attributes in (
            (scaled, (last,), (("other", 3.9),)),
            (rest, (last,), (("other", 1),)),
            (product, (scaled, rest), ()),
        ):
            name = key[1:].partition("#")[0]
            operands = tuple(Operand(value, each) for value, each in zip(reads, ("self", "other"), strict=False))
            made.append(
                Op(key, f"aten.{name}", name, "pointwise_arith", "", "", operands, output, attributes, source=line)
            )
        last = product
    return Graph(tuple(made), (last,), "inference")


def _stack(layers: int) -> Graph:
    """Linear, relu, residual add and norm, each layer in a module of its own."""
    made, last = [entering(("B", 64), (32, 64))], "x"
    for i in range(layers):
        weight, output = f"layers.{i}.fc.weight", (Tensor("fp32", ("B", 64), (32, 64)),)
        made.append(state(weight, (64, 64)))
        for name, module, kind, row in (
            ("linear", f"layers.{i}.fc", LINEAR, "matmul"),
            ("relu", f"layers.{i}", "a.Block", "pointwise_arith"),
            ("add", f"layers.{i}", "a.Block", "pointwise_arith"),
            ("layer_norm", f"layers.{i}.norm", "a.Norm", "norm"),
        ):
            reads = (Operand(last, "input"), *([Operand(weight, "weight")] if name == "linear" else []))
            made.append(Op(f"{module}/{name}#0", f"aten.{name}.default", name, row, module, kind, reads, output))
            last = made[-1].key
    return Graph(tuple(made), (last,), "training", symbols=(("B", 32),))
