"""What becomes of hand-written gradients in the eager model run low: what raises, and what is no longer finite.

Takes the model as the user wrote it, its policy, the example and what its fp32 run gave; gives the `CustomFunction`s
with what was seen. Under an `amp-*` policy the forward runs under torch.autocast, under every other one a copy of the
model is cast as a whole, with its float inputs. A function is named for what happens inside it alone: an error whose
traceback passes its lines, or gradients that come in finite and go out otherwise, where fp32's are finite. In fp16 loss
scales are tried too, from the largest that leaves fp32's gradients finite downwards, as torch.amp.GradScaler would:
what one of them spares is told apart. Leaves no trace in the model (see `verify/runs.py`).
"""

from __future__ import annotations

import contextlib
import copy
import linecache
import math
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from precision_audit.capture.functions import applied
from precision_audit.formats import FORMATS, dtype_of
from precision_audit.records import CustomFunction, Policy, Source, first_line
from precision_audit.verify.runs import LOSS_SCALES, Batch, Conditions, Run, run

_LINES = 3  # of a class, that are named at most


def run_low(
    model: nn.Module, policy: Policy, batch: Batch, conditions: Conditions, found: tuple[CustomFunction, ...]
) -> tuple[CustomFunction, ...]:
    """`found` with what each function raises or loses there; as it is where fp32's gradients are not finite."""
    try:
        expected = run(model, batch, conditions)
    except Exception:  # what fails in fp32 already is verification's to say
        return found
    if not all(_finite(gradient) for gradient in expected.gradients.values()):
        return found
    if policy.autocast:
        conditions = replace(conditions, written=frozenset(f"model.{name}" for name in conditions.written))
    try:
        callee, given = _lowered(model, policy, batch)

        def watched(scale: float) -> _Watch:
            watch = _Watch(found)
            with watch.watching():
                run(callee, given, conditions, expected.norms, scale)
            return watch

        scaled = next((scale for scale in _scales(expected, policy.low) if not watched(scale).lost), 0.0)
        alone = watched(1.0)
    except Exception as error:
        return tuple(_raised(each, error) for each in found)
    return tuple(_lost(each, alone, scaled) for each in found)


def _lowered(model: nn.Module, policy: Policy, batch: Batch) -> tuple[nn.Module, Batch]:
    """The model and its example as the user would run them."""
    low = dtype_of(policy.low)
    return (_Autocast(model, low), batch) if policy.autocast else (copy.deepcopy(model).to(low), _cast(batch, low))


def _cast(batch: Batch, low: torch.dtype) -> Batch:
    made: Batch = pytree.tree_map_only(
        Tensor, lambda value: value.detach().to(low) if value.is_floating_point() else value, (batch[0], dict(batch[1]))
    )
    return made


def _scales(expected: Run, low: str) -> tuple[float, ...]:
    """Loss scales to try, the largest first."""
    if low != "fp16":
        return (1.0,)
    amax = max((float(each.abs().max()) for each in expected.gradients.values() if each.numel()), default=0.0)
    largest = (FORMATS["fp16"].max_finite / amax) if amax else math.inf
    return tuple(scale for scale in LOSS_SCALES if scale <= largest) or (1.0,)


def _raised(each: CustomFunction, error: Exception) -> CustomFunction:
    """With where and what was raised, where the error passed the lines of the class."""
    text = first_line(error)
    inside = [
        frame for frame in traceback.extract_tb(error.__traceback__) if _holds(each, frame.filename, frame.lineno)
    ]
    if not inside or "not implemented for" in text:  # a kernel that the CPU lacks is PA302's to say
        return each
    at = inside[-1]
    where = Source(at.filename, at.lineno or 0, at.name, (at.line or "").strip())
    return replace(each, raised=f"in {inside[0].name}: {text}", lines=(where,))


def _lost(each: CustomFunction, watch: _Watch, scaled: float) -> CustomFunction:
    """With what it loses without a loss scale; `scaled` is one with which nothing is lost, 0 where there is none."""
    count = watch.lost.get(each.name)
    if count is None:
        return each
    lines = tuple(line for line in watch.lines if _holds(each, line.file, line.line))[:_LINES]
    lost = f"{count[0]} of {count[1]} elements of the gradient that it returns"
    return replace(each, lost=lost, lines=lines, scaled=scaled)


def _holds(each: CustomFunction, file: str, line: int | None) -> bool:
    """Whether a line is one of the class's."""
    at = each.defined
    return at is not None and file == at.file and at.line <= (line or 0) <= each.last_line


class _Watch:
    """Which functions got finite gradients and returned others, and at which of their lines numbers were lost."""

    def __init__(self, found: Iterable[CustomFunction]) -> None:
        self.found = tuple(found)
        self.lost: dict[str, tuple[int, int]] = {}  # by name: elements lost, and all
        self.lines: dict[Source, None] = {}

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        original = applied()
        names = {each.name for each in self.found}

        def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
            output = original(cls, *args, **kwargs)
            if cls.__name__ in names:
                for node in _nodes(output):
                    node.register_hook(lambda given, received: self._returned(cls.__name__, given, received))
            return output

        with mock.patch.object(torch.autograd.Function, "apply", classmethod(apply)), _Lines(self.found, self.lines):
            yield

    def _returned(self, name: str, given: Iterable[Tensor | None], received: Iterable[Tensor | None]) -> None:
        if not all(_finite(each) for each in received):
            return
        for each in given:
            if each is not None and not _finite(each):
                self.lost.setdefault(name, (int((~torch.isfinite(each)).sum()), each.numel()))


class _Lines(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lists the lines of the classes at which an op makes infinities or NaN of numbers that have none, before it those
    that made the zeros it read (a divisor that has underflowed)."""

    def __init__(self, found: tuple[CustomFunction, ...], lines: dict[Source, None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._found, self._lines = found, lines
        self._makers: MutableMapping[Tensor, Source] = WeakTensorKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        line = self._line()
        if line is not None:
            self._look(line, [each for each in pytree.tree_leaves((args, kwargs)) if isinstance(each, Tensor)], output)
        return output

    def _look(self, line: Source, operands: list[Tensor], output: Any) -> None:
        for each in pytree.tree_leaves(output):
            if not isinstance(each, Tensor) or not each.is_floating_point():
                continue
            self._makers[each] = line
            for lost in (torch.isinf, torch.isnan):
                if bool(lost(each).any()) and not any(bool(lost(operand).any()) for operand in operands):
                    zeros = [operand for operand in operands if operand in self._makers and bool((operand == 0).any())]
                    makers = [self._makers[operand] for operand in zeros]
                    self._lines.update(dict.fromkeys([*(maker for maker in makers if maker != line), line]))

    def _line(self) -> Source | None:
        """The innermost frame that is a line of one of the classes."""
        frame = sys._getframe(2)
        while frame is not None:
            code = frame.f_code
            if any(_holds(each, code.co_filename, frame.f_lineno) for each in self._found):
                text = linecache.getline(code.co_filename, frame.f_lineno).strip()
                return Source(code.co_filename, frame.f_lineno, code.co_name, text)
            frame = frame.f_back  # type: ignore[assignment]
        return None


def _nodes(output: Any) -> set[Any]:
    """Where the backward of an output begins."""
    return {each.grad_fn for each in pytree.tree_leaves(output) if isinstance(each, Tensor)} - {None}


def _finite(value: Tensor | None) -> bool:
    return value is None or bool(torch.isfinite(value).all())


class _Autocast(nn.Module):
    """The model as the user would run it: forward inside the region, loss and backward outside."""

    def __init__(self, model: nn.Module, low: torch.dtype) -> None:
        super().__init__()
        self.model, self._low = model, low

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        call: Callable[..., Any] = self.model
        with torch.autocast("cpu", self._low):
            return call(*args, **kwargs)
