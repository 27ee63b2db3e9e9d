"""Seconds and bytes of calls on a device, measured side by side.

`seconds` interleaves: each round runs every call once, so that a clock that drops or a neighbour that wakes meets all
of them. CUDA events on the GPU, which ticks when the work is done and not when it is queued; the process's clock on the
CPU. A call that raises is left out and what it said is kept; the others go on.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

Call = Callable[[], object]


@dataclass(frozen=True)
class Timed:
    median: float
    low: float  # the tenth part of rounds is faster
    high: float  # and slower
    rounds: int


def seconds(calls: Mapping[str, Call], device: str, rounds: int) -> tuple[dict[str, Timed], dict[str, str]]:
    """Seconds of each call, and what those that raised said."""
    failed: dict[str, str] = {}
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 3):  # three to warm up
        for name, call in calls.items():
            if name in failed:
                continue
            try:
                spent = once(call, device)
            except Exception as error:
                failed[name] = first_line(error)
                continue
            if number >= 3:
                taken[name].append(spent)
    return {name: _timed(each) for name, each in taken.items() if name not in failed}, failed


def once(call: Call, device: str) -> float:
    """Seconds of one call."""
    if device == "cpu":
        started = time.perf_counter()
        call()
        return time.perf_counter() - started
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3


def peak_bytes(call: Call, held: int, device: str) -> int | None:
    """Bytes at the peak of a call: what the model holds (`held`) and what the call adds; None where that cannot be
    asked."""
    if device == "cpu":
        call()
        return None
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return held + torch.cuda.max_memory_allocated() - before


def held_bytes(module: torch.nn.Module) -> int:
    """Bytes of parameters and buffers, each tensor once."""
    tensors = {id(each): each for each in (*module.parameters(), *module.buffers())}
    return sum(each.numel() * each.element_size() for each in tensors.values())


def first_line(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:200] if text else ''}"


def _timed(spent: list[float]) -> Timed:
    ordered = sorted(spent)
    tenth = len(ordered) // 10
    return Timed(statistics.median(ordered), ordered[tenth], ordered[-1 - tenth], len(ordered))
