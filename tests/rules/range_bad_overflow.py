"""Models that overflow in fp16: activations, squares, norms, sums, exponentials. See `range_models`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.rules.range_models import bad, noise, spiked

# -- activations, squares, norms ---------------------------------------------------------------------------------------


@bad("PA101", spiked())
def rms_norm_by_square(self: Any, x: Tensor) -> Any:
    mean = x.square().mean(-1, keepdim=True)  # guilty
    return x * torch.rsqrt(mean + 1e-5)


@bad("PA101", spiked())
def rms_norm_by_product(self: Any, x: Tensor) -> Any:
    squares = x * x  # guilty
    return x / torch.sqrt(squares.mean(dim=-1, keepdim=True) + 1e-5)


@bad("PA101 PA112", spiked())
def norm_by_einsum(self: Any, x: Tensor) -> Any:
    length = torch.einsum("bi,bi->b", x, x)  # guilty
    return x / length.sqrt().unsqueeze(-1)


@bad("PA101 PA112", spiked())
def norm_by_matmul(self: Any, x: Tensor) -> Any:
    length = torch.bmm(x[:, None], x[:, :, None])  # guilty
    return x / length.squeeze(-1).sqrt()


@bad("PA101", spiked(500.0))
def layer_norm_by_hand(self: Any, x: Tensor) -> Any:
    centred = x - x.mean(-1, keepdim=True)
    variance = torch.mean(centred**2, dim=-1, keepdim=True)  # guilty
    return centred / (variance + 1e-5).sqrt()


@bad("PA101", spiked(1500.0))
def variance_of_large(self: Any, x: Tensor) -> Any:
    variance = x.var(-1, keepdim=True, unbiased=False)  # guilty
    return (x - x.mean(-1, keepdim=True)) / torch.sqrt(variance + 1e-5)


@bad("PA101 PA112", noise(5, 16) * 40, scale=3.0)
def sum_of_squares(self: Any, x: Tensor) -> Any:
    length = x.pow(2).sum(-1, keepdim=True).sqrt()  # guilty
    return x / length


@bad("PA101", noise(2, 6, 16), scale=80.0)
def scores_before_their_scale(self: Any, x: Tensor) -> Any:
    scores = torch.einsum("bqd,bkd->bqk", x, x)  # guilty
    return torch.matmul((scores / 256.0 / 16).softmax(-1), x)


@bad("PA101", noise(2, 6, 16), scale=80.0)
def scores_by_baddbmm(self: Any, x: Tensor) -> Any:
    bias = torch.zeros(2, 6, 6)
    scores = torch.baddbmm(bias, x, x.transpose(1, 2))  # guilty
    return torch.bmm(torch.softmax(scores * (1 / 4096), dim=-1), x)


@bad("PA101", noise(4, 16), scale=1.0)
def residual_stream(self: Any, x: Tensor) -> Any:
    grown = self.out(x) * 20000.0
    stream = grown + 50000.0  # guilty
    return F.layer_norm(stream, (16,))


@bad("PA101", noise(4, 16), scale=3.0)
def cube_of_an_activation(self: Any, x: Tensor) -> Any:
    cube = torch.pow(x * 20, 3)  # guilty
    return torch.tanh(cube * 1e-5)


@bad("PA101", noise(4, 16) * 100, scale=10.0)
def scaled_down_too_late(self: Any, x: Tensor) -> Any:
    grown = x.mul(1000.0)  # guilty
    return grown.div(10000.0)


@bad("PA101", noise(4, 16), noise(4, 16) + 90000.0)
def an_input_out_of_range(self: Any, x: Tensor, y: Tensor) -> Any:
    return x + (y - 90000.0) * 0.5  # guilty


@bad("PA102", torch.cat([torch.full((1, 16), 300.0), noise(31, 16)]))
def squares_inside_a_loss(self: Any, x: Tensor) -> Any:
    return F.mse_loss(x, -x)  # guilty


@bad("PA101", torch.tensor([[10.0, 20.0, 900.0, 1000.0], [0.0, 0.0, 500.0, 700.0]]).repeat(1, 4))
def area_of_boxes(self: Any, x: Tensor) -> Any:
    area = (x[:, 2] - x[:, 0]) * (x[:, 3] - x[:, 1])  # guilty
    return area / 1e6


@bad("PA101", noise(20, 16).abs() * 8000.0)
def sums_by_index(self: Any, x: Tensor) -> Any:
    sums = torch.zeros_like(x[:2]).index_add(0, torch.arange(20) % 2, x)  # guilty
    return sums / 10.0


# -- sums and exponentials ---------------------------------------------------------------------------------------------


@bad("PA112", torch.rand(1, 300, 20, 16))
def pixels(self: Any, x: Tensor) -> Any:
    total = torch.sigmoid(x + 6).sum()  # guilty
    return total / x.numel() * x[0, 0]


@bad("PA112", noise(2, 16) * 15000)
def absolute_sum(self: Any, x: Tensor) -> Any:
    total = torch.abs(x).sum(dim=-1, keepdim=True)  # guilty
    return x / total


@bad("PA112", torch.ones(70, 16))
def running_sum(self: Any, x: Tensor) -> Any:
    total = torch.cumsum(x * 1000.0, dim=0)  # guilty
    return total / 70000.0


@bad("PA103", noise(4, 16))
def exp_over_temperature(self: Any, x: Tensor) -> Any:
    e = torch.exp(F.normalize(x, dim=-1, eps=1e-4) @ F.normalize(x, dim=-1, eps=1e-4).t() / 0.07)  # guilty
    return (e / e.sum(-1, keepdim=True)) @ x


@bad("PA103", noise(4, 16), scale=5.0)
def softmax_by_hand(self: Any, x: Tensor) -> Any:
    e = (x * 4).exp()  # guilty
    return e / e.sum(-1, keepdim=True)


@bad("PA103", noise(4, 16) + 10.0)
def logsumexp_by_hand(self: Any, x: Tensor) -> Any:
    total = x.mul(1.5).exp().sum(-1, keepdim=True)  # guilty
    return x - total.log()


@bad("PA103", noise(4, 16) + 25.0)
def softplus_by_hand(self: Any, x: Tensor) -> Any:
    return torch.log(1 + x.exp())  # guilty


@bad("PA103", noise(4, 16) + 17.0)
def power_of_two(self: Any, x: Tensor) -> Any:
    weight = 2.0**x  # guilty
    return weight / weight.sum(-1, keepdim=True)
