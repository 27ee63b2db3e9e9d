"""Harmless neighbours of the models that fail, in fp16 and bf16. See `range_models`."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.rules.range_models import FUTURE, good, noise, padded, scores_of, spiked

# -- harmless neighbours -----------------------------------------------------------------------------------------------


@good(noise(5, 16))
def rms_norm_in_range(self: Any, x: Tensor) -> Any:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)


@good(spiked())
def rms_norm_in_the_users_fp32(self: Any, x: Tensor) -> Any:
    wide = x.to(torch.float32)
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-12)).to(x.dtype)


@good(spiked())
def rms_norm_by_float(self: Any, x: Tensor) -> Any:
    variance = x.float().square().mean(-1, keepdim=True)
    return (x.float() * torch.rsqrt(variance + 1e-9)).type_as(x)


@good(spiked(3000.0))
def native_layer_norm(self: Any, x: Tensor) -> Any:
    return F.layer_norm(x, (16,), eps=1e-12)


@good(spiked(3000.0))
def native_group_norm(self: Any, x: Tensor) -> Any:
    return F.group_norm(x, 4)


@good(padded())
def normalize_with_an_eps_that_holds(self: Any, x: Tensor) -> Any:
    return F.normalize(x, dim=-1, eps=1e-4)


@good(padded())
def eps_of_a_hundredth(self: Any, x: Tensor) -> Any:
    return x / (x.norm(dim=-1, keepdim=True) + 1e-2)


@good(noise(5, 16))
def eps_of_the_format(self: Any, x: Tensor) -> Any:
    return x / (x.abs().sum(-1, keepdim=True) + torch.finfo(x.dtype).eps)


@good(noise(5, 16))
def eps_beside_a_sum_of_probabilities(self: Any, x: Tensor) -> Any:
    p = x.softmax(-1)
    return p / (p.sum(-1, keepdim=True) + 1e-9)


@good(noise(5, 16))
def eps_that_guards_nothing(self: Any, x: Tensor) -> Any:
    return F.relu(x) + 1e-12


@good(noise(2, 6, 16))
def mask_of_minus_infinity(self: Any, x: Tensor) -> Any:
    return scores_of(x).masked_fill(FUTURE, -math.inf).softmax(-1) @ x


@good(noise(2, 6, 16))
def mask_of_float_inf(self: Any, x: Tensor) -> Any:
    return (scores_of(x) + torch.full((6, 6), float("-inf")).triu(1)).softmax(-1) @ x


@good(noise(2, 6, 16))
def mask_of_the_formats_minimum(self: Any, x: Tensor) -> Any:
    scores = scores_of(x)
    return scores.masked_fill(FUTURE, torch.finfo(scores.dtype).min).softmax(-1) @ x


@good(noise(2, 6, 16))
def mask_of_the_formats_minimum_by_where(self: Any, x: Tensor) -> Any:
    scores = scores_of(x)
    lowest = torch.full([], torch.finfo(scores.dtype).min, dtype=scores.dtype)
    return torch.where(FUTURE, lowest, scores).softmax(-1) @ x


@good(noise(2, 6, 16))
def added_mask_of_the_formats_minimum(self: Any, x: Tensor) -> Any:
    mask = torch.full((6, 6), torch.finfo(x.dtype).min, dtype=x.dtype).triu(1)
    return (scores_of(x) + mask).softmax(-1) @ x


@good(noise(2, 6, 16))
def mask_of_minus_ten_thousand(self: Any, x: Tensor) -> Any:
    return (scores_of(x) + FUTURE.to(x.dtype) * -10000.0).softmax(-1) @ x


@good(noise(2, 6, 16), mask=FUTURE.float() * -1e4)
def mask_buffer_in_range(self: Any, x: Tensor) -> Any:
    return (scores_of(x) + self.mask).softmax(-1) @ x


@good(noise(2, 6, 16))
def boolean_mask_for_sdpa(self: Any, x: Tensor) -> Any:
    return F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], attn_mask=~FUTURE)[:, 0]


@good(noise(2, 6, 16), scale=30.0)
def query_scaled_first(self: Any, x: Tensor) -> Any:
    return ((x / 1024) @ x.transpose(-2, -1)).softmax(-1) @ x


@good(noise(5, 16), scale=10.0)
def exp_after_its_maximum(self: Any, x: Tensor) -> Any:
    e = torch.exp(x - x.max(-1, keepdim=True).values)
    return e / e.sum(-1, keepdim=True)


@good(noise(5, 16))
def exp_in_range(self: Any, x: Tensor) -> Any:
    return x.exp()


@good(noise(5, 16), scale=20.0)
def log_softmax_of_large(self: Any, x: Tensor) -> Any:
    return F.log_softmax(x, dim=-1)


@good(noise(5, 16) - 30.0)
def logsigmoid_of_low(self: Any, x: Tensor) -> Any:
    return F.logsigmoid(x)


@good(noise(5, 16))
def log_with_an_eps_that_holds(self: Any, x: Tensor) -> Any:
    return torch.log(F.relu(x) + 1e-3)


@good(noise(5, 16))
def probability_clamped_within(self: Any, x: Tensor) -> Any:
    return torch.log(1 - x.sigmoid().clamp(0.01, 0.99))


@good(noise(5, 16))
def clamp_next_to_one_that_guards_nothing(self: Any, x: Tensor) -> Any:
    return x.sigmoid().clamp(max=1 - 1e-6) * 2


@good(noise(5, 16))
def average_with_momentum(self: Any, x: Tensor) -> Any:
    return x * 0.9999 + x.flip(0) * 0.0001


@good(torch.rand(1, 300, 20, 16))
def mean_of_pixels(self: Any, x: Tensor) -> Any:
    return torch.sigmoid(x + 6).mean() * x[0, 0]


@good(torch.rand(500, 16))
def sum_in_range(self: Any, x: Tensor) -> Any:
    return (x * 20).sum(0) / 500


@good(noise(5, 16) * 10000)
def activations_in_range(self: Any, x: Tensor) -> Any:
    return F.relu(x) / 10000


@good(noise(5, 16), table=torch.linspace(0.0, 15000.0, 16))
def buffer_in_range(self: Any, x: Tensor) -> Any:
    return x * self.table / 15000.0


@good(noise(5, 16))
def small_factor_beside_something_large(self: Any, x: Tensor) -> Any:
    return x + x.flip(0) * 1e-9


@good(noise(5, 16), scale=5.0)
def saturated_sigmoid(self: Any, x: Tensor) -> Any:
    return (x * 10).sigmoid()


@good(noise(5, 16), scale=4.0)
def kernel_of_distances(self: Any, x: Tensor) -> Any:
    return torch.exp(-(x[:, None] - x[None]).abs().sum(-1)) @ x


@good(noise(5, 16))
def clamp_at_true_infinity(self: Any, x: Tensor) -> Any:
    return x.clamp(min=-1000.0, max=math.inf)


@good(noise(2, 6, 16), torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]]).bool())
def mask_kept_in_fp32_by_the_user(self: Any, x: Tensor, keep: Tensor) -> Any:
    lowest = torch.full((2, 6, 6), -1e9, dtype=torch.float32)
    mask = torch.where(keep[:, None] & ~FUTURE, torch.zeros_like(lowest), lowest)
    return (scores_of(x).float() + mask).softmax(-1).to(x.dtype) @ x


# -- masks that are the same for all inputs, and leave something in every row ------------------------------------------


@good(noise(2, 6, 16))
def settled_mask_by_where(self: Any, x: Tensor) -> Any:
    scores = torch.where(FUTURE, -1e9, scores_of(x))
    return scores.softmax(-1) @ x


@good(noise(2, 6, 16))
def settled_mask_by_a_tensor_made_in_forward(self: Any, x: Tensor) -> Any:
    scores = torch.where(FUTURE, torch.tensor(-1e9), scores_of(x))
    return scores.softmax(-1) @ x


@good(noise(2, 6, 16))
def settled_mask_by_product(self: Any, x: Tensor) -> Any:
    mask = FUTURE.to(x.dtype) * -1e9
    return (scores_of(x) + mask).softmax(-1) @ x


@good(noise(2, 6, 16))
def settled_mask_for_sdpa(self: Any, x: Tensor) -> Any:
    mask = torch.zeros(6, 6).masked_fill(FUTURE, -1e9)
    return F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], attn_mask=mask)[:, 0]


@good(noise(2, 6, 16), mask=FUTURE.float() * -1e9)
def settled_mask_as_a_buffer(self: Any, x: Tensor) -> Any:
    scores = scores_of(x) + self.mask[:6, :6]
    return scores.softmax(-1) @ x


@good(noise(2, 6, 16))
def settled_mask_by_subtraction(self: Any, x: Tensor) -> Any:
    penalty = 1e9 * FUTURE.to(x.dtype)
    return (scores_of(x) - penalty).softmax(-1) @ x


@good(noise(2, 6, 16))
def settled_mask_by_padding(self: Any, x: Tensor) -> Any:
    scores = F.pad(scores_of(x), (0, 1), value=-1e9)
    return scores.softmax(-1)[..., :6] @ x


# -- infinities that end in an op which makes the same of them ---------------------------------------------------------


@good(noise(4, 16) * 300, scale=300.0)
def saturated_tanh(self: Any, x: Tensor) -> Any:
    return torch.tanh(x)


@good(noise(4, 16), scale=300.0)
def saturated_square(self: Any, x: Tensor) -> Any:
    return torch.exp(-x.pow(2) / 2) + torch.sigmoid(x * x - 4.0)


@good(noise(4, 16) * 300, scale=300.0)
def clamped_after_a_shift(self: Any, x: Tensor) -> Any:
    return torch.clamp(x.neg() - 3.0, -6.0, 6.0)


@good(noise(4, 16) * 300, scale=300.0)
def compared(self: Any, x: Tensor) -> Any:
    return (x.reshape(16, 4) > 100.0).float().reshape(4, 16)


@good(noise(4, 16) * 300, scale=300.0)
def hard_gates(self: Any, x: Tensor) -> Any:
    return F.hardtanh(x.abs()) + F.relu6(x) + F.hardsigmoid(x) + torch.erf(x / 2) + torch.sign(x)
