"""nn.LSTM and nn.GRU, which are one op each, converted for training under every policy that a CPU can run."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import precision_audit as pa


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU], both: bool) -> None:
        super().__init__()
        self.rnn = kind(16, 32, num_layers=2, batch_first=True, bidirectional=both)
        self.head = nn.Linear(64 if both else 32, 16)

    def forward(self, rows: Tensor) -> Tensor:
        scores: Tensor = self.head(self.rnn(rows)[0][:, -1])
        return scores


def loss(output: Tensor) -> Tensor:
    return F.cross_entropy(output.float(), torch.arange(len(output)) % 16)


@pytest.mark.parametrize("policy", ["fp32", "bf16-training", "fp16-training", "fp8-training-hopper", "amp-cpu-bf16"])
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers_train(kind: type[nn.LSTM] | type[nn.GRU], both: bool, policy: str) -> None:
    model, rows = Recurrent(kind, both), torch.randn(32, 4, 16)
    result = pa.convert(model, (rows,), policy=policy, loss=loss)
    assert result.report.verification is not None
    if any("could not create a primitive" in note for note in result.report.verification.notes):
        pytest.skip("oneDNN has no LSTM in the low format on this processor")
    assert result.report.verification.passed
    (decision,) = (each for each in result.report.decisions if each.op == f"rnn/{kind.__name__.lower()}#0")
    assert decision.reason
    assert list(result.module.state_dict()) == list(model.state_dict())
    assert len(result.plan.swaps) == (policy == "fp8-training-hopper")  # the head
    optimizer = torch.optim.SGD(result.module.parameters(), lr=0.5)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        value = loss(result.module(rows))
        value.backward()
        assert all(each.grad is not None and torch.isfinite(each.grad).all() for each in result.module.parameters())
        assert all(each.dtype == each.grad.dtype == torch.float32 for each in result.module.parameters())
        optimizer.step()
        losses.append(value.item())
    assert losses[2] < losses[0]
