"""PA305 tied weights

What it does: names parameters that are one tensor under several names, usually an embedding and the output layer.
Why it is a hazard: a converter that walks over modules and installs a freshly cast parameter in each makes two of one:
memory doubles, and training moves only one of them. `model.to(format)` and this tool's conversion keep one tensor.
What to do: cast each distinct parameter once and share it again; after loading weights, tie again.
References: huggingface/transformers pull request 37905; torch.nn.Module.to keeps tied parameters tied.
"""

from __future__ import annotations

from collections.abc import Iterator

from precision_audit.records import Evidence, Finding, Op
from precision_audit.rules import Context, Example, found


def check(context: Context) -> Iterator[Finding]:
    kinds = {op.key: op.kind for op in context.graph.ops}
    for group in context.graph.storages:
        names = [name for name in group if kinds.get(name) == "parameter"]
        readers = [op for name in names for op in context.readers.get(name, ())]
        if len(names) < 2 or not readers:
            continue
        first = next((op for op in readers if op.op == "embedding"), readers[0])
        yield found(
            __name__,
            "note",
            first,
            f"{' and '.join(names)} are one tensor → a converter that casts module by module makes {len(names)} of it"
            f"{_swapped(readers, context)}",
            Evidence("PROVED", "they share their storage", (("names", float(len(names))),)),
            remedy="cast each distinct parameter once and share it again",
            of=" ".join(names),
        )


def _swapped(readers: list[Op], context: Context) -> str:
    swapped = [swap.module for swap in context.swaps if any(op.key in swap.ops for op in readers)]
    return f"; {swapped[0]} is swapped and keeps the shared parameter" if swapped else ""


def bad() -> Example:
    import torch
    from torch import nn

    class Language(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb = nn.Embedding(20, 8)
            self.head = nn.Linear(8, 20, bias=False)
            self.head.weight = self.emb.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            read = self.emb(ids)  # PA305
            y: torch.Tensor = self.head(torch.tanh(read))
            return y

    return Example(Language(), (torch.arange(6),))


def good() -> Example:
    import torch
    from torch import nn

    class Language(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb = nn.Embedding(20, 8)
            self.head = nn.Linear(8, 20, bias=False)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.head(torch.tanh(self.emb(ids)))
            return y

    return Example(Language(), (torch.arange(6),))
