"""Models whose eps, probability or intermediate vanishes in fp16. See `range_models`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.rules.range_models import bad, noise, padded

# -- eps, logarithms, underflow ----------------------------------------------------------------------------------------


@bad("PA107", padded())
def eps_beside_a_norm(self: Any, x: Tensor) -> Any:
    return x / (x.norm(dim=-1, keepdim=True) + 1e-12)  # guilty


@bad("PA107", padded())
def eps_as_a_floor(self: Any, x: Tensor) -> Any:
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp(min=1e-10)  # guilty
    return x / length


@bad("PA107", padded())
def eps_by_maximum(self: Any, x: Tensor) -> Any:
    length = torch.maximum(x.pow(2).sum(-1, keepdim=True).sqrt(), torch.tensor(1e-12))  # guilty
    return x / length


@bad("PA107", padded(), eps=torch.tensor(1e-9))
def eps_as_a_buffer(self: Any, x: Tensor) -> Any:
    return x / (x.abs().sum(-1, keepdim=True) + self.eps)  # guilty


@bad("PA107", padded())
def eps_under_a_negative_power(self: Any, x: Tensor) -> Any:
    return x * (x.square().mean(-1, keepdim=True) + 1e-8) ** -0.5  # guilty


@bad("PA107", padded())
def eps_under_rsqrt(self: Any, x: Tensor) -> Any:
    return x * torch.rsqrt(x.var(-1, keepdim=True).add(1e-12))  # guilty


@bad("PA107", padded())
def normalize_by_default(self: Any, x: Tensor) -> Any:
    return F.normalize(F.relu(x), p=2.0, dim=-1)  # guilty


@bad("PA107", padded())
def cosine_of_padding(self: Any, x: Tensor) -> Any:
    return F.cosine_similarity(x, x.flip(0), dim=-1)  # guilty


@bad("PA107", padded())
def eps_where_zero(self: Any, x: Tensor) -> Any:
    length = x.norm(dim=-1, keepdim=True)
    length = torch.where(length == 0, 1e-12, length)  # guilty
    return x / length


@bad("PA109", padded())
def log_with_eps(self: Any, x: Tensor) -> Any:
    return torch.log(F.relu(x) + 1e-10)  # guilty


@bad("PA109", padded())
def log_of_a_floor(self: Any, x: Tensor) -> Any:
    floor = F.relu(x).clamp_min(1e-9)
    return floor.log()  # guilty


@bad("PA109", noise(4, 16), scale=8.0)
def log_of_softmax(self: Any, x: Tensor) -> Any:
    return torch.log(F.softmax(x, dim=-1))  # guilty


@bad("PA109", noise(4, 16) - 20.0)
def log_of_sigmoid(self: Any, x: Tensor) -> Any:
    return x.sigmoid().log()  # guilty


@bad("PA108", noise(4, 16) + 12.0)
def log_of_one_minus_a_probability(self: Any, x: Tensor) -> Any:
    p = torch.sigmoid(x).clamp(1e-6, 1 - 1e-6)  # guilty
    return torch.log(1 - p)


@bad("PA108", noise(4, 16) + 12.0)
def logit_of_a_clamped_probability(self: Any, x: Tensor) -> Any:
    p = x.sigmoid().clamp(max=1 - 1e-6)  # guilty
    return torch.log(p / (1 - p))


@bad("PA108", noise(4, 16) + 10.0)
def log1p_without_a_guard(self: Any, x: Tensor) -> Any:
    return torch.log1p(-torch.sigmoid(x))  # guilty


@bad("PA110", noise(4, 16) * 1e-5)
def squares_of_small_numbers(self: Any, x: Tensor) -> Any:
    squares = x.pow(2)  # guilty
    return x / squares.sum(-1, keepdim=True).sqrt()


@bad("PA110", noise(4, 16) - 30.0)
def softmax_by_hand_of_low_scores(self: Any, x: Tensor) -> Any:
    e = torch.exp(x)  # guilty
    return e / e.sum(-1, keepdim=True)


@bad("PA110", noise(4, 16))
def a_factor_taken_back(self: Any, x: Tensor) -> Any:
    small = x * 1e-9  # guilty
    return small / 1e-9


@bad("PA110", noise(4, 16), factor=torch.full((16,), 2e-9))
def a_buffer_that_vanishes(self: Any, x: Tensor) -> Any:
    small = x * self.factor  # guilty
    return small * 1e9
