"""PA303 complex

What it does: reports complex numbers that a low format breaks: an op that views or joins low floats as complex ones, an
op on complex halves, and a complex parameter or buffer, which `.to(format)` makes real.
Why it is a hazard: there is no complex bf16, and complex fp16 has hardly a kernel. `model.to(torch.bfloat16)` turns a
complex buffer (rotary frequencies as cis) into its real part, with a warning and no error; `.bfloat16()` and `.half()`
leave it.
What to do: cast to fp32 around the complex arithmetic, or write the rotation with cosines and sines. This tool's
conversion keeps complex numbers as they are.
References: "view_as_complex is only supported for half, float and double tensors"; torch.nn.Module.to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from precision_audit.records import Evidence, Finding
from precision_audit.rules import Context, Example, found
from precision_audit.rules.trapped import evidence, trapped, way


def check(context: Context) -> Iterator[Finding]:
    low = context.low.name
    for op, trap in trapped(context, "complex"):
        yield found(
            __name__,
            "error",
            op,
            f"{op.op}: no complex numbers of {low} parts → {way(context, trap)} raises here: {trap.text}",
            evidence(context, trap),
            remedy=f"cast to {context.policy.high} before the complex arithmetic and back after it",
            pins=(op.key,),
        )
    if not context.policy.autocast:
        yield from _made_real(context)


def _made_real(context: Context) -> Iterator[Finding]:
    """Complex state, told at its first reader."""
    for state in context.graph.ops:
        readers = context.readers.get(state.key, ())
        complex_state = state.kind in ("parameter", "buffer") and state.outputs[0].format.startswith("complex")
        if complex_state and readers:
            text = f"{state.key} is {state.outputs[0].format}; nn.Module.to converts it, nn.Module.half does not"
            made = found(
                __name__,
                "warning",
                readers[0],
                f"{state.key}: complex {state.kind} → model.to(torch.{context.low.dtype}) keeps its real part alone",
                Evidence("PROVED", text),
                remedy=f"model.{'bfloat16' if context.low.name == 'bf16' else 'half'}(), which leaves complex state",
                of=state.key,
            )
            yield replace(made, resolved=True)  # no plan casts complex numbers


def bad() -> Example:
    import torch
    from torch import nn

    class Rotary(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            angles = torch.arange(x.shape[1], dtype=torch.float32)[:, None] * torch.logspace(0, -2, 4)
            pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))  # PA303
            return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)

    return Example(Rotary(), (torch.randn(2, 6, 8),))


def good() -> Example:
    import torch
    from torch import nn

    class Rotary(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            angles = torch.arange(x.shape[1], dtype=torch.float32)[:, None] * torch.logspace(0, -2, 4)
            pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
            return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2).type_as(x)

    return Example(Rotary(), (torch.randn(2, 6, 8),))
