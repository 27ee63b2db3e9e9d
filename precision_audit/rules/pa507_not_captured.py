"""PA507 not captured

What it does: reports what the audit has not seen of the model: branches that the example does not take, what lies
inside control flow that stays whole, formats that had to be taken as written, sizes that were fixed, an evaluation mode
that could not be captured.
Why it is a hazard: nothing is known of the part that was not seen. No finding there means no look, not no hazard.
What to do: see the remedy of each; an example for every path, each audited, is the plain way.
References: torch.export's documentation of control flow and of dynamic shapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from precision_audit.records import Evidence, Finding, Source
from precision_audit.rules import Context, Example, found

if TYPE_CHECKING:
    import torch

_AT = re.compile(r"(?<=^captured along the path that the example takes) at (?P<file>[^\n]*?):(?P<line>\d+)(?=:)")

# How the notes of the capture begin, and what helps.
_REMEDIES = {
    "captured along": "write that line with torch.where or torch.cond, or audit with an example of each path",
    "the branches of": "audit the branch as a model of its own",
    "formats are taken": "write constants that follow an input with x.dtype, or keep the model runnable in fp64",
    "dimension": "leave the size open in the model, or audit again with each size that is used",
    "evaluation mode": "make the model run after .eval() on these inputs, or convert it for inference by itself",
}


def check(context: Context) -> Iterator[Finding]:
    for note in context.graph.notes:
        remedy = next((text for start, text in _REMEDIES.items() if note.startswith(start)), "")
        place = _AT.search(note)
        message = note.replace(place[0], "", 1) if place else note
        evidence = Evidence("PROVED", "said by the capture")
        made = found(__name__, "note", None, message, evidence, remedy=remedy, of=_kind(note))
        yield replace(made, source=Source(place["file"], int(place["line"]), "", "")) if place else made


def bad() -> Example:
    import torch
    from torch import nn

    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.sum() > 0:  # PA507
                return torch.relu(x)
            return x

    return Example(Net(), (torch.ones(2, 8),))


def good() -> Example:
    import torch
    from torch import nn

    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.where(x.sum() > 0, torch.relu(x), x)

    return Example(Net(), (torch.ones(2, 8),))


def _kind(note: str) -> str:
    """A name for the note that holds no number and no path."""
    return re.sub(r"\d+", "", _AT.sub("", note))
