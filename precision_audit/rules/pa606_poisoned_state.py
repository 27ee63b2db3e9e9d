"""PA606 state poisoned by an overflow

What it does: looks for buffers that the model writes in training from values that are infinite or NaN in the low model
and finite in the captured one: running statistics of batch norm behind a layer that overflows, caches, averages.
Why it is a hazard: a loss scaler skips the step in which a gradient is infinite, but the forward pass has already
written. The running mean is infinite from then on, and every later evaluation is ruined.
What to do: keep the op that overflows in fp32, or use bf16.
References: pytorch/pytorch issue 115500.
"""

from __future__ import annotations

from collections.abc import Iterator

from precision_audit.analyse.accumulated import written
from precision_audit.records import Evidence, Finding, Op
from precision_audit.rules import Context, Example, found


def check(context: Context) -> Iterator[Finding]:
    for name, writer in written(context.graph).items():
        lost = [each for each in writer.operands if _lost(each.value, context)]
        if not lost:
            continue
        source = _origin(lost[0].value, context)
        at = f" at {source.key}" if source else ""
        count = context.beside[lost[0].value].lost
        yield found(
            __name__,
            "error",
            writer,
            f"{name} is written from values that are infinite in {context.policy.low} → not finite from then on",
            Evidence("OBSERVED", f"{count} elements lost{at}", (("lost", float(count)),)),
            remedy="keep the op that overflows in fp32, or use bf16",
            of=name,
            pins=[source.key] if source else (),
        )


def _lost(value: str, context: Context) -> bool:
    return value in context.beside and context.beside[value].lost > 0


def _origin(value: str, context: Context) -> Op | None:
    """The op whose own result is lost, up the first operand that is."""
    op = context.maker.get(value)
    while op is not None and not any(context.beside[v].fresh_lost for v in op.values if v in context.beside):
        before = next((each.value for each in op.operands if _lost(each.value, context)), "")
        op = context.maker.get(before)
    return op


def bad() -> Example:
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            wide = self.fc(x)
            return nn.functional.batch_norm(wide, self.norm.running_mean, self.norm.running_var, training=True)  # PA606

    model = Net()
    nn.init.constant_(model.fc.weight, 1.0)
    return Example(model, (torch.rand(4, 8) * 60000,), policy="fp16-training")


def good() -> Example:
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    return Example(model, (torch.rand(4, 8),), policy="fp16-training")
