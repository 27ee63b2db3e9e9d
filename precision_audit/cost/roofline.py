"""What an op and a cast cost on a device: seconds by the roofline model.

Takes an op, its input tensors (example's sizes) and a format; gives seconds: a launch and the longer of computing and
moving memory. Backward counts in training: a GEMM runs three times (forward, gradient of the input, gradient of the
weight), every other op and every cast twice. Never measures, never looks at other ops: whether a tensor is cast at all
is the plan's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from precision_audit import ops
from precision_audit.formats import bytes_of
from precision_audit.records import Hardware, Mode, Op, Policy, Tensor

# Kinds of the op table that run on matrix units.
MATRIX_KINDS = frozenset({"matmul", "conv", "attention", "rnn"})

# Settings of a policy's environment under which fp32 products run on tf32 units.
_TF32 = frozenset(
    {
        ("torch.backends.cuda.matmul.allow_tf32", "true"),
        ("torch.backends.cuda.matmul.fp32_precision", "tf32"),
        ("torch.backends.fp32_precision", "tf32"),
    }
)


def op_seconds(
    op: Op,
    inputs: Sequence[Tensor],
    format_: str,
    hardware: Hardware,
    mode: Mode,
    *,
    compute: str = "",
) -> float:
    """Seconds of `op` with its floats in `format_`. `compute` names the peak when it is not the format's own (tf32).
    An op that computes nothing and moves nothing (a view) is free."""
    flops, moved = ops.flops(op, inputs), ops.bytes_moved(op, inputs, format_)
    if not flops and not moved:
        return 0.0
    matrix = op.kind in MATRIX_KINDS
    peak = peak_of(hardware, (compute or format_) if matrix else "fp32")
    return _runs(matrix, mode) * (hardware.launch + max(flops / peak, moved / hardware.bandwidth))


def fp8_seconds(op: Op, inputs: Sequence[Tensor], low: str, hardware: Hardware, mode: Mode) -> float:
    """Seconds of a linear whose input and weight are scaled to fp8 on the fly: each is read once for its largest
    magnitude, then read again and written at one byte an element."""
    peak = peak_of(hardware, "fp8")
    scaled = sum(elements(tensor) for tensor in inputs[:2])
    scaling = 4 * hardware.launch + scaled * (2 * bytes_of(low) + 1) / hardware.bandwidth
    moved = scaled + sum(elements(tensor) * bytes_of(low) for tensor in (*inputs[2:], *op.outputs))
    gemm = hardware.launch + max(ops.flops(op, inputs) / peak, moved / hardware.bandwidth)
    return _runs(True, mode) * (gemm + scaling)


def cast_bytes(tensor: Tensor, source: str, target: str) -> int:
    """Bytes one cast reads and writes."""
    return int(elements(tensor) * (bytes_of(source) + bytes_of(target)))


def cast_seconds(tensor: Tensor, source: str, target: str, hardware: Hardware, mode: Mode) -> float:
    """Seconds of one cast; in training its gradient is cast back."""
    once = hardware.launch + cast_bytes(tensor, source, target) / hardware.bandwidth
    return once * (2 if mode == "training" else 1)


def copy_seconds(tensor: Tensor, format_: str, hardware: Hardware) -> float:
    """What keeping a second copy of a parameter is charged: its bytes at the memory's pace. It costs no run time."""
    return elements(tensor) * bytes_of(format_) / hardware.bandwidth


def elements(tensor: Tensor) -> int:
    """Elements at the example's sizes."""
    return prod(tensor.hint)


def peak_of(hardware: Hardware, format_: str) -> float:
    """FLOP/s of matrix products in a format; that of fp32 where the device has no unit for it."""
    family = format_.partition("_")[0]  # fp8 of fp8_e4m3fn
    found = {name: peak for name, peak in hardware.peaks if name in (format_, family, "fp32")}
    return found.get(format_) or found.get(family) or found["fp32"]


def compute_format(policy: Policy) -> str:
    """The peak that fp32 products reach under the policy's environment: "tf32" where it is switched on, else ""."""
    if policy.high != "fp32":
        return ""
    return "tf32" if any(setting in _TF32 for setting in policy.environment) else ""


def _runs(matrix: bool, mode: Mode) -> int:
    if mode == "inference":
        return 1
    return 3 if matrix else 2
