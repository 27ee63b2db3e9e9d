"""Promotion as PyTorch does it, and the casts that it makes superfluous."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from precision_audit.plan.promotion import PROMOTING, promoted
from tests.sketches import FREE_IO, Sketch, casts, formats


def test_a_kept_operand_promotes_the_other_without_a_cast():
    sketch = Sketch()
    x, w = sketch.input("x"), sketch.parameter("w", 1024, 1024)
    branch = sketch.op("linear", x, w, runs="bf16")
    total = sketch.op("add", branch, x, runs="fp32")
    made = sketch.plan(total)
    assert casts(made) == [(x, "bf16", (branch,))]


def test_of_two_casts_that_promotion_replaces_one_is_enough():
    sketch = Sketch()
    a, b = sketch.input("a"), sketch.input("b", 1, 1024)
    one, two = sketch.op("sin", a, runs="bf16"), sketch.op("sin", b, runs="bf16")
    total = sketch.op("add", one, two, runs="fp32")
    made = sketch.plan(total, policy=FREE_IO)
    assert casts(made) == [(two, "fp32", (total,))]  # the smaller one


def test_other_ops_do_not_promote():
    sketch = Sketch()
    a, b = sketch.input("a"), sketch.input("b")
    one, two = sketch.op("sin", a, runs="bf16"), sketch.op("sin", b, runs="bf16")
    product = sketch.op("matmul", one, two, runs="fp32")
    assert casts(sketch.plan(product, policy=FREE_IO)) == [(one, "fp32", (product,)), (two, "fp32", (product,))]


def test_tensors_without_dimensions_neither_promote_nor_are_cast():
    sketch = Sketch()
    x, scale = sketch.input("x"), sketch.leaf("input", "scale")
    low = sketch.op("mul", sketch.op("sin", x, runs="bf16"), scale, runs="bf16")
    high = sketch.op("mul", low, scale, runs="fp32")
    made = sketch.plan(high)
    assert casts(made) == [("x", "bf16", ("/sin#0",)), (low, "fp32", (high,))]


def test_among_scalars_the_widest_decides():
    sketch = Sketch()
    a, b = sketch.leaf("input", "a"), sketch.leaf("input", "b")
    y = sketch.op("mul", a, b, runs="bf16")
    assert casts(sketch.plan(y)) == [("a", "bf16", (y,)), ("b", "bf16", (y,)), (y, "fp32", ("output:0",))]


def test_a_scalar_beside_integers_decides_and_is_cast():
    sketch = Sketch()
    ids, scale = sketch.input("ids", 9, format="int64"), sketch.leaf("input", "scale")
    y = sketch.op("mul", ids, scale, format="fp32", runs="bf16")
    assert casts(sketch.plan(y, policy=replace(FREE_IO, keep_io_types=True)))[0] == ("scale", "bf16", (y,))


def test_comparisons_need_no_cast():
    sketch = Sketch()
    x = sketch.input("x")
    low = sketch.op("sin", x, runs="bf16")
    above = sketch.op("gt", low, x, format="bool", fixed="integer")
    assert casts(sketch.plan(above)) == [(x, "bf16", (low,))]


def test_numbers_from_integers_stay_high():
    """int64 x 0.5 is fp32 whatever the plan says: nothing a rewrite could change would make it low."""
    sketch = Sketch()
    ids = sketch.input("ids", 4096, 1024, format="int64")
    y = sketch.op("mul", ids, format="fp32", runs="bf16", attributes=(("other", 0.5),))
    made = sketch.plan(sketch.op("sin", y, runs="bf16"), policy=FREE_IO)
    assert formats(made)[y] == "fp32" and casts(made) == [(y, "bf16", ("/sin#0",))]


_JOINS = {"addcmul": 3, "addcdiv": 3, "where": 0, "cat": -1, "concat": -1, "concatenate": -1, "stack": -1}
# How an op is called: 2 or 3 tensors, -1 a list of them, 0 a condition first.
_CALLS = {"hstack": -1, "vstack": -1, "rsub": 2, **_JOINS}


@pytest.mark.parametrize("order", ["low first", "high first"])
@pytest.mark.parametrize("name", sorted(PROMOTING))
def test_every_promoting_op_promotes_bit_for_bit(name, order):
    generator = torch.Generator().manual_seed(0)
    pair = [torch.rand(4, 5, generator=generator) + 0.5 for _ in range(2)]
    low = 0 if order == "low first" else 1
    mixed = [each.to(torch.bfloat16) if i == low else each for i, each in enumerate(pair)]
    wide = [each.to(torch.float32) for each in mixed]
    assert torch.equal(_call(name, mixed), _call(name, wide))
    assert _call(name, mixed).dtype == _call(name, wide).dtype


def _call(name, pair):
    function = getattr(torch, name)
    a, b = pair
    how = _CALLS.get(name, 2)
    if how == -1:
        return function([a, b])
    if how == 0:
        return function(a > 0.8, a, b)
    return function(a, b, b) if how == 3 else function(a, b)


@pytest.mark.parametrize("name", ["add", "mul", "div", "pow", "maximum", "where"])
def test_a_scalar_tensor_does_not_promote(name):
    assert _call(name, [torch.ones(3, dtype=torch.bfloat16), torch.tensor(1.0)]).dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["add_", "mul_", "addcmul_"])
def test_a_write_converts(name):
    target, other = torch.ones(3, dtype=torch.bfloat16), torch.ones(3)
    more = (other,) if name == "addcmul_" else ()
    assert getattr(target, name)(other, *more).dtype == torch.bfloat16
    assert torch.ones(3, dtype=torch.bfloat16).copy_(other).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("names", "result"),
    [((), ""), (("bf16",), "bf16"), (("bf16", "fp32"), "fp32"), (("bf16", "fp16"), "fp32"), (("fp32", "fp64"), "fp64")],
)
def test_formats_promote_to_one_that_holds_both(names, result):
    assert promoted(names) == result
