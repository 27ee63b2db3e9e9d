"""Parameters that a model changes while it runs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from precision_audit.capture import capture, private_copy
from precision_audit.capture.aliases import written_parameters


class Clipped(nn.Module):
    """Clips its weight before it is read, itself or through a view."""

    def __init__(self, view: bool) -> None:
        super().__init__()
        self.view = view
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.other = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            (self.weight.view(-1) if self.view else self.weight).clamp_(-0.5, 0.5)
        return x @ self.weight + self.other


@pytest.mark.parametrize(
    ("model", "x", "names"),
    [
        (Clipped(False), torch.randn(2, 4), {"weight"}),
        (Clipped(True), torch.randn(2, 4), {"weight"}),
        (nn.Embedding(8, 4, max_norm=1.0), torch.tensor([1, 2]), {"weight"}),
        (nn.Embedding(8, 4), torch.tensor([1, 2]), set()),
        (nn.BatchNorm1d(4), torch.randn(3, 4), set()),  # buffers are no parameters
    ],
)
def test_written_parameters(model: nn.Module, x: Tensor, names: set[str]) -> None:
    captured = capture(private_copy(model), (x,), mode="training")
    assert written_parameters(captured.graph) == names
