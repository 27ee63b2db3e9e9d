"""What kernels reach on the machine at hand: a few hundred small runs, seconds in all.

Takes a torch device name; gives `Rate`s, the launch and the bandwidth. Every point (a kind of kernel, a format, a size)
is run twice to warm it, then in interleaved rounds, and the fastest counts: what disturbs a run makes it longer, never
shorter. Seconds are those of the wall or, where fewer, of the process's processors: what a run waits for its turn is
not its own. Two significant digits are kept; more would be noise. Never looks at a model: a prediction of one that was
fitted to it would predict nothing.

To measure another kind of kernel, add it to `_products` or `_movers` and give it its name in `cost.roofline`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from precision_audit.formats import bytes_of, dtype_of
from precision_audit.records import Rate

Run = Callable[[], Any]

FORMATS = ("fp32", "bf16", "fp16")
_ROUNDS = 5
_LONG = 2e-2  # s of a run that is measured once: a format without units, and hardly disturbed
_AT_LEAST = 2e-4  # s that a timed stretch takes, so that the clock's own time does not count


class Point(NamedTuple):
    """One thing to measure: `work` in FLOPs or bytes."""

    kind: str
    format: str
    size: float
    depth: float
    work: float
    run: Run


class Speed(NamedTuple):
    rates: tuple[Rate, ...]
    launch: float
    bandwidth: float


def measure(device: str = "cpu", scale: int = 1, rounds: int = _ROUNDS) -> Speed:
    """`scale` multiplies rows and depths of products and the sizes of everything else; a GPU needs larger ones."""
    with torch.no_grad(), torch.autocast(device, enabled=False):
        wait = torch.cuda.synchronize if device == "cuda" else _nothing
        one = torch.ones(1, device=device)
        points = [point for point in _points(device, scale, wait) if _runs(point.run)]
        *seconds, launch = _fastest([*points, Point("launch", "fp32", 1, 1, 1, lambda: one + one)], wait, rounds)
    rates = tuple(
        Rate(point.kind, point.format, point.size, rounded(point.work / taken), point.depth)
        for point, taken in zip(points, seconds, strict=True)
    )
    # Memory's pace is that of the copy with the most bytes.
    copies = [each for each in rates if (each.kind, each.format) == ("copy", "fp32")]
    return Speed(rates, rounded(launch), max(copies, key=lambda each: each.size).per_second)


def rounded(value: float) -> float:
    """Two significant digits."""
    return float(f"{value:.1e}")


def _points(device: str, scale: int, wait: Callable[[], None]) -> Iterator[Point]:
    for format_ in FORMATS:
        generator = torch.Generator().manual_seed(0)
        make = _Maker(device, format_, generator)
        yield from _products(make, scale, _WIDER if _quick(make, wait) else 1)
        yield from _movers(make, scale)


class _Maker:
    """Makes tensors of one format."""

    def __init__(self, device: str, format_: str, generator: torch.Generator) -> None:
        self.format, self._device, self._generator = format_, device, generator

    def __call__(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self._generator).to(self._device, dtype_of(self.format))


# Sizes on a CPU: small enough that bf16 without units, a hundredth of fp32's pace, is measured in milliseconds.
_ROWS = {"linear": (1, 16, 128, 512), "matmul": (16, 128), "outer": (16, 128)}
_COLUMNS = 256
_DEPTHS = (64, 256, 1024)
# Channels in and out, kernel, side. The large images leave the caches, where kernels without units take three times as
# long; few channels out, that they take no longer to measure.
_IMAGES = (
    (64, 64, 1, 14), (256, 64, 1, 14), (64, 64, 3, 14), (256, 64, 3, 14), (64, 16, 1, 64), (64, 16, 3, 64),
)  # fmt: skip
_SEQUENCES = (16, 128)
_HEADS, _HEAD_SIZE = 4, 64
# Matrix units starve on products as narrow as these. Where one takes less than this, all are measured so much wider.
_SOON, _WIDER = 5e-3, 4


def _quick(make: _Maker, wait: Callable[[], None]) -> bool:
    rows, depth = _ROWS["linear"][-1], _DEPTHS[-1]
    run = _product("linear", make, rows, _COLUMNS, depth)
    return _runs(run) and min(_stretch(run, 1, wait) for _ in range(3)) < _SOON


def _products(make: _Maker, scale: int, wider: int) -> Iterator[Point]:
    """Products of a few numbers of rows and depths, `wider` times as many columns and channels as the table says."""
    columns = _COLUMNS * scale * wider
    for layout, all_rows in _ROWS.items():
        for rows in (each * scale if each > 1 else each for each in all_rows):
            for depth in (each * scale for each in _DEPTHS):
                run = _product(layout, make, rows, columns, depth)
                yield Point(layout, make.format, rows, depth, 2 * rows * columns * depth, run)
    for image in _IMAGES:
        entering, leaving, kernel, side = image[0], image[1] * wider, *image[2:]
        for layout in ("conv", "conv_last"):
            depth, rows = entering * kernel**2, side**2 * scale
            run = _convolution(layout, make, scale, (entering, leaving, kernel, side))
            yield Point(layout, make.format, rows, depth, 2 * rows * depth * leaving, run)
    for length in (each * scale for each in _SEQUENCES):
        query = make(1, _HEADS, length, _HEAD_SIZE)
        work = 4 * _HEADS * length**2 * _HEAD_SIZE
        yield Point("attention", make.format, length, 1, work, _bound(F.scaled_dot_product_attention, *[query] * 3))


def _product(layout: str, make: _Maker, rows: int, columns: int, depth: int) -> Run:
    if layout == "linear":
        return _bound(F.linear, make(rows, depth), make(columns, depth), make(columns))
    if layout == "matmul":
        return _bound(torch.matmul, make(rows, depth), make(depth, columns))
    return _bound(torch.matmul, make(depth, rows).t(), make(depth, columns))


def _convolution(layout: str, make: _Maker, batch: int, image: tuple[int, int, int, int]) -> Run:
    entering, leaving, kernel, side = image
    order = torch.channels_last if layout == "conv_last" else torch.contiguous_format
    images = make(batch, entering, side, side).contiguous(memory_format=order)
    weight = make(leaving, entering, kernel, kernel).contiguous(memory_format=order)
    return _bound(F.conv2d, images, weight, None, 1, kernel // 2)


_ELEMENTS = (2**14, 2**20, 2**22)  # the last leaves the caches next to a core
_ROW = 256


def _movers(make: _Maker, scale: int) -> Iterator[Point]:
    """Everything that is bound by memory or by evaluating a function, with the elements it reads and writes for each of
    its input's."""
    size = bytes_of(make.format)
    for count in (each * scale for each in _ELEMENTS):
        flat = make(count)
        rows, images = flat.view(-1, _ROW), flat.view(1, 64, -1, 16)
        ones = make(_ROW).abs(), make(64).abs()
        runs: dict[str, tuple[int, Run]] = {
            "pointwise": (3, _bound(torch.add, flat, flat)),
            "transcendental": (2, _bound(F.gelu, flat)),
            "norm": (2, _bound(F.layer_norm, rows, (_ROW,), ones[0], ones[0])),
            "batch_norm": (2, _bound(F.batch_norm, images, ones[1], ones[1], ones[1], ones[1])),
            "softmax": (2, _bound(torch.softmax, rows, -1)),
            "reduction": (1, _bound(torch.sum, rows, -1)),
            "copy": (2, flat.clone),
        }
        for kind, (times, run) in runs.items():
            yield Point(kind, make.format, times * count * size, 1, times * count * size, run)
        for source, target in (("fp32", make.format), (make.format, "fp32")) if make.format != "fp32" else ():
            moved = count * (size + bytes_of("fp32"))
            run = _bound(flat.to(dtype_of(source)).to, dtype_of(target))
            yield Point("cast", f"{source}>{target}", moved, 1, moved, run)


def _bound(function: Callable[..., Any], *args: Any) -> Run:
    return lambda: function(*args)


def _runs(run: Run) -> bool:
    """Whether this build has the kernel; a format without is not measured."""
    try:
        run()
    except (RuntimeError, NotImplementedError):
        return False
    return True


def _fastest(points: Sequence[Point], wait: Callable[[], None], rounds: int) -> list[float]:
    for point in points:
        _stretch(point.run, 1, wait)  # the first call of a kernel also sets it up
    taken = [[_warm(point.run, 1, wait)] for point in points]
    repeats = [max(1, int(_AT_LEAST / once)) for (once,) in taken]
    for _ in range(rounds):
        for times, point, repeat in zip(taken, points, repeats, strict=True):
            if times[0] < _LONG:
                times.append(_warm(point.run, repeat, wait) / repeat)
    return [min(each) for each in taken]


def _warm(run: Run, repeats: int, wait: Callable[[], None]) -> float:
    """After a run that does not count: it wakes the threads and finds its operands, as an op before does."""
    run()
    return _stretch(run, repeats, wait)


def _stretch(run: Run, repeats: int, wait: Callable[[], None]) -> float:
    wait()
    wall, own = time.perf_counter(), time.process_time()
    for _ in range(repeats):
        run()
    wait()
    wall, own = time.perf_counter() - wall, time.process_time() - own
    return max(wall if wait is not _nothing else min(wall, own), 1e-9)


def _nothing() -> None:
    """A CPU is done when the call returns."""
