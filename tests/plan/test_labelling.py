"""Who has a choice of format, and who must choose alike."""

from __future__ import annotations

from dataclasses import replace

import pytest

from precision_audit.hardware import device
from precision_audit.plan import settle
from tests.sketches import FREE_IO, POLICY, WIDE, Sketch, casts, formats


def test_outputs_of_one_op_have_one_format_and_are_cast_each_for_itself():
    sketch = Sketch()
    x = sketch.input("x")
    split = sketch.op("aminmax", x, runs="fp32", outputs=2)
    low, high = sketch.op("sin", f"{split}:0", runs="bf16"), sketch.op("cos", f"{split}:1", runs="fp32")
    made = sketch.plan(low, high, policy=FREE_IO)
    assert casts(made) == [(f"{split}:0", "bf16", (low,))]


@pytest.mark.parametrize(
    ("producer", "writer", "both"),
    [
        ("bf16", "", "bf16"),
        ("", "bf16", "bf16"),
        ("bf16", "fp32", "fp32"),
        ("fp16", "", "fp16"),
        ("fp16", "bf16", "fp32"),
    ],
)
def test_memory_that_is_written_in_place_has_one_format(producer, writer, both):
    sketch = Sketch()
    x = sketch.input("x")
    y = sketch.op("sin", x, runs=producer)
    z = sketch.op("relu", y, runs=writer, mutates="self")
    sketch.aliases.append((y, z))
    made = sketch.plan(z, policy=replace(POLICY, keep_io_types=True))
    assert formats(made)[y] == formats(made)[z] == both
    assert not [cast for cast in made.casts if z in cast.consumers]


def test_state_that_the_model_updates_stays():
    sketch = Sketch()
    x, total = sketch.input("x"), sketch.leaf("buffer", "total", *WIDE, fixed="state")
    y = sketch.op("sin", x, runs="bf16")
    written = sketch.op("add", total, y, mutates="self", fixed="state", runs="fp32")
    sketch.aliases.append((total, written))
    made = sketch.plan(y, policy=FREE_IO)
    assert formats(made)["total"] == formats(made)[written] == "fp32"
    assert casts(made) == []  # the write converts what it adds


def test_readers_on_both_sides_of_a_write_do_not_share_a_cast():
    sketch = Sketch()
    x = sketch.input("x")
    y = sketch.op("sin", x, runs="fp32")
    before = sketch.op("cos", y, runs="bf16")
    z = sketch.op("relu", y, mutates="self")
    sketch.aliases.append((y, z))
    after = [sketch.op("exp", y, runs="bf16"), sketch.op("exp", y, runs="bf16")]
    made = sketch.plan(before, *after, policy=FREE_IO)
    assert casts(made) == [(y, "bf16", (before,)), (y, "bf16", tuple(after))]


def test_a_strided_view_has_the_format_of_what_it_views():
    sketch = Sketch()
    x = sketch.input("x")
    y = sketch.op("sin", x, runs="fp32")
    view = sketch.op("as_strided", y, runs="bf16")
    made = sketch.plan(sketch.op("cos", view, runs="bf16"), policy=FREE_IO)
    assert formats(made)[view] == "fp32" and casts(made) == [(view, "bf16", ("/cos#0",))]


def test_memory_of_complex_numbers_is_left_alone():
    sketch = Sketch()
    x = sketch.input("x", 8, 16, 2)
    pairs = sketch.op("sin", x, runs="bf16")
    rotated = sketch.op("view_as_complex", pairs, format="complex64", fixed="integer")
    back = sketch.op("view_as_real", rotated, format="fp32")
    made = sketch.plan(sketch.op("cos", back, runs="bf16"), policy=FREE_IO)
    found = formats(made)
    assert found[pairs] == found[back] == "fp32"
    assert casts(made) == [(back, "bf16", ("/cos#0",))]


# norms, swaps, third formats ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "mixed"), [("cpu-amx", True), ("h100", False)])
def test_a_norm_reads_high_parameters_where_its_kernel_does(name, mixed):
    sketch = Sketch("training")
    x, w = sketch.input("x"), sketch.parameter("w", 1024, 1024)
    affine = [sketch.parameter(name, 1024) for name in ("norm.weight", "norm.bias")]
    y = sketch.op("layer_norm", sketch.op("linear", x, w, runs="bf16"), *affine, runs="bf16")
    made = sketch.plan(y, hardware=device(name))
    assert {cast.value for cast in made.casts} & {*affine} == (set() if mixed else {*affine})


def test_a_norm_with_one_computed_parameter_takes_no_mixture():
    sketch = Sketch("training")
    x, w, scale = sketch.input("x"), sketch.parameter("w", 1024, 1024), sketch.parameter("scale", 1024)
    bias = sketch.parameter("bias", 1024)
    computed = sketch.op("sin", scale, runs="bf16")
    y = sketch.op("layer_norm", sketch.op("linear", x, w, runs="bf16"), computed, bias, runs="bf16")
    made = sketch.plan(y, hardware=device("cpu-amx"))
    assert ("bias", "bf16", (y,)) in casts(made)


def test_statistics_force_computed_parameters_of_a_norm_high():
    sketch = Sketch()
    x, scale = sketch.input("x", 32, 64, 56, 56), sketch.parameter("scale", 64)
    bias = sketch.parameter("bias", 64)
    statistics = [sketch.leaf("buffer", name, 64, fixed="state") for name in ("mean", "var")]
    computed = sketch.op("sin", scale, runs="bf16")
    low = sketch.op("sin", x, runs="bf16")
    y = sketch.op("batch_norm", low, computed, bias, *statistics, runs="bf16")
    made = sketch.plan(y, policy=FREE_IO)
    assert casts(made) == [(computed, "fp32", (y,))] and formats(made)["bias"] == "fp32"


def swapped(policy=POLICY, rows=16384, **more):
    sketch = Sketch("training")
    x = sketch.input("x", rows, 4096)
    w, b = sketch.parameter("fc.weight", 4096, 4096), sketch.parameter("fc.bias", 4096)
    y = sketch.op("linear", x, w, b)
    sketch.swap(y)
    for name, runs in more.items():
        z = sketch.op(name, y, mutates="self", runs=runs)
        sketch.aliases.append((y, z))
    return sketch, y, sketch.plan(y, policy=policy)


def test_a_swapped_linear_reads_its_input_low_and_owns_its_parameters():
    _, y, made = swapped()
    assert formats(made)[y] == "bf16" and [swap.op for swap in made.swaps] == [y]
    assert casts(made) == [("x", "bf16", (y,)), (y, "fp32", ("output:0",))]


def test_a_swap_whose_output_must_stay_high_is_refused_with_the_reason():
    sketch, y, made = swapped(relu="fp32")
    assert not made.swaps and formats(made)[y] == "fp32"
    assert "written in place with /relu#0" in made.refusals[0].reason
    settled = settle(sketch.decided().decisions, made)
    assert (settled[0].chosen, "torchao: its output shares memory" in settled[0].reason) == ("fp32", True)


def test_a_third_format_is_cast_to_and_from_once():
    sketch = Sketch()
    x = sketch.input("x")
    a = sketch.op("sin", x, runs="bf16")
    third = [sketch.op("cos", a, runs="fp16"), sketch.op("tan", a, runs="fp16")]
    readers = [sketch.op("exp", third[0], runs="bf16"), sketch.op("exp", third[0], runs="fp32")]
    made = sketch.plan(*readers, third[1], policy=FREE_IO)
    assert casts(made) == [
        (a, "fp16", tuple(third)), (third[0], "bf16", (readers[0],)), (third[0], "fp32", (readers[1],)),
    ]  # fmt: skip
    assert formats(made)[third[0]] == "fp16"
