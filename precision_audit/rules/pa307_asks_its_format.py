"""PA307 asks its format

What it does: reports a condition on a tensor's format (`if x.dtype == torch.float16:`) that the low format answers
otherwise than the captured one.
Why it is a hazard: a captured graph holds the path of the format it was captured in. What the code does for the low
format, a clamp against overflow for instance, is not in it, and a cast of the user's takes a path that nobody audited.
What to do: do the same on both paths, or audit the model as it is after `model.to(format)` too.
References: the clamps that public models make when their states are fp16.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from precision_audit.records import Evidence, Finding, Graph, Op, Source
from precision_audit.rules import Context, Example, found


def check(context: Context) -> Iterator[Finding]:
    low, high = context.low.name, context.policy.high
    for line in context.facts.branches:
        asked = line.text.rstrip(":")
        made = found(
            __name__,
            "note",
            _near(context.graph, line),
            f"{line.function} asks for a format: {asked} → in {low} it takes the path that was not captured",
            Evidence("PROVED", f"the condition has another answer in {low} than in {high}"),
            remedy="do the same on both paths, or audit the model after model.to(format) too",
            of=f"{line.function} {line.text}",
        )
        yield replace(made, source=line)


def _near(graph: Graph, line: Source) -> Op | None:
    """The first op of the function from that line on, else of the function."""
    mine = [op for op in graph.ops if op.source and (op.source.file, op.source.function) == (line.file, line.function)]
    after = [op for op in mine if op.source and op.source.line >= line.line]
    return next(iter((*after, *mine)), None)


def bad() -> Example:
    import torch
    from torch import nn

    class Clamped(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            if y.dtype == torch.float16:  # PA307
                y = y.clamp(-65000, 65000)
            return y + 1

    return Example(Clamped(), (torch.ones(3),), policy="fp16-inference")


def good() -> Example:
    import torch
    from torch import nn

    class Bounded(nn.Module):
        def forward(self, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
            y = (x * 2).clamp(-65000, 65000)
            if keep.dtype != torch.bool:
                keep = keep > 0
            return y.where(keep, 0.0)

    return Example(Bounded(), (torch.ones(3), torch.tensor([True, False, True])), policy="fp16-inference")
