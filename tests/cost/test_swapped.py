"""Quantised linears: hand arithmetic on a round device, and torchao's published verdicts on H100."""

from __future__ import annotations

from dataclasses import replace

import pytest

from precision_audit.cost.roofline import op_seconds
from precision_audit.cost.swapped import saved_by_norm, seconds, weight_bytes
from precision_audit.hardware import device
from precision_audit.recipes import recipe
from precision_audit.records import Hardware, Op, Operand, Tensor

# A CPU so that products reach their peak; scaling kernels reach 0.66 of 1 GB/s. Launches of 1 µs.
PEAKS = (("fp32", 1e18), ("bf16", 1e18), ("fp8", 1e18), ("mxfp8", 1e18), ("nvfp4", 1e18))
ROUND = Hardware("round", "", "", PEAKS, 1e9, 1e-6, "", "cpu")
M, K, N = 64, 128, 256
X, W, G = M * K, N * K, M * N  # elements of input, weight and gradient
LAUNCH = 1e-6


def linear(m, k, n):
    x, w, y = (Tensor("bf16", shape, shape) for shape in ((m, k), (n, k), (m, n)))
    operands = (Operand("x", "input"), Operand("w", "weight"))
    return Op("/l#0", "", "linear", "matmul", "", "", operands, (y,)), (x, w)


def spent(row, mode, device=ROUND):
    op, inputs = linear(M, K, N)
    return seconds(op, inputs, row, "bf16", device, mode)


def gemms(*moved):
    return sum(LAUNCH + each / 1e9 for each in moved)


def passes(*moved):
    return sum(LAUNCH + each / 0.66e9 for each in moved)


FORWARD = X + W + 2 * G  # bytes: fp8 in, bf16 out
BACK = (G + W + 2 * X, G + X + 2 * W)


def test_tensorwise_reads_each_operand_for_its_largest_magnitude_first():
    expected = gemms(FORWARD) + passes(2 * X, 0, 3 * X) + passes(2 * W, 0, 3 * W)
    assert spent(recipe("torchao", "tensorwise"), "inference") == pytest.approx(expected)


def test_in_training_each_operand_is_used_twice():
    """A weight's second order is a pass of its own; the others are written in both by one."""
    expected = gemms(FORWARD, *BACK) + passes(2 * X, 0, 4 * X, 2 * G, 0, 4 * G, 2 * W, 0, 3 * W, 3 * W)
    assert spent(recipe("torchao", "tensorwise"), "training") == pytest.approx(expected)


def test_rowwise_transposes_for_the_other_order_and_scales_after_the_product():
    quantised = passes(5 * X, 3 * X, 3 * W, 4 * W, 3 * W, 5 * G, 3 * G)
    scaled = passes(4 * X, 4 * W)
    assert spent(recipe("torchao", "rowwise"), "training") == pytest.approx(gemms(FORWARD, *BACK) + quantised + scaled)


def test_a_product_that_stays_in_bf16_moves_bf16():
    row = recipe("torchao", "rowwise_with_gw_hp")
    high = 2 * (G + X + W)
    expected = gemms(FORWARD, BACK[0], high) + passes(3 * X, 3 * W, 0, 3 * W, 3 * G)
    assert spent(row, "training") == pytest.approx(expected)


def test_delayed_scaling_needs_no_pass_for_the_magnitude():
    expected = gemms(FORWARD, *BACK) + passes(4 * X, 4 * W, 4 * G)
    assert spent(recipe("transformer_engine", "DelayedScaling"), "training") == pytest.approx(expected)


def test_scales_of_blocks_are_bytes_too():
    """32 elements share one byte: 8.25 bits."""
    narrow = 8.25 / 8
    products = gemms(*(narrow * (a + b) + 2 * c for a, b, c in ((X, W, G), (G, W, X), (G, X, W))))
    expected = products + passes(*((2 + 2 * narrow) * each for each in (X, W, G)))
    assert spent(recipe("transformer_engine", "MXFP8BlockScaling"), "training") == pytest.approx(expected)


def test_a_stored_weight_is_not_cast_and_moves_fewer_bytes():
    row = replace(recipe("torchao", "tensorwise"), stored=True)
    assert spent(row, "inference") == pytest.approx(gemms(FORWARD) + passes(2 * X, 0, 3 * X))
    op, inputs = linear(M, K, N)
    assert weight_bytes(op, inputs, row) == W
    assert weight_bytes(op, inputs, recipe("transformer_engine", "NVFP4BlockScaling")) == W * 4.5 / 8


def test_weights_alone_run_at_the_low_format_s_peak():
    slow = replace(ROUND, peaks=(("fp32", 1e9), ("bf16", 1e9), ("fp8", 1e18)), bandwidth=1e15)
    row = replace(recipe("torchao", "tensorwise"), stored=True, activations=False)
    assert spent(row, "inference", slow) == pytest.approx(LAUNCH + 2 * M * K * N / 1e9)
    assert spent(row, "inference") == pytest.approx(gemms(2 * X + W + 2 * G))


@pytest.mark.parametrize(
    ("name", "k", "n", "worth"),
    [("tensorwise", 8192, 2048, True), ("tensorwise", 4096, 1024, False), ("rowwise", 4096, 8192, True),
     ("rowwise", 2048, 4096, False), ("rowwise", 16384, 128, False)],
)  # fmt: skip
@pytest.mark.parametrize("m", [4096, 8192])
def test_verdicts_on_h100_are_those_of_torchao_s_filter(name, k, n, worth, m):
    op, inputs = linear(m, k, n)
    h100 = device("h100")
    low = op_seconds(op, inputs, "bf16", h100, "training")
    assert (seconds(op, inputs, recipe("torchao", name), "bf16", h100, "training") < low) is worth


@pytest.mark.parametrize(
    ("m", "k", "n", "published"), [(16384, 8192, 1280, 1.11), (16384, 8192, 7168, 1.73), (16384, 3584, 8192, 1.71),
                                   (4096, 8192, 16384, 1.39)]
)  # fmt: skip
def test_speed_ups_on_h100_are_near_what_torchao_measured(m, k, n, published):
    """Of tensorwise, compiled: pull request 2185, README of 2024."""
    op, inputs = linear(m, k, n)
    h100 = device("h100")
    low = op_seconds(op, inputs, "bf16", h100, "training")
    speed_up = low / seconds(op, inputs, recipe("torchao", "tensorwise"), "bf16", h100, "training")
    assert speed_up == pytest.approx(published, rel=0.15)


def test_a_norm_in_the_same_module_saves_a_round_trip_of_its_output():
    """Delayed: what is left of the pass is the write of fp8, by the norm, which writes no bf16 (in its own price)."""
    row = recipe("transformer_engine", "DelayedScaling")
    op, inputs = linear(M, K, N)
    fused = seconds(op, inputs, row, "bf16", ROUND, "inference") - saved_by_norm(op, inputs, row, "bf16", ROUND)
    assert fused == pytest.approx(gemms(FORWARD) + passes(3 * W) + X / 0.66e9 - 2 * X / 1e9)


def test_a_norm_in_the_same_module_finds_the_scale():
    row = recipe("transformer_engine", "Float8CurrentScaling")
    op, inputs = linear(M, K, N)
    fused = seconds(op, inputs, row, "bf16", ROUND, "inference") - saved_by_norm(op, inputs, row, "bf16", ROUND)
    assert fused == pytest.approx(gemms(FORWARD) + passes(2 * W, 0, 3 * W) + passes(3 * X))


@pytest.mark.parametrize("name", ["MXFP8BlockScaling", "NVFP4BlockScaling", "Float8BlockScaling"])
def test_a_norm_saves_nothing_where_blocks_are_quantised_apart(name):
    assert saved_by_norm(*linear(M, K, N), recipe("transformer_engine", name), "bf16", ROUND) == 0.0
