"""PA302 no low kernel

What it does: reports an op that the device cannot run in the low format, or whose gradient it cannot compute there.
Why it is a hazard: `model.to(torch.bfloat16)` raises when the op is reached, not when the model is converted. Linear
algebra, FFT, quantile, cdist, CTC and antialiased resizing have no low kernels; they would lose what they are for.
What to do: cast to fp32 around the op. This tool's conversion keeps it in fp32.
References: "\"cholesky_cpu\" not implemented for 'Half'"; the op table (`precision-audit list ops`).
"""

from __future__ import annotations

from collections.abc import Iterator

from precision_audit.records import Finding
from precision_audit.rules import Context, Example, found
from precision_audit.rules.trapped import evidence, trapped, way


def check(context: Context) -> Iterator[Finding]:
    for op, trap in trapped(context, "kernel"):
        proof = evidence(context, trap)
        if proof.basis == "ASSUMED":
            device = context.hardware.name
            message = f"{op.op}: no {context.low.name} kernel is known on {device} → {way(context, trap)} raises here"
        else:
            message = f"{op.op} in {context.low.name} → {way(context, trap)} raises here: {trap.text}"
        yield found(
            __name__,
            "warning" if proof.basis == "ASSUMED" else "error",
            op,
            message,
            proof,
            remedy=f"cast to {context.policy.high} before {op.op} and back after it",
            pins=(op.key,),
        )


def bad() -> Example:
    import torch
    from torch import nn

    class Whitened(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            gram = x.t() @ x + torch.eye(x.shape[1], dtype=x.dtype)
            y: torch.Tensor = torch.linalg.cholesky(gram)  # PA302
            return y

    return Example(Whitened(), (torch.randn(16, 4),), policy="fp16-inference")


def good() -> Example:
    import torch
    from torch import nn

    class Whitened(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            gram = (x.t() @ x).float() + torch.eye(x.shape[1])
            y: torch.Tensor = torch.linalg.cholesky(gram).to(x.dtype)
            return y

    return Example(Whitened(), (torch.randn(16, 4),), policy="fp16-inference")
