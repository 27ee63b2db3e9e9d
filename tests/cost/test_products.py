"""The products in an op, and what a GPU reaches with them, against arithmetic done by hand."""

from __future__ import annotations

from math import sqrt

import pytest

from precision_audit.cost.products import Product, gradients, products, share_of_peak
from precision_audit.hardware import device
from precision_audit.records import Hardware, Op, Operand, Tensor

GPU = Hardware("round", "", "", (("fp32", 1e12),), 1e9, 1e-6, "", processors=100)
CPU = Hardware("round", "", "", (("fp32", 1e12),), 1e9, 1e-6, "", "cpu")


def tensor(*shape, last=False):
    return Tensor("fp32", shape, shape, channels_last=last)


def op(name, kind, output, *arguments, **attributes):
    operands = tuple(Operand(f"v{i}", argument) for i, argument in enumerate(arguments))
    return Op("/op#0", "", name, kind, "", "", operands, (output,), tuple(attributes.items()))


CONV = op("conv2d", "conv", tensor(2, 64, 10, 10), "input", "weight", groups=1)
DEPTHWISE = op("conv2d", "conv", tensor(2, 32, 10, 10), "input", "weight", groups=32)
ATTENTION = op("scaled_dot_product_attention", "attention", tensor(2, 4, 16, 8), "query", "key", "value")


@pytest.mark.parametrize(
    ("made", "inputs", "expected"),
    [
        (op("linear", "matmul", tensor(3, 5, 7), "input", "weight"), (tensor(3, 5, 11), tensor(7, 11)),
         (Product(15, 7, 11, 1, "linear"),)),
        (op("matmul", "matmul", tensor(6, 5, 7), "self", "other"), (tensor(6, 5, 11), tensor(6, 11, 7)),
         (Product(5, 7, 11, 6, "matmul"),)),
        (CONV, (tensor(2, 32, 10, 10), tensor(64, 32, 3, 3)), (Product(200, 64, 288, 1, "conv"),)),
        (CONV, (tensor(2, 32, 10, 10, last=True), tensor(64, 32, 3, 3)), (Product(200, 64, 288, 1, "conv_last"),)),
        (DEPTHWISE, (tensor(2, 32, 10, 10), tensor(32, 1, 3, 3)), (Product(200, 1, 9, 32, "conv"),)),
        (ATTENTION, (tensor(2, 4, 16, 8), tensor(2, 4, 20, 8), tensor(2, 4, 20, 12)),
         (Product(16, 20, 8, 8, "attention"), Product(16, 12, 20, 8, "attention"))),
        (op("relu", "view_layout", tensor(4), "self"), (tensor(4),), None),
    ],
)  # fmt: skip
def test_sizes_of_the_products(made, inputs, expected):
    found = products(made, inputs)
    if expected is None:
        assert sum(each.flops for each in found) <= 4
    else:
        assert found == expected


def test_gradients_sum_over_the_other_sizes():
    left, right = gradients(Product(15, 7, 11, 1, "linear"))
    assert (left.m, left.n, left.k, left.layout) == (15, 11, 7, "matmul")  # [M, N] x [N, K]
    assert (right.m, right.n, right.k, right.layout) == (7, 11, 15, "outer")  # [N, M] x [M, K]
    assert left.flops == right.flops == 2 * 15 * 7 * 11


def filling(depth_bytes):
    return depth_bytes / (depth_bytes + 512)


@pytest.mark.parametrize(
    ("m", "n", "expected"),
    [
        # 1280 x 2560: 100 tiles of 128 x 256, one full wave of 100
        (1280, 2560, 1.0),
        # one row more: a second wave for eleven tiles or so; 256 x 128 and smaller tiles do no better than what remains
        (25_600, 25_600, 1.0),  # 200 x 100 tiles: 200 full waves
    ],
)
def test_whole_waves_of_whole_tiles(m, n, expected):
    assert share_of_peak(Product(m, n, 4096), 2.0, GPU) == pytest.approx(0.78 * expected * filling(8192))


def test_a_tile_more_costs_a_wave_more():
    full = share_of_peak(Product(1280, 2560, 4096), 2.0, GPU)
    more = share_of_peak(Product(1280 + 128, 2560, 4096), 2.0, GPU)
    assert full * 0.55 - 1e-9 <= more < full  # 110 tiles in 200 places; smaller tiles may do a little better


def test_tiny_products_take_the_smallest_tile_and_split_the_sum():
    # one tile of 64 x 64 filled to a sixteenth, eight parts of K on a hundred processors, K of 1024 in each: 2048 bytes
    reuse = (64 * 64 / 128) / (128 * 256 / 384)
    expected = 0.78 * (16 * 16) / (64 * 64) * (8 / 100) * sqrt(reuse) * filling(8192 * 2 / 8)
    assert share_of_peak(Product(16, 16, 8192), 2.0, GPU) == pytest.approx(expected)


def test_a_short_sum_costs_narrow_formats_more():
    product = Product(8192, 8192, 1024)
    wide, narrow = (share_of_peak(product, size, GPU) for size in (2.0, 1.0))
    assert wide / narrow == pytest.approx(filling(2048) / filling(1024))


def test_a_cpu_s_peaks_are_what_it_reaches():
    assert share_of_peak(Product(3, 5, 7), 4.0, CPU) == 1.0


@pytest.mark.parametrize("name", ["v100", "a100", "h100", "b200"])
def test_large_products_reach_nearly_what_was_published(name):
    assert 0.7 < share_of_peak(Product(16384, 8192, 8192), 2.0, device(name)) <= 0.78
