"""Where casts go: one per tensor and direction, at the cheapest place, and none where nothing runs low."""

from __future__ import annotations

import itertools

import pytest

from tests.sketches import FREE_IO, TRAINING, WIDE, Sketch, casts, chain, formats

SMALL = (8, 8)  # a launch costs more than anything that its bytes could save


@pytest.mark.parametrize("size", [(8, 8), (64, 64)])
def test_without_a_product_nothing_is_lowered(size):
    sketch, y = chain(size, "exp", "relu", "sqrt", "relu")
    made = sketch.plan(y)
    assert not made.casts and set(formats(made).values()) == {"fp32"}


@pytest.mark.parametrize("size", [SMALL, WIDE])
def test_around_a_product_only_what_is_between_kept_ops_is_low(size):
    names = ("exp", "relu", "sqrt", "relu", "matmul", "relu", "log", "relu")
    sketch, y = chain(size, *names, exp="fp32", sqrt="fp32", log="fp32", matmul="bf16")
    made = sketch.plan(y)
    low = [key for key, name in made.formats if name == "bf16"]
    assert low == ["/relu#1", "w4", "/matmul#0", "/relu#2"]
    assert casts(made) == [("/sqrt#0", "bf16", ("/relu#1",)), ("/relu#2", "fp32", ("/log#0",))]
    assert [(fold.value, fold.to, fold.copy) for fold in made.folds] == [("w4", "bf16", False)]


@pytest.mark.parametrize("size", [SMALL, WIDE])
def test_an_op_that_may_follow_joins_the_low_side_without_a_third_cast(size):
    names = ("exp", "relu", "sqrt", "relu", "matmul", "relu", "log", "relu")
    sketch, y = chain(size, *names, exp="fp32", log="fp32", matmul="bf16")
    assert len(sketch.plan(y).casts) == 2


def test_two_relus_with_a_common_reader_get_one_cast_per_tensor_and_direction():
    sketch = Sketch()
    x = sketch.input("x", *SMALL)
    one, two = sketch.op("relu", x), sketch.op("relu", x)
    w = sketch.parameter("w", *SMALL)
    sketch.op("equal_shapes", one, two, format="bool")
    product, more = sketch.op("matmul", one, w, runs="bf16"), sketch.op("matmul", one, one, runs="bf16")
    made = sketch.plan(product, more, two)
    down = [cast for cast in made.casts if cast.to == "bf16"]
    assert len(down) == 1 and len({(cast.value, cast.to) for cast in made.casts}) == len(made.casts)


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_statistics_between_two_convolutions_stay_high(mode):
    sketch = Sketch(mode)
    x = sketch.input("x", 32, 64, 56, 56)
    kernels = [sketch.parameter(f"conv{i}.weight", 64, 64, 3, 3) for i in (1, 2)]
    affine = [sketch.parameter(f"bn.{name}", 64) for name in ("weight", "bias")]
    statistics = [sketch.leaf("buffer", f"bn.running_{n}", 64, fixed="state") for n in ("mean", "var")]
    names = ("input", "weight")
    first = sketch.op("conv2d", x, kernels[0], runs="bf16", arguments=names)
    normed = sketch.op("batch_norm", first, *affine, *statistics)
    second = sketch.op("conv2d", normed, kernels[1], runs="bf16", arguments=names)
    made = sketch.plan(second)
    found = formats(made)
    assert found["/batch_norm#0"] == "bf16"
    assert {found[name] for name in (*affine, *statistics)} == {"fp32"}
    touched = {cast.value for cast in made.casts} | {fold.value for fold in made.folds}
    assert not touched & {*affine, *statistics}


@pytest.mark.parametrize("order", list(itertools.permutations(("bf16", "bf16", "fp32"))))
def test_readers_of_one_value_share_one_cast(order):
    sketch = Sketch()
    x = sketch.input("x", *WIDE)
    value = sketch.op("exp", x, runs="fp32")
    readers = [sketch.op("sin", value, runs=runs) for runs in order]
    made = sketch.plan(*readers, policy=FREE_IO)
    low = tuple(key for key, runs in zip(readers, order, strict=True) if runs == "bf16")
    assert casts(made) == [(value, "bf16", low)]


@pytest.mark.parametrize("order", list(itertools.permutations(("bf16", "bf16", "fp32"))))
def test_a_parameter_read_both_ways_has_one_copy_and_its_bytes_are_told(order):
    sketch = Sketch()
    p = sketch.parameter("p", 100, 10)
    readers = [sketch.op("sin", p, runs=runs) for runs in order]
    made = sketch.plan(*readers)
    low = tuple(key for key, runs in zip(readers, order, strict=True) if runs == "bf16")
    assert [(f.value, f.to, f.consumers, f.copy, f.bytes) for f in made.folds] == [("p", "bf16", low, True, 2000)]
    assert formats(made)["p"] == "fp32" and not [cast for cast in made.casts if cast.value == "p"]


def test_a_parameter_read_low_only_is_stored_low_and_not_copied():
    sketch = Sketch()
    p = sketch.parameter("p", 100, 10)
    made = sketch.plan(sketch.op("sin", p, runs="bf16"), sketch.op("cos", p, runs="bf16"))
    assert [(f.value, f.copy, f.bytes) for f in made.folds] == [("p", False, 0)]
    assert formats(made)["p"] == "bf16"


@pytest.mark.parametrize("reader", ["output", "explicit", "any", "fixed"])
def test_a_parameter_whose_original_is_read_is_kept(reader):
    sketch = Sketch()
    p = sketch.parameter("p", 100, 10)
    y = sketch.op("sin", p, runs="bf16")
    outputs = [y]
    if reader == "output":
        outputs.append(p)
    elif reader == "explicit":
        outputs.append(sketch.op("to", p, attributes=(("dtype", "fp32"),), fixed="explicit cast", runs="fp32"))
    elif reader == "any":
        sketch.op("argmax", p, format="int64", fixed="integer")
    else:
        outputs.append(sketch.op("cos", p, fixed="region", region="autocast cpu off", runs="fp32"))
    made = sketch.plan(*outputs, policy=FREE_IO)
    assert [(f.value, f.consumers, f.copy) for f in made.folds] == [("p", (y,), True)]
    assert formats(made)["p"] == "fp32"


def test_in_training_parameters_stay_and_their_casts_are_charged():
    sketch = Sketch("training")
    x, w = sketch.input("x", *WIDE), sketch.parameter("w", 1024, 1024)
    y = sketch.op("linear", x, w, runs="bf16")
    made = sketch.plan(y)
    assert not made.folds and formats(made)["w"] == "fp32"
    assert [value for value, _, _ in casts(made)] == ["x", "w", y]
    assert made.predicted.cast_seconds == pytest.approx(
        sum(2 * (2e-6 + cast.bytes / (0.92 * 3.35e12)) for cast in made.casts)
    )  # forward and the gradient's way back


def test_the_evaluation_side_of_a_training_policy_folds_nothing():
    sketch = Sketch("inference")
    x, w = sketch.input("x", *WIDE), sketch.parameter("w", 1024, 1024)
    y = sketch.op("linear", x, w, runs="bf16")
    made = sketch.plan(y, policy=TRAINING)
    assert not made.folds and formats(made)["w"] == "fp32"


def test_tied_names_are_folded_together():
    sketch = Sketch()
    ids = sketch.input("ids", 64, format="int64")
    table, head = sketch.parameter("embed.weight", 5000, 64), sketch.parameter("head.weight", 5000, 64)
    sketch.storages.append((table, head))
    rows = sketch.op("embedding", table, ids, shape=(64, 64), runs="bf16")
    y = sketch.op("linear", rows, head, shape=(64, 5000), runs="bf16")
    made = sketch.plan(y)
    assert [(f.value, f.consumers, f.copy) for f in made.folds] == [(table, (rows,), False), (head, (y,), False)]


def test_tied_names_that_are_read_both_ways_share_the_price_of_one_copy():
    sketch = Sketch()
    ids = sketch.input("ids", 64, format="int64")
    table, head = sketch.parameter("embed.weight", 5000, 64), sketch.parameter("head.weight", 5000, 64)
    sketch.storages.append((table, head))
    rows = sketch.op("embedding", table, ids, shape=(64, 64), runs="fp32")
    y = sketch.op("linear", rows, head, shape=(64, 5000), runs="bf16")
    made = sketch.plan(y)
    assert [(f.value, f.consumers, f.copy, f.bytes) for f in made.folds] == [(head, (y,), True, 5000 * 64 * 2)]
    assert formats(made)[table] == formats(made)[head] == "fp32"


@pytest.mark.parametrize(("size", "low"), [(SMALL, "fp32"), (WIDE, "fp32")])
def test_an_op_with_a_product_on_one_side_only_is_not_lowered_at_a_cost(size, low):
    sketch = Sketch()
    x, w = sketch.input("x", *size), sketch.parameter("w", size[1], size[1])
    hidden = sketch.op("relu", x)
    made = sketch.plan(sketch.op("matmul", hidden, w, runs="bf16"), hidden)
    assert formats(made)[hidden] == low
    assert casts(made) == [(hidden, "bf16", ("/matmul#0",)), ("/matmul#0", "fp32", ("output:0",))]


def test_everything_kept_needs_no_cast():
    sketch, y = chain(WIDE, "exp", "matmul", "relu", exp="fp32", matmul="fp32", relu="fp32")
    made = sketch.plan(y)
    assert not made.casts and not made.folds
    assert made.predicted.seconds == pytest.approx(made.predicted.seconds_high)


def test_everything_low_with_free_inputs_and_outputs_needs_no_cast():
    sketch, y = chain(WIDE, "exp", "matmul", "relu", exp="bf16", matmul="bf16", relu="bf16")
    made = sketch.plan(y, policy=FREE_IO)
    assert not made.casts and formats(made)["x"] == "bf16"


def test_everything_low_with_kept_formats_needs_one_cast_per_input_and_output():
    sketch = Sketch()
    a, b, ids = sketch.input("a"), sketch.input("b"), sketch.input("ids", 8, format="int64")
    y, z = sketch.op("atan2", a, b, runs="bf16"), sketch.op("sin", a, runs="bf16")
    made = sketch.plan(y, z, ids, y)
    assert casts(made) == [
        ("a", "bf16", (y, z)), ("b", "bf16", (y,)), (y, "fp32", ("output:0", "output:3")), (z, "fp32", ("output:1",)),
    ]  # fmt: skip


def test_an_input_returned_unchanged_is_not_cast():
    sketch = Sketch()
    x = sketch.input("x")
    y = sketch.op("sin", x, runs="bf16")
    assert casts(sketch.plan(x, y)) == [(x, "bf16", (y,)), (y, "fp32", ("output:1",))]


def test_the_users_own_cast_survives_and_needs_none():
    sketch = Sketch()
    x = sketch.input("x")
    y = sketch.op("sin", x, runs="bf16")
    z = sketch.op("to", y, attributes=(("dtype", "fp32"),), fixed="explicit cast", runs="fp32")
    made = sketch.plan(z, sketch.op("exp", z, runs="bf16"), policy=FREE_IO)
    assert formats(made)[z] == "fp32" and casts(made) == [(z, "bf16", ("/exp#0",))]


def test_integers_masks_and_indices_are_never_cast():
    sketch = Sketch()
    x, ids, mask = sketch.input("x"), sketch.input("ids", 9, format="int64"), sketch.input("m", 9, format="bool")
    y = sketch.op("index_select", x, ids, runs="bf16", arguments=("self", "index"))
    best = sketch.op("topk", y, runs="bf16", outputs=2)
    kept = sketch.op("where", mask, f"{best}:0", f"{best}:0", shape=WIDE, format="fp32", runs="bf16")
    made = sketch.plan(kept, ids, mask)
    assert {cast.value for cast in made.casts} == {x, kept}


@pytest.mark.parametrize("size", [(0, 16), ()])
def test_empty_and_scalar_tensors_pass(size):
    sketch = Sketch()
    x = sketch.leaf("input", "x", *size)
    y = sketch.op("sin", x, runs="bf16")
    made = sketch.plan(y)
    assert [cast.to for cast in made.casts] == ["bf16", "fp32"]


@pytest.mark.parametrize("format_", ["bf16", "fp16", "fp64"])
def test_a_model_in_another_format_is_left_alone(format_):
    sketch = Sketch()
    x, w = sketch.input("x", *WIDE, format=format_), sketch.parameter("w", *WIDE, format=format_)
    y = sketch.op("atan2", x, w, runs=format_)
    made = sketch.plan(y)
    assert not made.casts and not made.folds and set(formats(made).values()) == {format_}


def test_converting_twice_plans_nothing_the_second_time():
    """What the first plan made, captured: bf16 between two casts that are now in the graph."""
    sketch = Sketch()
    x, w = sketch.input("x"), sketch.parameter("w", *WIDE, format="bf16")
    down = sketch.op("to", x, format="bf16", attributes=(("dtype", "bf16"),), fixed="explicit cast", runs="bf16")
    y = sketch.op("atan2", down, w, runs="bf16")
    up = sketch.op("to", y, format="fp32", attributes=(("dtype", "fp32"),), fixed="explicit cast", runs="fp32")
    made = sketch.plan(up)
    assert not made.casts and not made.folds


def test_ops_in_the_users_region_keep_their_formats():
    sketch = Sketch()
    x = sketch.input("x")
    inside = sketch.op("sin", x, fixed="region", region="autocast cpu bf16", format="bf16", runs="bf16")
    off = sketch.op("cos", x, fixed="region", region="autocast cpu off", runs="fp32")
    made = sketch.plan(sketch.op("exp", inside, runs="bf16"), sketch.op("exp", off, runs="bf16"), policy=FREE_IO)
    found = formats(made)
    assert (found[inside], found[off]) == ("bf16", "fp32")
