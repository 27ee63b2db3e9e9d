"""PA207 amplification

What it does: reports ops that turn a harmless error of their operand into one beyond the policy's tolerance: exp of a
difference of log-probabilities, softmax of large logits, division by a small difference, 1 / (1 - x), inverses, and
loops that feed on their own result.
Why it is a hazard: exp turns an absolute error into a relative one, and log-probabilities near 30 have an absolute
error of a tenth in bf16: a ratio that is one comes out between 0.9 and 1.1. A loop multiplies its error in each turn.
What to do: keep the operand in fp32 from the last product on, or write it so that nothing small is divided by.
References: PPO (arXiv 1707.06347), the ratio of policies; Higham, Accuracy and Stability of Numerical Algorithms, 1.6.
"""

from __future__ import annotations

from collections.abc import Iterator

from precision_audit.records import Finding
from precision_audit.rules import Context, Example, found
from precision_audit.rules.leaps import base, evidence, leaps, severity, told


def check(context: Context) -> Iterator[Finding]:
    for leap in leaps(context, "PA207"):
        turns = leap.notes.get("turns")
        what = f"{base(leap.op.key)} feeds on its own result, {turns} times" if turns else base(leap.op.key)
        yield found(
            __name__,
            severity(leap),
            leap.op,
            f"{what}: small errors of its operand become large → {told(leap, context)}",
            evidence(leap, context),
            remedy="keep its operand in fp32 from where it is made",
            pins=leap.pins,
        )


def bad() -> Example:
    import torch
    from torch import nn

    class Ratio(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.head = nn.Linear(64, 300)
            with torch.no_grad():
                self.head.weight.mul_(40.0)

        def forward(self, x: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
            new = torch.log_softmax(self.head(x), -1)[:, 0]
            return torch.exp(new - old)  # PA207

    model, x = Ratio(), torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        old = torch.log_softmax(model.head(x), -1)[:, 0]
    return Example(model, (x, old))


def good() -> Example:
    import torch
    from torch import nn

    class Attention(nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return torch.softmax(q @ k.transpose(-1, -2) / 8, -1) @ v

    return Example(Attention(), tuple(torch.randn(2, 16, 64) for _ in range(3)))
