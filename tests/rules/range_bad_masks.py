"""Models with constants, masks and buffers beyond the range of fp16. See `range_models`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.rules.range_models import FUTURE, bad, noise, scores_of

# -- constants, masks, buffers -----------------------------------------------------------------------------------------


@bad("PA104", noise(2, 6, 16))
def mask_by_masked_fill(self: Any, x: Tensor) -> Any:
    scores = scores_of(x).masked_fill(FUTURE, -1e9)  # guilty
    return scores.softmax(-1) @ x


@bad("PA104", noise(2, 6, 16))
def mask_in_place(self: Any, x: Tensor) -> Any:
    scores = scores_of(x)
    scores.masked_fill_(FUTURE, -1e9)  # guilty
    return F.softmax(scores, dim=-1) @ x


@bad("PA104", noise(2, 6, 16), FUTURE)
def mask_by_where(self: Any, x: Tensor, future: Tensor) -> Any:
    scores = torch.where(future, -1e9, scores_of(x))  # guilty
    return scores.softmax(-1) @ x


@bad("PA104", noise(2, 6, 16), FUTURE)
def mask_by_a_tensor_made_in_forward(self: Any, x: Tensor, future: Tensor) -> Any:
    scores = torch.where(future, torch.tensor(-1e9), scores_of(x))  # guilty
    return scores.softmax(-1) @ x


@bad("PA104", noise(2, 6, 16))
def mask_by_full(self: Any, x: Tensor) -> Any:
    mask = torch.full((6, 6), -1e9, dtype=x.dtype).triu(1)  # guilty
    return (scores_of(x) + mask).softmax(-1) @ x


@bad("PA104", noise(2, 6, 16), FUTURE)
def mask_by_product(self: Any, x: Tensor, future: Tensor) -> Any:
    mask = future.to(x.dtype) * -1e9  # guilty
    return (scores_of(x) + mask).softmax(-1) @ x


@bad("PA104", noise(2, 6, 16), FUTURE)
def mask_for_sdpa(self: Any, x: Tensor, future: Tensor) -> Any:
    mask = torch.zeros(6, 6, dtype=x.dtype).masked_fill(future, -1e9)  # guilty
    return F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], attn_mask=mask)[:, 0]


@bad("PA106", noise(2, 6, 16), penalty=torch.tensor(-1e9))
def penalty_as_a_buffer(self: Any, x: Tensor) -> Any:
    scores = scores_of(x) + FUTURE * self.penalty  # guilty
    return scores.softmax(-1) @ x


@bad("PA106", noise(4, 16), table=torch.linspace(0.0, 70000.0, 16))
def buffer_of_seventy_thousand(self: Any, x: Tensor) -> Any:
    return x * self.table / 70000.0  # guilty


@bad("PA106", noise(4, 16), mean=torch.zeros(16), var=torch.full((16,), 1e6))
def running_variance(self: Any, x: Tensor) -> Any:
    return F.batch_norm(x * 1000, self.mean, self.var)  # guilty


@bad("PA105", noise(2, 6, 16), torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]]).bool())
def minimum_plus_scores(self: Any, x: Tensor, keep: Tensor) -> Any:
    scores = scores_of(x) - 40.0
    allowed = keep[:, None] & ~FUTURE
    mask = torch.zeros_like(scores).masked_fill(~allowed, torch.finfo(x.dtype).min)
    return (scores + mask).softmax(-1) @ x  # guilty


@bad("PA105", noise(2, 6, 16), torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]]))
def two_masks(self: Any, x: Tensor, keep: Tensor) -> Any:
    causal = FUTURE.to(x.dtype) * -60000.0
    padding = (1 - keep[:, None].to(x.dtype)) * -60000.0
    mask = causal + padding  # guilty
    return (scores_of(x) + mask).softmax(-1) @ x


@bad("PA104", noise(2, 6, 16))
def mask_by_index(self: Any, x: Tensor) -> Any:
    scores = scores_of(x)
    scores[:, FUTURE] = -1e9  # guilty
    return scores.softmax(-1) @ x


@bad("PA104", noise(2, 6, 16))
def mask_by_full_like(self: Any, x: Tensor) -> Any:
    scores = scores_of(x)
    lowest = torch.full_like(scores, -1e12)  # guilty
    return torch.where(FUTURE, lowest, scores).softmax(-1) @ x


@bad("PA104", noise(2, 6, 16))
def mask_of_another_formats_minimum(self: Any, x: Tensor) -> Any:
    scores = torch.masked_fill(scores_of(x), FUTURE, torch.finfo(torch.float32).min / 4)  # guilty
    return scores.softmax(-1) @ x


@bad("PA104", noise(2, 6, 16), FUTURE)
def mask_by_subtraction(self: Any, x: Tensor, future: Tensor) -> Any:
    penalty = 1e9 * future.to(x.dtype)  # guilty
    return (scores_of(x) - penalty).softmax(-1) @ x


@bad("PA101", noise(2, 6, 16), FUTURE.float() * -1e9)
def mask_as_an_input(self: Any, x: Tensor, mask: Tensor) -> Any:
    scores = scores_of(x) + mask  # guilty
    return scores.softmax(-1) @ x
