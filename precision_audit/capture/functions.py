"""Hand-written gradients: which `torch.autograd.Function`s a model applies while it is captured.

Takes the calls that are made while export traces; gives one `CustomFunction` per class and line of the user's, with the
ops of the graph that its forward became. Export writes down the forward alone, so this is the only trace that the
user's backward leaves, save where a class is to be kept (`handwritten.py`). Never changes what is applied; torch's own
Functions (checkpointing) are left out.
"""

from __future__ import annotations

import contextlib
import inspect
import linecache
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import fx

from precision_audit.capture.handwritten import Kept, class_of
from precision_audit.capture.sources import frames_of, is_user
from precision_audit.records import CustomFunction, Source


@dataclass(frozen=True)
class Call:
    """A class applied, and where; `why_not` says why it is not kept, "" also where nobody asked."""

    cls: type
    source: Source | None
    kept: bool = False
    why_not: str = ""


_AMP = "autocast_mode.py"  # where torch.amp.custom_fwd wraps a forward


def applied() -> Callable[..., Any]:
    """torch's own `apply` as a function of class and arguments. It is a method of Python in some releases and one of C
    in others."""
    method = torch.autograd.Function.__dict__["apply"]
    return lambda cls, *args, **kwargs: method.__get__(None, cls)(*args, **kwargs)


@contextlib.contextmanager
def recorded(calls: list[Call], asked: Collection[str] = (), keeping: Kept | None = None) -> Iterator[None]:
    """While this lasts every Function that is applied is added to `calls`, which is emptied first. Those whose names
    are `asked` for are kept by `keeping`."""
    calls.clear()
    original = applied()

    def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        if cls.__module__.partition(".")[0] == "torch":
            return original(cls, *args, **kwargs)
        made, why_not, asked_for = None, "", keeping is not None and cls.__name__ in asked
        if keeping is not None and asked_for:
            made, why_not = keeping.trace(original, cls, args)
        calls.append(Call(cls, _caller(), asked_for and not why_not, why_not))
        return made if calls[-1].kept else original(cls, *args, **kwargs)

    with mock.patch.object(torch.autograd.Function, "apply", classmethod(apply)):
        yield


def located(calls: list[Call], nodes: Mapping[str, fx.Node]) -> tuple[CustomFunction, ...]:
    """Each class and line once, in order, with the keys of its ops."""
    return tuple(
        CustomFunction(
            name=call.cls.__name__,
            call=call.source,
            defined=_defined(call.cls),
            last_line=(_lines(call.cls) or ("", 0, 0))[2],
            ops=tuple(key for key, node in nodes.items() if _is_of(node, call)),
            custom_fwd=_is_wrapped(getattr(call.cls, "forward", None)),
            kept=call.kept,
            why_not=call.why_not,
        )
        for call in dict.fromkeys(calls)
    )


def _defined(cls: type) -> Source | None:
    """The line of the class statement; None where there is no file."""
    lines = _lines(cls)
    if lines is None:
        return None
    file, first, _ = lines
    text = next((line for line in _text(file, first) if line.startswith("class ")), "")
    return Source(file, first, cls.__name__, text)


def _lines(cls: type) -> tuple[str, int, int] | None:
    """File, first and last line of a class."""
    try:
        text, first = inspect.getsourcelines(cls)
        return inspect.getsourcefile(cls) or "", first, first + len(text) - 1
    except (OSError, TypeError):
        return None


def _text(file: str, first: int) -> Iterator[str]:
    """The class statement's line, which decorators may precede."""
    return (linecache.getline(file, first + offset).strip() for offset in range(4))


def _caller() -> Source | None:
    """The innermost frame of the user's that applies the function."""
    frame = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if is_user(code.co_filename):
            line = linecache.getline(code.co_filename, frame.f_lineno).strip()
            return Source(code.co_filename, frame.f_lineno, code.co_name, line)
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _is_of(node: fx.Node, call: Call) -> bool:
    """Whether the node was made by code that the call runs: it is the call itself, or its trace passes the call and
    then goes deeper."""
    if call.source is None:
        return False
    frames = frames_of(str(node.meta.get("stack_trace", "")))
    at = (call.source.file, call.source.line)
    lines = _lines(call.cls)
    if at not in frames or lines is None:
        return False
    if call.kept:
        return class_of(node.target) is call.cls
    file, first, last = lines
    return any(each[0] == file and first <= each[1] <= last for each in frames[frames.index(at) + 1 :])


def _is_wrapped(forward: Any) -> bool:
    code = getattr(forward, "__code__", None)
    return code is not None and code.co_filename.endswith(_AMP)
