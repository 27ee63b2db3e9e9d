"""How reports write numbers, sizes, paths and lists of names; one way for all formats.

Takes plain values, gives strings. Never rounds a number to zero and never writes an absolute path.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from precision_audit.records import Graph, Lint, Meta, Op, Source

NOTHING_RUN = "no input was run, so confidence is low: findings rest on weights, constants and shapes alone (PROVED)"

_FILES_NAMED = 3  # more are counted
_SIZES = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))  # of memory, as devices are listed and torch reports it
_SECONDS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))
_STYLES = {"good": "32", "bad": "31;1", "warn": "33", "quiet": "2", "strong": "1"}  # ANSI SGR codes
_INDEX = re.compile(r"(?<![^./])\d+(?![^./])")  # a whole component of a module path: the 3 of layers.3.fc1


def figure(value: float | None, short: bool = False, more: int = 0) -> str:
    """Two digits and `more`: 2.0e-3, 0, inf; - for what was not measured. `short`, for limits, writes 1e-2 and not
    1.0e-2."""
    if value is None:
        return "-"
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    mantissa, exponent = f"{value:.{1 + more}e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.') if short else mantissa}e{int(exponent)}"


def share(value: float | None, more: int = 0) -> str:
    """A share as a percentage that is never rounded to none."""
    if value is None:
        return "-"
    return "0 %" if value == 0 else f"{value:.{2 + more}%}".replace("%", " %") if value >= 5e-5 else "< 0.01 %"


def needed(value: float | None, limit: float | None, write: Callable[..., str]) -> int:
    """How many more digits it takes to tell a value from its limit, written by `figure` or `share`: 5.0e-3 beside a
    limit of 5e-3 that it exceeds says nothing."""
    if value is None or limit is None or value == limit:
        return 0
    return next((more for more in range(15) if write(value, more=more) != write(limit, more=more)), 0)


def amount(value: int) -> str:
    """1.20 M, 768, 25.56 M, 7.24 G."""
    for unit, factor in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if value >= factor:
            return f"{value / factor:.2f} {unit}"
    return str(value)


def size(count: int) -> str:
    """Memory, in powers of two: 12 bytes, 1.50 KiB, 80.00 GiB."""
    unit, factor = next(((unit, factor) for unit, factor in _SIZES if count >= factor), ("bytes", 1))
    return f"{count} bytes" if factor == 1 else f"{count / factor:.2f} {unit}"


def duration(seconds: float) -> str:
    """Three digits and a unit: 1.23 ms, 45.6 µs."""
    unit, factor = next(((unit, factor) for unit, factor in _SECONDS if seconds >= factor), _SECONDS[-1])
    return f"{seconds / factor:.3g} {unit}"


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def scripts(lint: Lint) -> str:
    """`train.py: 1 training loop`; `12 files: no training loop found`."""
    few = len(lint.files) <= _FILES_NAMED
    files = ", ".join(path(each) for each in lint.files) if few else count(len(lint.files), "file")
    return f"{files}: {count(lint.loops, 'training loop') if lint.loops else 'no training loop found'}"


def path(file: str) -> str:
    """Relative to the working directory, from `site-packages` on, or the bare name: reports name no machine."""
    if not os.path.isabs(file):
        return file
    relative = os.path.relpath(file)
    if not relative.startswith(os.pardir):
        return relative
    _, found, rest = file.rpartition(f"site-packages{os.sep}")
    return rest if found else os.path.basename(file)


def device(meta: Meta) -> str:
    """`device h100 (policy)`, `device local (default: AMD EPYC, measured)`."""
    return f"device {meta.device} ({meta.device_from}{f': {meta.machine}' if meta.machine else ''})"


def own_format(graph: Graph) -> str:
    """The low format that the model's own parameters are in, "" where they are not."""
    formats = {op.outputs[0].format for op in graph.ops if op.kind == "parameter"}
    return next((name for name in ("bf16", "fp16") if name in formats), "")


def baseline(graph: Graph, high: str) -> str:
    """What the plan stands beside: `all fp32`, or `the model as given (bf16)` where its parameters (without any, its
    inputs) are not all in the high format already."""
    from precision_audit.formats import is_float  # needs torch, which `lint` does without

    for kind in ("parameter", "input"):
        formats = {tensor.format for op in graph.ops if op.kind == kind for tensor in op.outputs}
        if floats := sorted(name for name in formats if is_float(name)):
            return f"all {high}" if floats == [high] else f"the model as given ({', '.join(floats)})"
    return f"all {high}"


def beside(graph: Graph, high: str) -> str:
    """The same within a sentence: `fp32`, `the model as given`."""
    return baseline(graph, high).removeprefix("all ").partition(" (")[0]


def location(source: Source | None, otherwise: str) -> str:
    return f"{path(source.file)}:{source.line}" if source else otherwise


def label(op: Op, alone: bool) -> str:
    """What a reader calls an op: its module where that holds no other op, else module/op, at the root the op's name."""
    if not op.module:
        return op.op
    return op.module if alone else f"{op.module}/{op.op}"


def names(labels: Sequence[str], width: int = 0) -> str:
    """`conv1, conv2`, `relu x3`, `layers.*.fc1 x12`. Where that is wider than `width`: by the last part of each name,
    `query x12, key x12, dense x36`, cut with … if that is too wide as well."""
    text = ", ".join(_items(labels))
    if not width or len(text) <= width:
        return text
    return _cut(_items([_last(label) for label in labels]), width)


def paint(text: str, style: str, color: bool) -> str:
    return f"\033[{_STYLES[style]}m{text}\033[0m" if color and text else text


def _items(labels: Iterable[str]) -> list[str]:
    counts = Counter(labels)
    patterns: dict[str, list[str]] = {}
    for name in counts:
        patterns.setdefault(_INDEX.sub("*", name), []).append(name)
    items = []
    for pattern, members in patterns.items():
        if len(members) > 1 and pattern.strip("*./"):
            items.append(f"{pattern} x{sum(counts[name] for name in members)}")
        else:
            items.extend(name if counts[name] == 1 else f"{name} x{counts[name]}" for name in members)
    return items


def _last(label: str) -> str:
    """`layers.3.fc1` → fc1, `layers.3.attention/softmax` → softmax, `net.0` → net.0: a number alone says nothing."""
    parts = re.split(r"[./]", label)
    return ".".join(parts[-2:]) if parts[-1].isdigit() else parts[-1]


def _cut(items: Sequence[str], width: int) -> str:
    for kept in range(len(items), 0, -1):
        text = ", ".join(items[:kept]) + ("…" if kept < len(items) else "")
        if len(text) <= width:
            return text
    # one name alone is too long: its end says more than its beginning
    more = "…" if len(items) > 1 else ""
    return "…" + items[0][-(width - 1 - len(more)) :] + more
