"""What an op and a cast cost on a device: seconds by the roofline model, or by what its kernels were measured to reach.

Takes an op, its input tensors (example's sizes) and a format; gives seconds: a launch and the longer of computing and
moving memory, each at the share of its peak that the sizes allow (`products`). Where the device has rates, the work at
the measured rate, and no less than a launch. Backward counts in training: a product has two more with sizes of their
own, every other op and every cast runs twice. Never measures, never looks at other ops: whether a tensor is cast at all
is the plan's business.

A format that the device has no unit for is computed at the fp32 peak; where that is done by converting (`emulated`),
the operands are read once more and written in fp32, and so is the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Literal

from precision_audit import ops
from precision_audit.cost.products import Product, bandwidth_of, gradients, products, share_of_peak
from precision_audit.cost.rates import rate
from precision_audit.formats import bytes_of, is_float
from precision_audit.records import Hardware, Mode, Op, Policy, Tensor

# Kinds of the op table that run on matrix units.
MATRIX_KINDS = frozenset({"matmul", "conv", "attention", "rnn"})

# What everything else is measured as, by kind of the op table; kinds that are not named: pointwise.
KINDS = {
    "transcendental_contracting": "transcendental", "transcendental_expanding": "transcendental", "loss": "softmax",
    "norm": "norm", "softmax": "softmax", "reduction": "reduction", "view_layout": "copy", "concat": "copy",
    "gather_index": "copy", "scatter_write": "copy", "cast": "copy", "factory": "copy",
}  # fmt: skip
_BATCH_NORMS = ("batch_norm", "native_batch_norm", "_native_batch_norm_legit")

Bound = Literal["", "compute", "memory", "launch"]

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
    if ops.widens(op.op, format_, hardware.kernels):  # its own casts are no launches of the plan's
        within = sum(_casting(each, format_, "fp32", hardware) for each in (inputs[0], op.outputs[0]))
        return within * (1 if mode == "inference" else 2) + op_seconds(op, inputs, "fp32", hardware, mode)
    if op.kind not in MATRIX_KINDS or not flops:
        once = _launched(_moving(op, format_, flops, moved, hardware), hardware)
        return once * (1 if mode == "inference" else 2)
    forward = products(op, inputs)
    runs = [forward]
    if mode == "training":  # a gradient reads and writes tensors of the same three sizes
        runs += [tuple(gradients(each)[side] for each in forward) for side in (0, 1)]
    whole = sum(each.flops for each in forward)
    waiting = len(runs) * _steps(op, inputs) * hardware.launch
    together = sum(
        _launched(
            sum(product_seconds(each, moved * each.flops / whole, format_, hardware, compute) for each in run), hardware
        )
        for run in runs
    )
    return max(together, waiting)


def product_seconds(
    product: Product, moved: float, format_: str, hardware: Hardware, compute: str = "", *, stored: float = 0.0
) -> float:
    """Seconds of one product, its launch not counted, that moves so many bytes. `stored`: bytes of an element of its
    factors, where that is not the format's."""
    reached = rate(hardware, product.layout, format_, product.m, product.k)
    if reached:
        return product.flops / reached
    peak = peak_of(hardware, compute or format_)
    share = share_of_peak(product, stored or bytes_of(format_), hardware)
    converting = _conversion(product, format_, hardware, stored)
    return max(product.flops / (peak * share), moved / bandwidth_of(hardware)) + converting


def bound(op: Op, inputs: Sequence[Tensor], format_: str, hardware: Hardware, *, compute: str = "") -> Bound:
    """What takes most of one forward run of an op; "" for a free one."""
    flops, moved = ops.flops(op, inputs), ops.bytes_moved(op, inputs, format_)
    if not flops and not moved:
        return ""
    memory, computing = moved / bandwidth_of(hardware), 0.0
    if op.kind in MATRIX_KINDS and flops:
        computing = sum(product_seconds(each, 0.0, format_, hardware, compute) for each in products(op, inputs))
    elif not hardware.rates:
        computing = flops / peak_of(hardware, "fp32")
    whole = op_seconds(op, inputs, format_, hardware, "inference", compute=compute)
    if hardware.launch > whole / 2:
        return "launch"
    return "compute" if computing > memory else "memory"


def cast_bytes(tensor: Tensor, source: str, target: str) -> int:
    """Bytes one cast reads and writes."""
    return int(elements(tensor) * (bytes_of(source) + bytes_of(target)))


def cast_seconds(tensor: Tensor, source: str, target: str, hardware: Hardware, mode: Mode) -> float:
    """Seconds of one cast; in training its gradient is cast back."""
    once = _cast_once(tensor, source, target, hardware)
    return once if mode == "inference" else once + _cast_once(tensor, target, source, hardware)


def copy_seconds(tensor: Tensor, format_: str, hardware: Hardware) -> float:
    """What keeping a second copy of a parameter is charged: its bytes at the memory's pace. It costs no run time."""
    return elements(tensor) * bytes_of(format_) / hardware.bandwidth


def elements(tensor: Tensor) -> int:
    """Elements at the example's sizes."""
    return prod(tensor.hint)


def peak_of(hardware: Hardware, format_: str) -> float:
    """FLOP/s of products in a format; that of fp32 where the device has no unit for it."""
    family = format_.partition("_")[0]  # fp8 of fp8_e4m3fn
    found = {name: peak for name, peak in hardware.peaks if name in (format_, family, "fp32")}
    return found.get(format_) or found.get(family) or found["fp32"]


def compute_format(policy: Policy) -> Literal["", "tf32"]:
    """The peak that fp32 products reach under the policy's environment: "tf32" where it is switched on, else ""."""
    if policy.high != "fp32":
        return ""
    return "tf32" if any(setting in _TF32 for setting in policy.environment) else ""


def _steps(op: Op, inputs: Sequence[Tensor]) -> int:
    """Steps of a recurrent op that wait for one another, each a launch at least, whatever runs them; 0 of others."""
    given = dict(op.attributes)
    layers = given.get("num_layers")
    if op.kind != "rnn" or not isinstance(layers, int) or not inputs or len(inputs[0].hint) < 2:
        return 0
    axis = 1 if given.get("batch_first") and len(inputs[0].hint) == 3 else 0
    return layers * inputs[0].hint[axis]


def _launched(work: float, hardware: Hardware) -> float:
    """With the launch, which a measured rate has in it."""
    return max(work, hardware.launch) if hardware.rates else work + hardware.launch


def _moving(op: Op, format_: str, flops: int, moved: int, hardware: Hardware) -> float:
    """Seconds of an op that is no product, its launch not counted."""
    kind = "batch_norm" if op.op in _BATCH_NORMS else KINDS.get(op.kind, "pointwise")
    measured_as = format_ if any(is_float(tensor.format) for tensor in op.outputs) else "fp32"
    if reached := rate(hardware, kind, measured_as, moved):
        return moved / reached
    return max(flops / peak_of(hardware, "fp32"), moved / bandwidth_of(hardware))


def _cast_once(tensor: Tensor, source: str, target: str, hardware: Hardware) -> float:
    return _launched(_casting(tensor, source, target, hardware), hardware)


def _casting(tensor: Tensor, source: str, target: str, hardware: Hardware) -> float:
    """Seconds of a cast, its launch not counted."""
    moved = cast_bytes(tensor, source, target)
    return moved / (rate(hardware, "cast", f"{source}>{target}", moved) or bandwidth_of(hardware))


def _conversion(product: Product, format_: str, hardware: Hardware, stored: float) -> float:
    """Seconds of widening both factors to fp32 and narrowing the result, where a format is computed so."""
    family = format_.partition("_")[0]
    peaks, units = dict(hardware.peaks), dict(hardware.units)
    unit = units.get(format_, units.get(family, "" if {format_, family} & peaks.keys() else "emulated"))
    if unit != "emulated":
        return 0.0
    m, n, k, batch, _ = product
    held = stored or bytes_of(format_)
    return batch * (m * k + k * n + m * n) * (held + bytes_of("fp32")) / bandwidth_of(hardware)
