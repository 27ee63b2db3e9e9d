"""Seconds of ops and casts, against arithmetic done by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from precision_audit.capture import capture
from precision_audit.cost.roofline import (
    bound,
    cast_bytes,
    cast_seconds,
    compute_format,
    copy_seconds,
    op_seconds,
    peak_of,
)
from precision_audit.hardware import device
from precision_audit.records import Hardware, Op, Operand, Policy, Rate, Tensor

# Round numbers: 1 TFLOP/s in fp32, 10 in bf16, 1 GB/s, 1 µs; a CPU, whose peaks are what it reaches.
PEAKS = (("fp32", 1e12), ("bf16", 1e13), ("fp8", 2e13), ("tf32", 5e12))
ROUND = Hardware("round", "", "", PEAKS, 1e9, 1e-6, "", "cpu")


def tensor(*shape, format="fp32"):
    return Tensor(format, shape, shape)


def op(name, kind, inputs, output, **fields):
    names = ("input", "weight", "bias") if name == "linear" else ("self", "other")
    operands = tuple(Operand(f"v{i}", argument) for i, (_, argument) in enumerate(zip(inputs, names, strict=False)))
    return Op("/op#0", "", name, kind, "", "", operands, (output,), **fields)


X, W, Y = tensor(128, 1024), tensor(512, 1024), tensor(128, 512)
LINEAR = op("linear", "matmul", (X, W), Y)
FLOPS = 2 * 128 * 1024 * 512
BYTES = {"fp32": 4 * (128 * 1024 + 512 * 1024 + 128 * 512), "bf16": 2 * (128 * 1024 + 512 * 1024 + 128 * 512)}


@pytest.mark.parametrize("format_", ["fp32", "bf16"])
@pytest.mark.parametrize(("mode", "runs"), [("inference", 1), ("training", 3)])
def test_a_product_bound_by_memory(format_, mode, runs):
    assert BYTES[format_] / 1e9 > FLOPS / 1e12
    expected = runs * (1e-6 + BYTES[format_] / 1e9)
    assert op_seconds(LINEAR, (X, W), format_, ROUND, mode) == pytest.approx(expected)


@pytest.mark.parametrize(("format_", "peak"), [("fp32", 1e12), ("bf16", 1e13)])
def test_a_product_bound_by_arithmetic(format_, peak):
    fast = replace(ROUND, bandwidth=1e15)
    assert op_seconds(LINEAR, (X, W), format_, fast, "inference") == pytest.approx(1e-6 + FLOPS / peak)


def test_tf32_changes_the_peak_and_not_the_bytes():
    fast = replace(ROUND, bandwidth=1e15)
    assert op_seconds(LINEAR, (X, W), "fp32", fast, "inference", compute="tf32") == pytest.approx(1e-6 + FLOPS / 5e12)
    slow = op_seconds(LINEAR, (X, W), "fp32", ROUND, "inference", compute="tf32")
    assert slow == pytest.approx(1e-6 + BYTES["fp32"] / 1e9)


@pytest.mark.parametrize(("mode", "runs"), [("inference", 1), ("training", 2)])
def test_other_ops_run_twice_in_training(mode, runs):
    add = op("add", "pointwise_arith", (X, X), X)
    expected = runs * (1e-6 + 3 * 128 * 1024 * 2 / 1e9)
    assert op_seconds(add, (X, X), "bf16", ROUND, mode) == pytest.approx(expected)


def test_integers_are_counted_as_they_are():
    ids, table, rows = tensor(100, format="int64"), tensor(5000, 64), tensor(100, 64)
    lookup = Op(
        "/e#0", "", "embedding", "gather_index", "", "", (Operand("w", "weight"), Operand("i", "indices")), (rows,)
    )
    expected = 1e-6 + (2 * 100 * 64 * 2 + 100 * 8) / 1e9  # reads the rows it writes, and the ids; not the table
    assert op_seconds(lookup, (table, ids), "bf16", ROUND, "inference") == pytest.approx(expected)


def test_a_view_is_free():
    view = op("view", "view_layout", (X,), tensor(1024, 128))
    assert op_seconds(view, (X,), "bf16", ROUND, "training") == 0


@pytest.mark.parametrize(
    ("source", "target", "count"), [("fp32", "bf16", 6), ("bf16", "fp32", 6), ("fp32", "fp8_e4m3fn", 5)]
)
def test_a_cast_reads_and_writes_once(source, target, count):
    size = 128 * 1024
    assert cast_bytes(X, source, target) == size * count
    once = 1e-6 + size * count / 1e9
    assert cast_seconds(X, source, target, ROUND, "inference") == pytest.approx(once)
    assert cast_seconds(X, source, target, ROUND, "training") == pytest.approx(2 * once)


def test_an_empty_tensor_costs_a_launch():
    assert cast_seconds(tensor(0, 16), "fp32", "bf16", ROUND, "inference") == pytest.approx(1e-6)


def test_a_second_copy_is_charged_its_bytes():
    assert copy_seconds(W, "bf16", ROUND) == pytest.approx(512 * 1024 * 2 / 1e9)


def test_a_gpu_reaches_a_share_of_its_bandwidth_and_of_its_peak():
    gpu = replace(ROUND, kernels="cuda")  # without multiprocessors: no waves
    assert cast_seconds(X, "fp32", "bf16", gpu, "inference") == pytest.approx(1e-6 + 128 * 1024 * 6 / 0.92e9)
    # 128 x 512 is two whole tiles of 128 x 256; K of 1024 in bf16 is 2048 bytes, 512 more go on filling the pipeline
    share = 0.78 * 2048 / (2048 + 512)
    seconds = op_seconds(LINEAR, (X, W), "bf16", replace(gpu, bandwidth=1e15), "inference")
    assert seconds == pytest.approx(1e-6 + FLOPS / (1e13 * share))


def test_an_emulated_format_pays_for_its_conversion():
    emulating = replace(ROUND, peaks=(("fp32", 1e12),), units=(("fp32", "vector"), ("bf16", "emulated")))
    sizes = 128 * 1024 + 512 * 1024 + 128 * 512
    expected = 1e-6 + max(FLOPS / 1e12, sizes * 2 / 1e9) + sizes * (2 + 4) / 1e9
    assert op_seconds(LINEAR, (X, W), "bf16", emulating, "inference") == pytest.approx(expected)
    assert op_seconds(LINEAR, (X, W), "fp32", emulating, "inference") == pytest.approx(1e-6 + BYTES["fp32"] / 1e9)


@pytest.mark.parametrize(("mode", "runs"), [("inference", 1), ("training", 2)])
def test_an_op_that_widens_is_no_faster_low(mode, runs):
    """fp32's time, and the bytes of a cast of the input and of the result: 2 and 4 an element."""
    x, weight = tensor(64, 256), tensor(256)
    norm = op("rms_norm", "norm", (x, weight), x)
    size = 64 * 256
    high = runs * (1e-6 + 4 * (2 * size + 256) / 1e9)
    assert op_seconds(norm, (x, weight), "fp32", ROUND, mode) == pytest.approx(high)
    low = high + 2 * runs * 6 * size / 1e9
    assert op_seconds(norm, (x, weight), "bf16", ROUND, mode) == pytest.approx(low)
    on_gpu = op_seconds(norm, (x, weight), "bf16", replace(ROUND, kernels="cuda"), mode)
    assert on_gpu < high


RATES = (
    Rate("linear", "bf16", 128, 2e9, 256), Rate("linear", "bf16", 128, 8e9, 4096), Rate("linear", "fp32", 128, 5e10, 1),
    Rate("matmul", "bf16", 128, 1e9, 256), Rate("outer", "bf16", 128, 5e8, 256),
    Rate("pointwise", "bf16", 1e5, 4e9), Rate("cast", "fp32>bf16", 1e6, 3e9),
)  # fmt: skip
MEASURED = replace(ROUND, rates=RATES)


def test_measured_rates_go_before_the_roofline():
    # K of 1024 lies in the middle of 256 and 4096 on the logarithm, and so does the rate between 2 and 8 GFLOP/s
    assert op_seconds(LINEAR, (X, W), "bf16", MEASURED, "inference") == pytest.approx(FLOPS / 4e9)
    assert op_seconds(LINEAR, (X, W), "fp32", MEASURED, "inference") == pytest.approx(FLOPS / 5e10)
    add = op("add", "pointwise_arith", (X, X), X)
    assert op_seconds(add, (X, X), "bf16", MEASURED, "inference") == pytest.approx(3 * 128 * 1024 * 2 / 4e9)
    assert cast_seconds(X, "fp32", "bf16", MEASURED, "inference") == pytest.approx(128 * 1024 * 6 / 3e9)


def test_gradients_have_kernels_of_their_own():
    """The gradient of the input multiplies by [N, K] as it lies, that of the weight by rows of the sum."""
    expected = FLOPS / 4e9 + FLOPS / 1e9 + FLOPS / 5e8
    assert op_seconds(LINEAR, (X, W), "bf16", MEASURED, "training") == pytest.approx(expected)


def test_a_measured_op_takes_no_less_than_a_launch():
    little = tensor(4)
    add = op("add", "pointwise_arith", (little, little), little)
    assert op_seconds(add, (little, little), "bf16", MEASURED, "inference") == pytest.approx(1e-6)


def test_what_was_not_measured_goes_by_the_roofline():
    assert cast_seconds(X, "bf16", "fp32", MEASURED, "inference") == pytest.approx(128 * 1024 * 6 / 1e9)


@pytest.mark.parametrize(
    ("bandwidth", "launch", "expected"), [(1e9, 1e-6, "memory"), (1e15, 1e-6, "compute"), (1e15, 1, "launch")]
)
def test_what_bounds_a_product(bandwidth, launch, expected):
    there = replace(ROUND, bandwidth=bandwidth, launch=launch)
    assert bound(LINEAR, (X, W), "fp32", there) == expected


@pytest.mark.parametrize(
    ("name", "format_", "peak"),
    [
        ("v100", "bf16", 15.7e12),
        ("h100", "fp8_e4m3fn", 1978.9e12),
        ("a100", "fp8", 19.5e12),
        ("h100", "bf16", 989.4e12),
    ],
)
def test_a_format_without_a_unit_runs_at_the_fp32_peak(name, format_, peak):
    assert peak_of(device(name), format_) == pytest.approx(peak)


@pytest.mark.parametrize(
    ("environment", "high", "compute"),
    [
        ((), "fp32", ""),
        ((("torch.backends.cuda.matmul.allow_tf32", "true"),), "fp32", "tf32"),
        ((("torch.backends.cuda.matmul.allow_tf32", "false"),), "fp32", ""),
        ((("torch.backends.cuda.matmul.fp32_precision", "tf32"),), "fp32", "tf32"),
        ((("torch.backends.fp32_precision", "tf32"),), "fp32", "tf32"),
        ((("torch.backends.fp32_precision", "ieee"),), "fp32", ""),
        ((("torch.backends.cudnn.conv.fp32_precision", "tf32"),), "fp32", ""),  # convolutions only
        ((("torch.backends.fp32_precision", "tf32"),), "bf16", ""),
    ],
)
def test_the_environment_may_switch_tf32_on(environment, high, compute):
    policy = Policy("p", "p.yaml", "", "inference", high, "fp16", (), environment=environment)
    assert compute_format(policy) == compute


@pytest.mark.parametrize(("batch_first", "shape"), [(True, (4, 100, 8)), (False, (100, 4, 8))])
@pytest.mark.parametrize(("mode", "passes"), [("inference", 1), ("training", 3)])
def test_steps_of_a_recurrence_wait_for_one_another(batch_first, shape, mode, passes):
    module = nn.LSTM(8, 8, num_layers=2, batch_first=batch_first)
    graph = capture(module, (torch.randn(shape),), None, mode="inference").graph
    tensors = {value: made for each in graph.ops for value, made in zip(each.values, each.outputs, strict=True)}
    (recurrent,) = [each for each in graph.ops if each.op == "lstm"]
    inputs = [tensors[operand.value] for operand in recurrent.operands]
    fast = replace(ROUND, bandwidth=1e15, peaks=(("fp32", 1e18), ("bf16", 1e18)))
    for format_ in ("fp32", "bf16"):  # 100 steps of two layers, 1 µs each
        assert op_seconds(recurrent, inputs, format_, fast, mode) == pytest.approx(passes * 200e-6)
