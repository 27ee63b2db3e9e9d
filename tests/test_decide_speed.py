"""Deciding is fast, whatever the number of ops."""

from __future__ import annotations

import time

from precision_audit import policy
from precision_audit.decide import decide
from precision_audit.records import Graph, Hardware, Op, Operand, Tensor
from tests.backends.graphs import LINEAR, entering, state

GPU = Hardware("there", "", "9.0", (("fp32", 1.0), ("bf16", 2.0), ("fp8", 4.0)), 1.0, 0.0, "", "cuda")


def test_twenty_thousand_ops_take_a_few_seconds_with_all_rules() -> None:
    whole = _stack(5000)
    assert sum("/" in op.key for op in whole.ops) == 20_000
    decide(_stack(2), policy.load("bf16-training"), GPU, {})  # imports and caches
    taken = []
    for _ in range(3):
        start = time.perf_counter()
        decided = decide(whole, policy.load("bf16-training"), GPU, {})
        taken.append(time.perf_counter() - start)
    assert len(decided.decisions) == 20_000
    assert min(taken) < 3.0  # 1.1 on two shared cores, 0.35 of it without the rules


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
