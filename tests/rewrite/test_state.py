"""State of a converted module: no name of the user's is ever taken, and parameters that change are known."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import precision_audit as pa
from precision_audit.records import Fold
from precision_audit.rewrite.state import copy_paths


def test_a_low_copy_takes_a_free_name() -> None:
    module = nn.Module()
    module.register_parameter("w", nn.Parameter(torch.ones(1)))
    module.register_buffer("w_bf16", torch.ones(1))
    folds = [Fold("w", "bf16", copy=True), Fold("w", "fp16", copy=True), Fold("v", "bf16")]
    assert copy_paths(module, folds) == {("w", "bf16"): "w_bf16_", ("w", "fp16"): "w_fp16"}


class Doubled(nn.Module):
    """Its weight is read low and high, and it has a buffer of the name that the low copy would get."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(16, 16))
        self.register_buffer("w_bf16", torch.randn(16, 16))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return F.linear(x, self.w) + F.linear(x, self.get_buffer("w_bf16")), self.w


def test_the_users_buffer_survives_the_low_copy() -> None:
    torch.manual_seed(0)
    model, x = Doubled(), torch.randn(4, 16)
    module = pa.convert(model, (x,), policy="bf16-inference").module
    assert set(module.copies) == {"w_bf16_"}
    assert set(module.state_dict()) == set(model.state_dict())
    torch.testing.assert_close(module(x)[0], model(x)[0], rtol=0.05, atol=0.2)


@pytest.mark.parametrize("policy", ["bf16-inference", "bf16-training"])
def test_a_parameter_that_the_model_changes_is_left_alone(policy: str) -> None:
    torch.manual_seed(0)
    model, ids = nn.Embedding(16, 8, max_norm=1.0), torch.tensor([[1, 2, 3]])
    before = model.weight.detach().clone()
    result = pa.convert(model, (ids,), policy=policy)
    assert torch.equal(model.weight, before)
    assert result.report.verification is not None
    assert result.report.verification.passed
