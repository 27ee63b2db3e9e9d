"""PA301 mixed formats

What it does: reports an op that raises because its operands are in different formats once the model is converted in the
usual way: `model.to(torch.bfloat16)` with its inputs or, under an `amp-*` policy, torch.autocast.
Why it is a hazard: PyTorch promotes formats in arithmetic and in cat, but not in products, norms, recurrent layers,
losses and writes (index_put, scatter, index_copy). What was made in the default format (torch.zeros, torch.arange, a
tensor kept as a plain attribute), or upcast on purpose, stays fp32 and meets parameters that are not.
What to do: create it with dtype=x.dtype, register it as a buffer, or cast it where it is used. This tool's conversion
casts it for you.
References: "expected scalar type Float but found BFloat16"; "Index put requires the source and destination dtypes
match".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from precision_audit.records import Finding, Op
from precision_audit.rules import Context, Example, found
from precision_audit.rules.trapped import evidence, origin, reads, trapped, way


def check(context: Context) -> Iterator[Finding]:
    for op, trap in trapped(context, "mixed"):
        because = origin(op, trap, context)
        made = found(
            __name__,
            "error",
            op,
            f"{op.op} reads {reads(op, trap, context)}{f' ({because})' if because else ''} → "
            f"{way(context, trap)} raises here: {trap.text}",
            evidence(context, trap),
            remedy=_remedy(op, because),
        )
        yield replace(made, resolved=True)  # whatever the plan chooses, it casts operands that must agree


def _remedy(op: Op, because: str) -> str:
    if op.kind == "scatter_write":
        return "cast the source to the format of the destination: source.to(out.dtype)"
    if "plain attribute" in because:
        return "register it as a buffer: self.register_buffer(name, tensor, persistent=False)"
    if "default format" in because:
        return "make it in the format of the input: dtype=x.dtype"
    if op.kind == "norm":
        return "keep the parameters of the norm in fp32 as well, or drop the cast before it"
    return "cast the operands to one format before the op"


def bad() -> Example:
    import torch
    from torch import nn

    class Embedded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.proj = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            waves = torch.cos(t[:, None] * torch.linspace(0.0, 1.0, 8))
            y: torch.Tensor = x + self.proj(waves)  # PA301
            return y

    return Example(Embedded(), (torch.randn(3, 8), torch.tensor([1, 2, 3])))


def good() -> Example:
    import torch
    from torch import nn

    class Embedded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.proj = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            waves = torch.cos(t[:, None] * torch.linspace(0.0, 1.0, 8))
            y: torch.Tensor = x + self.proj(waves.to(x.dtype))
            return y

    return Example(Embedded(), (torch.randn(3, 8), torch.tensor([1, 2, 3])))
