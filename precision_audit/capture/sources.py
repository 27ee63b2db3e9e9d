"""Where in the user's code: stack traces become `Source` records.

Takes the stack trace that FX keeps on a node, or an exception; gives the last frame outside torch and outside
generated code, or None (a bare `nn.Sequential` has no line of the user's). Never reads a file that the trace does not
name.
"""

from __future__ import annotations

import contextlib
import functools
import linecache
import os
import re
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.fx.proxy import TracerBase

from precision_audit.records import Source

_FRAME = re.compile(
    r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>[^\n]+)(?:\n(?!\s*File ")(?P<text>[^\n]*))?'
)  # a line that cannot be read has no text
_TORCH = str(Path(torch.__file__).parent) + os.sep
_STANDARD = sysconfig.get_paths()["stdlib"] + os.sep
_OURS = str(Path(__file__).parent.parent) + os.sep
# These stand between the user's frames.
_BETWEEN = tuple(str(Path(__file__).with_name(name)) for name in ("functions.py", "handwritten.py"))


@contextlib.contextmanager
def users_frames() -> Iterator[None]:
    """While this lasts, a node keeps every frame of the user's below the call that is captured. torch keeps those named
    `forward` alone, so that an op in a function that `forward` calls would be said to be at the call."""

    def kept(_self: Any, frames: Iterable[traceback.FrameSummary]) -> traceback.StackSummary:
        found: list[traceback.FrameSummary] = []
        for frame in reversed(list(frames)):
            if frame.filename.startswith(_OURS) and frame.filename not in _BETWEEN:
                break
            if is_user(frame.filename):
                found.append(frame)
        return traceback.StackSummary.from_list(found[::-1])

    if not hasattr(TracerBase, "_filter_traceback_frames"):  # a torch that keeps others, or all
        yield
        return
    with mock.patch.object(TracerBase, "_filter_traceback_frames", kept):
        yield


@functools.cache
def frames_of(stack_trace: str) -> tuple[tuple[str, int], ...]:
    """File and line of every frame of `stack_trace` that is the user's, outermost first."""
    return tuple((m["file"], int(m["line"])) for m in _FRAME.finditer(stack_trace) if is_user(m["file"]))


@functools.cache
def source_of(stack_trace: str) -> Source | None:
    """The last frame of `stack_trace` that is the user's (a library on top of torch counts as the user's)."""
    found: Source | None = None
    for match in _FRAME.finditer(stack_trace):
        if is_user(match["file"]):
            text = (match["text"] or "").strip()
            found = Source(match["file"], int(match["line"]), match["function"].strip(), text)
    return found


def user_frame(error: BaseException) -> Source | None:
    """The deepest frame of an exception (or of one it was raised from) that is the user's."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        for frame in reversed(traceback.extract_tb(current.__traceback__)):
            if is_user(frame.filename):
                text = (frame.line or linecache.getline(frame.filename, frame.lineno or 0)).strip()
                return Source(frame.filename, frame.lineno or 0, frame.name, text)
        current = current.__cause__ or current.__context__
    return None


def users_frame(stack: Iterable[traceback.FrameSummary]) -> Source | None:
    """The first frame that is the user's."""
    for frame in stack:
        if is_user(frame.filename):
            return Source(frame.filename, frame.lineno or 0, frame.name, (frame.line or "").strip())
    return None


def is_user(file: str) -> bool:
    """Whether a file is neither torch's, nor Python's, nor this package's."""
    generated = file.startswith("<") or "<eval_with_key>" in file
    standard = file.startswith(_STANDARD) and f"{os.sep}site-packages{os.sep}" not in file
    standard = standard or f"{os.sep}site-packages{os.sep}sympy{os.sep}" in file
    return not (generated or standard or file.startswith((_TORCH, _OURS)))
