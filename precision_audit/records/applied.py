"""What `apply` did to the user's own model, and what it could not do there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from precision_audit.records.graph import Source
from precision_audit.records.plan import Swap
from precision_audit.records.words import Mode


@dataclass(frozen=True, slots=True)
class Stored:
    """A parameter or buffer that is now kept in a low format, under its own name and as the same object."""

    name: str
    format: str


@dataclass(frozen=True, slots=True)
class Hooked:
    """A module whose float inputs are cast to `takes` and float outputs to `gives`; "" leaves them as they come."""

    module: str
    takes: str
    gives: str


@dataclass(frozen=True, slots=True)
class NotExpressed:
    """Ops of one module that run in another format than planned, or whose format is left to `torch.autocast`."""

    ops: tuple[str, ...]
    planned: str
    runs: str  # "" where it depends on how the model is run
    sources: tuple[Source, ...]
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Applied:
    """The record of one `apply`. What `not_expressed` does not name runs as the plan has it, or gives the same numbers:
    values may be rounded before an op that only moves them instead of after it."""

    policy: str
    mode: Mode
    swapped: tuple[Swap, ...]
    stored: tuple[Stored, ...]
    hooked: tuple[Hooked, ...]
    not_expressed: tuple[NotExpressed, ...]
    notes: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether every op of the plan runs in its planned format."""
        return not self.not_expressed

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterable[str]:
        yield f"plan of policy {self.policy} ({self.mode}) applied to the eager model"
        yield from _some("swapped", [f"{each.module} for {each.kind} ({each.recipe})" for each in self.swapped])
        yield from _some("stored", [f"{each.name} in {each.format}" for each in self.stored])
        yield from _some("hooked", [_hook(each) for each in self.hooked])
        count = sum(len(each.ops) for each in self.not_expressed)
        yield f"not expressed: {_counted(count, 'op')}" if count else "not expressed: nothing, every op runs as planned"
        for each in self.not_expressed:
            yield f"  {_keys(each.ops)}: planned {each.planned}" + (f", runs {each.runs}" if each.runs else "")
            for source in each.sources[:_SHOWN]:
                yield f"    {source.file}:{source.line}: {source.text.strip()}"
            yield f"    why: {each.reason}"
            yield f"    what to do: {each.remedy}"
        yield from (f"note: {note}" for note in self.notes)


_SHOWN = 4  # of a long list


def _some(title: str, items: list[str]) -> Iterable[str]:
    yield f"{title}: {len(items)}"
    yield from (f"  {item}" for item in items[:_SHOWN])
    if len(items) > _SHOWN:
        yield f"  and {len(items) - _SHOWN} more"


def _hook(each: Hooked) -> str:
    words = [f"takes {each.takes}" if each.takes else "", f"gives {each.gives}" if each.gives else ""]
    return f"{each.module or 'the model'} {', '.join(word for word in words if word)}"


def _keys(keys: tuple[str, ...]) -> str:
    more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return ", ".join(keys[:_SHOWN]) + more


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")
