"""Totals, modules and what can be touched, against arithmetic done by hand."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from precision_audit import hardware
from precision_audit.cost import cost
from precision_audit.cost.roofline import cast_seconds, op_seconds
from precision_audit.cost.swapped import seconds as swapped_seconds
from precision_audit.recipes import recipe
from precision_audit.records import NO_FACTS, Cast, Hardware, Plan, Swap
from tests.sketches import POLICY, TRAINING, Sketch

PEAKS = (("fp32", 1e12), ("bf16", 1e13), ("fp8", 2e13))
ROUND = Hardware("round", "", "", PEAKS, 1e9, 1e-6, "", "cpu", memory=1e9)
B, K = 256, 512


def plan(graph, formats=(), **fields):
    return Plan("p", graph.mode, "fp32", "bf16", tuple(formats), fields.pop("casts", ()), **fields)


def two_layers(mode="inference"):
    """x → linear (block.fc) → relu of the user's own cast (fixed)."""
    sketch = Sketch(mode)
    x, w = sketch.input("x", B, K), sketch.parameter("w", K, K)
    sketch.op("relu", sketch.op("linear", x, w), fixed="explicit cast")
    *leaves, linear, relu = sketch.ops
    sketch.ops = [*leaves, replace(linear, module="block.fc"), replace(relu, module="block")]
    return sketch.graph("/relu#0")


def priced(graph, key, format_):
    tensors = {value: t for op in graph.ops for value, t in zip(op.values, op.outputs, strict=True)}
    op = next(op for op in graph.ops if op.key == key)
    return op_seconds(op, [tensors[o.value] for o in op.operands], format_, ROUND, graph.mode)


def test_totals_are_sums_of_the_ops_and_casts():
    graph = two_layers()
    x = graph.ops[0].outputs[0]
    made = plan(graph, [("/linear#0", "bf16"), ("/relu#0", "fp32")], casts=(Cast("x", "bf16", ("/linear#0",)),))
    found = cost(graph, made, POLICY, ROUND, NO_FACTS)
    high, low = priced(graph, "/linear#0", "fp32"), priced(graph, "/linear#0", "bf16")
    relu, cast = priced(graph, "/relu#0", "fp32"), cast_seconds(x, "fp32", "bf16", ROUND, "inference")
    assert found.seconds_high == pytest.approx(high + relu)
    assert found.seconds_low == pytest.approx(low + relu)  # the user's own cast stays
    assert found.seconds == pytest.approx(low + relu + cast) and found.cast_seconds == pytest.approx(cast)
    assert found.touchable == pytest.approx(high / (high + relu))
    assert (found.device, found.measured, found.capacity, found.batch) == ("round", False, 10**9, B)


def test_modules_add_up_what_is_below_them():
    graph = two_layers()
    found = cost(graph, plan(graph), POLICY, ROUND, NO_FACTS)
    modules = {each.module: each.seconds for each in found.modules}
    linear, relu = priced(graph, "/linear#0", "fp32"), priced(graph, "/relu#0", "fp32")
    assert list(modules) == ["", "block", "block.fc"]
    assert modules == pytest.approx({"": linear + relu, "block": linear + relu, "block.fc": linear})


def test_a_swapped_linear_costs_what_its_recipe_does():
    graph = two_layers("training")
    swap = Swap("/linear#0", "block.fc", "torchao", "tensorwise", K, K, B)
    found = cost(graph, plan(graph, swaps=(swap,)), TRAINING, ROUND, NO_FACTS)
    op, inputs = graph.ops[2], [graph.ops[0].outputs[0], graph.ops[1].outputs[0]]
    expected = swapped_seconds(op, inputs, recipe("torchao", "tensorwise"), "bf16", ROUND, "training")
    assert found.ops[0].seconds == pytest.approx(expected)


@pytest.mark.parametrize(
    ("device", "environment", "products"),
    [
        ("h100", (), "fp32"),
        ("h100", (("torch.backends.cuda.matmul.allow_tf32", "true"),), "tf32"),
        ("v100", (), ""),
        ("t4", (("torch.backends.fp32_precision", "tf32"),), ""),
    ],
)
def test_it_is_known_whether_fp32_is_priced_in_tf32(device, environment, products):
    graph = two_layers()
    found = cost(graph, plan(graph), replace(POLICY, environment=environment), hardware.device(device), NO_FACTS)
    assert found.fp32_products == products


def test_the_plan_is_compared_with_both():
    graph = two_layers()
    found = cost(graph, plan(graph, [("/linear#0", "bf16")]), POLICY, ROUND, NO_FACTS)
    assert found.speed_up_over_high == pytest.approx(found.seconds_high / found.seconds)
    assert found.speed_up_over_low == pytest.approx(1.0) and found.speed_up_over_high > 1


def test_a_norm_and_a_linear_in_one_module_cost_less_than_apart():
    sketch = Sketch("training")
    x, w = sketch.input("x", B, K), sketch.parameter("w", K, K)
    y = sketch.op("linear", sketch.op("rms_norm", x), w)
    graph = sketch.graph(y)
    apart = Swap("/linear#0", "fc", "transformer_engine", "Float8CurrentScaling", K, K, B)
    spent = [
        cost(graph, plan(graph, [("/rms_norm#0", "bf16")], swaps=(swap,)), TRAINING, ROUND, NO_FACTS).seconds
        for swap in (apart, replace(apart, covers=("/rms_norm#0",)))
    ]
    # the output of the norm is not read once more for its largest magnitude, by two kernels of 1 µs
    assert spent[0] - spent[1] == pytest.approx(2e-6 + 2 * B * K / 0.66e9)


def test_training_pays_for_the_update_of_what_is_trained():
    sketch = Sketch("training")
    x, w = sketch.input("x", B, K), sketch.parameter("w", K, K)
    y = sketch.op("linear", x, w)
    sketch.ops[1] = replace(sketch.ops[1], outputs=(replace(sketch.ops[1].outputs[0], requires_grad=True),))
    graph = sketch.graph(y)
    found = cost(graph, plan(graph), TRAINING, ROUND, NO_FACTS)
    assert found.update_seconds == pytest.approx(1e-6 + 7 * K * K * 4 / 1e9)
    assert found.seconds_high == pytest.approx(priced(graph, "/linear#0", "fp32") + found.update_seconds)


def test_a_large_graph_is_priced_at_once():
    sketch = Sketch()
    value = sketch.input("x", B, K)
    w = sketch.parameter("w", K, K)
    for _ in range(1000):
        value = sketch.op("relu", sketch.op("linear", value, w))
    sketch.ops = [replace(op, module=f"layers.{number}.fc") for number, op in enumerate(sketch.ops)]
    graph = sketch.graph(value)
    started = time.process_time()
    cost(graph, plan(graph), POLICY, ROUND, NO_FACTS)
    assert time.process_time() - started < 1.0
