"""Bytes at the peak, against arithmetic done by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from precision_audit.cost.memory import all_in, batch_rows, largest_batch, memory, under
from precision_audit.records import NO_FACTS, Cast, Fold, Memory, Plan, Swap, Tensor
from tests.sketches import Sketch

B, K, N = 8, 64, 32
X, W, Y = B * K, N * K, B * N  # elements


def learning(sketch):
    """Parameters are trained; export says nothing of the values between."""
    sketch.ops = [
        replace(op, outputs=tuple(replace(t, requires_grad=True) for t in op.outputs)) if op.kind == "parameter" else op
        for op in sketch.ops
    ]
    return sketch


def chain(mode="inference"):
    """x [B, K] → linear → gelu → gelu."""
    sketch = Sketch(mode)
    x, w = sketch.input("x", B, K), sketch.parameter("w", N, K)
    y = sketch.op("linear", x, w, shape=(B, N))
    z = sketch.op("gelu", sketch.op("gelu", y, shape=(B, N)), shape=(B, N))
    return (learning(sketch) if mode == "training" else sketch).graph(z)


def plan(graph, **fields):
    return Plan("p", graph.mode, "fp32", "bf16", fields.pop("formats", ()), fields.pop("casts", ()), **fields)


@pytest.mark.parametrize(("format_", "size"), [("fp32", 4), ("bf16", 2)])
def test_inference_holds_the_input_and_two_neighbours(format_, size):
    graph = chain()
    found = memory(graph, all_in(graph, format_, "fp32"), NO_FACTS)
    assert found == Memory(weights=W * size, activations=(X + 2 * Y) * size)


def test_training_holds_what_backward_reads():
    """The linear saves its input, each gelu its own; the gradient of the largest value comes on top. Adam keeps two."""
    graph = chain("training")
    found = memory(graph, all_in(graph, "fp32", "fp32"), NO_FACTS)
    assert found == Memory(W * 4, (X + 2 * Y + Y) * 4, gradients=W * 4, optimizer=2 * W * 4)
    low = memory(graph, all_in(graph, "bf16", "fp32"), NO_FACTS, low_states="bf16")
    assert low.total == found.total // 2


def test_an_add_saves_nothing_and_a_relu_its_output():
    sketch = Sketch("training")
    x = sketch.input("x", B, K)
    w = sketch.parameter("w", B, K)
    sketch.op("relu", sketch.op("add", x, w))
    graph = learning(sketch).graph("/relu#0")
    assert memory(graph, all_in(graph, "fp32", "fp32"), NO_FACTS).activations == (X + X) * 4  # relu's, and a gradient


def test_what_no_gradient_reaches_is_not_saved():
    sketch = Sketch("training")
    x, w = sketch.input("x", B, K), sketch.parameter("w", N, K)
    y = sketch.op("detach", sketch.op("linear", sketch.op("gelu", x), w, shape=(B, N)), shape=(B, N))
    graph = learning(sketch).graph(sketch.op("gelu", y, shape=(B, N)))
    assert memory(graph, all_in(graph, "fp32", "fp32"), NO_FACTS).activations == (X + Y) * 4  # the linear's alone


def test_a_view_is_no_memory_of_its_own():
    sketch = Sketch()
    x = sketch.input("x", B, K)
    y = sketch.op("gelu", sketch.op("view", x, shape=(K, B)))
    graph = sketch.graph(y)
    assert memory(graph, all_in(graph, "fp32", "fp32"), NO_FACTS).activations == 2 * X * 4


def test_a_plan_s_casts_and_folds_are_counted():
    graph = chain()
    low = tuple((key, "bf16") for key in ("/linear#0", "/gelu#0"))
    made = plan(
        graph,
        formats=(*low, ("/gelu#1", "fp32")),
        casts=(Cast("x", "bf16", ("/linear#0",)), Cast("/gelu#0", "fp32", ("/gelu#1",))),
        folds=(Fold("w", "bf16", ("/linear#0",)),),
    )
    found = memory(graph, under(graph, made), NO_FACTS)
    assert found.weights == W * 2
    # x stays; beside it at the first op x in bf16 and the result, at the last one its operand's cast and the result
    assert found.activations == X * 4 + max(X * 2 + Y * 2, Y * 4 + Y * 4)


def test_a_cast_lives_beside_its_source_while_it_is_made():
    sketch = Sketch()
    y = sketch.op("gelu", sketch.input("x", B, K), shape=(B, K))
    graph = sketch.graph(sketch.op("mean", y, shape=(1,)))
    made = plan(graph, formats=(("/gelu#0", "bf16"), ("/mean#0", "fp32")), casts=(Cast(y, "fp32", ("/mean#0",)),))
    assert memory(graph, under(graph, made), NO_FACTS).activations == X * (4 + 2 + 4)


def test_a_second_copy_of_a_weight_counts():
    graph = chain()
    made = plan(graph, folds=(Fold("w", "bf16", ("/linear#0",), copy=True, bytes=W * 2),))
    found = memory(graph, under(graph, made), NO_FACTS)
    assert (found.weights, found.copies) == (W * 4, W * 2)


def test_transformer_engine_keeps_the_input_narrow_and_the_weight_twice_more():
    graph = chain("training")
    swap = Swap("/linear#0", "", "transformer_engine", "DelayedScaling", K, N, B)
    found = memory(graph, under(graph, plan(graph, swaps=(swap,))), NO_FACTS)
    assert found.copies == 2 * W and found.weights == W * 4
    assert found.activations == X + (2 * Y + Y) * 4


def test_torchao_keeps_the_input_as_it_is():
    graph = chain("training")
    swap = Swap("/linear#0", "", "torchao", "rowwise", K, N, B)
    found = memory(graph, under(graph, plan(graph, swaps=(swap,))), NO_FACTS)
    assert found.copies == 0 and found.activations == (X + 3 * Y) * 4


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_the_largest_batch_fits_and_one_twice_as_large_does_not(mode):
    graph = chain(mode)
    held = all_in(graph, "fp32", "fp32")
    spent = memory(graph, held, NO_FACTS)
    row = spent.activations // B
    capacity = (spent.total - spent.activations + 100 * row) / 0.9
    assert batch_rows(graph) == B
    assert largest_batch(graph, held, spent, capacity, B) in (99, 100)
    assert largest_batch(graph, held, spent, 0, B) == 0
    assert largest_batch(graph, held, spent, capacity, 0) == 0
    assert largest_batch(graph, held, spent, spent.weights, B) == 0  # not even the weights


def test_inputs_of_different_leading_sizes_have_no_batch():
    sketch = Sketch()
    x, y = sketch.input("x", 4, 8), sketch.input("y", 5, 8)
    assert batch_rows(sketch.graph(x, y)) == 0


def test_tied_weights_are_stored_once():
    sketch = Sketch()
    x, p, q = sketch.input("x", B, K), sketch.parameter("p", K, K), sketch.parameter("q", K, K)
    sketch.storages.append(("p", "q"))
    made = sketch.op("matmul", sketch.op("matmul", x, p), q)
    graph = sketch.graph(made)
    assert memory(graph, all_in(graph, "bf16", "fp32"), NO_FACTS).weights == K * K * 2


def test_integers_keep_their_size():
    sketch = Sketch()
    ids = sketch.leaf("input", "ids", B, 4, format="int64")
    graph = sketch.graph(ids)
    assert memory(graph, all_in(graph, "bf16", "fp32"), NO_FACTS).activations == B * 4 * 8
    assert Tensor("int64", (B, 4), (B, 4)) == graph.ops[0].outputs[0]
