"""What kernels were measured to reach, read off between the measured sizes.

Takes a device with `rates`, a kind, a format and a size; gives FLOP/s or byte/s, 0.0 where nothing was measured. Points
lie on lines of equal rows with several depths; between points the logarithm of the rate is linear in the logarithms of
the sizes, and beyond the last point it stays. Never extrapolates, never measures.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import exp, log

from precision_audit.records import Hardware, Rate

Line = list[tuple[float, float]]  # (log size, log rate), ascending
_Table = dict[tuple[str, str], list[tuple[float, Line]]]

_known: dict[int, tuple[tuple[Rate, ...], _Table]] = {}  # by id; the tuple is held, so that its id stays its own


def rate(hardware: Hardware, kind: str, format_: str, size: float, depth: float = 1.0) -> float:
    """`size`: rows of a product, bytes moved by everything else; `depth`: how many values a product sums into one."""
    lines = _table(hardware.rates).get((kind, format_))
    if not lines:
        return 0.0
    across = [(at, _between(line, log(max(depth, 1.0)))) for at, line in lines]
    return exp(_between(across, log(max(size, 1.0))))


def _between(line: Sequence[tuple[float, float]], at: float) -> float:
    position = bisect_left(line, (at, float("-inf")))
    if position == 0:
        return line[0][1]
    if position == len(line):
        return line[-1][1]
    (left, low), (right, high) = line[position - 1], line[position]
    return low + (high - low) * (at - left) / (right - left)


def _table(rates: tuple[Rate, ...]) -> _Table:
    found = _known.get(id(rates))
    if found is None:
        found = _known[id(rates)] = (rates, _sorted(rates))
    return found[1]


def _sorted(rates: Sequence[Rate]) -> _Table:
    grid: dict[tuple[str, str], dict[float, dict[float, float]]] = {}
    for each in rates:
        line = grid.setdefault((each.kind, each.format), {}).setdefault(log(each.size), {})
        line[log(max(each.depth, 1.0))] = log(each.per_second)
    return {key: sorted((size, sorted(line.items())) for size, line in lines.items()) for key, lines in grid.items()}
