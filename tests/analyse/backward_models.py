"""Models whose forward is right in a low format and whose gradients are not, and harmless ones beside them.

Each is a linear and a function of its output. `culprit` is the text of the guilty op's line within the function and the
aten name of the op, both written down by reading the function; "" for what is harmless.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Sketch:
    function: Callable[[Tensor], Tensor]
    low: str
    scale: float = 1.0  # of the linear's weight
    bias: float = 0.0
    culprit: str = ""


class Net(nn.Module):
    def __init__(self, sketch: Sketch) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 4)
        self.function = sketch.function
        with torch.no_grad():
            self.fc.weight.mul_(sketch.scale)
            nn.init.constant_(self.fc.bias, sketch.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.fc(x))


def built(sketch: Sketch) -> tuple[Net, Tensor]:
    torch.manual_seed(0)
    net = Net(sketch)
    return net, torch.randn(6, 8, generator=torch.Generator().manual_seed(1))


def gelu_with_a_power(h: Tensor) -> Tensor:
    return 0.5 * h * (1.0 + torch.tanh(0.7978845608 * (h + 0.044715 * h**3)))


def gelu_with_products(h: Tensor) -> Tensor:
    return 0.5 * h * (1.0 + torch.tanh(0.7978845608 * (h + 0.044715 * (h * h * h))))


def four_norm(h: Tensor) -> Tensor:
    return torch.norm(h, p=4, dim=-1)


def normalized_by_hand(h: Tensor) -> Tensor:
    squares = h.pow(2).sum(-1, keepdim=True)
    return h / (torch.sqrt(squares) + 1e-2)


def root_of_variance(h: Tensor) -> Tensor:
    spread = torch.sqrt(h.var(-1, keepdim=True))
    return h / (spread + 1e-2)


def distance_by_hand(h: Tensor) -> Tensor:
    apart = ((h[:, None] - h[None].detach() * 0.5) ** 2).sum(-1)
    return torch.exp(-torch.sqrt(apart))


def noisy_or_with_log(h: Tensor) -> Tensor:
    p = torch.sigmoid(h)
    return 1.0 - torch.exp(torch.log(1.0 - p).sum(-1))


def noisy_or_with_a_floor(h: Tensor) -> Tensor:
    p = torch.sigmoid(h).clamp(max=0.999)
    return 1.0 - torch.exp(torch.log(1.0 - p).sum(-1))


def angle(h: Tensor) -> Tensor:
    return torch.atan2(h[:, :2], h[:, 2:])


def saturated_ratio(h: Tensor) -> Tensor:
    energy = h * h
    return h * 50.0 + torch.tanh(h / energy)


def softplus_with_where(h: Tensor) -> Tensor:
    e = torch.exp(h)
    return torch.where(h > 10.0, h, torch.log1p(e))


def logcosh_with_where(h: Tensor) -> Tensor:
    c = torch.cosh(h)
    return torch.where(h.abs() > 5.0, h.abs() - 0.6931472, torch.log(c))


def sigmoid_by_hand(h: Tensor) -> Tensor:
    e = torch.exp(-h)
    return 1.0 / (1.0 + e)


def swish_by_hand(h: Tensor) -> Tensor:
    e = torch.exp(-h)
    return h / (1.0 + e)


def mish_by_hand(h: Tensor) -> Tensor:
    e = torch.exp(h)
    return h * torch.tanh(torch.log1p(e))


def magnitude_with_a_power(h: Tensor) -> Tensor:
    squares = h * h
    return h / (1.0 + squares.pow(0.5))


def angle_between(h: Tensor) -> Tensor:
    cosine = torch.tanh(h).clamp(-1 + 1e-4, 1 - 1e-4)
    return torch.acos(cosine)


def arcsine(h: Tensor) -> Tensor:
    sine = torch.tanh(h).clamp(-1 + 1e-4, 1 - 1e-4)
    return torch.asin(sine)


def quartic_kernel(h: Tensor) -> Tensor:
    quartic = torch.pow(h, 4)
    return torch.exp(-quartic)


def rational_kernel(h: Tensor) -> Tensor:
    quartic = torch.pow(h, 4)
    return 1.0 / (1.0 + quartic)


BAD = {
    "gelu with a power": Sketch(gelu_with_a_power, "fp16", 250.0, culprit="h**3 pow"),
    "gelu with products": Sketch(gelu_with_products, "fp16", 800.0, culprit="h * h * h mul"),
    "4-norm": Sketch(four_norm, "fp16", 1e-3, culprit="torch.norm linalg_vector_norm"),
    "normalize by hand": Sketch(normalized_by_hand, "fp16", 1e-4, culprit="torch.sqrt(squares) sqrt"),
    "root of variance": Sketch(root_of_variance, "fp16", 1e-4, culprit="torch.sqrt(h.var sqrt"),
    "distance by hand": Sketch(distance_by_hand, "fp16", 1e-4, culprit="torch.sqrt(apart) sqrt"),
    "log(1 - p)": Sketch(noisy_or_with_log, "bf16", bias=9.0, culprit="torch.log(1.0 - p) log"),
    "log(1 - p) above a floor": Sketch(noisy_or_with_a_floor, "bf16", bias=6.0, culprit="torch.log(1.0 - p) log"),
    "division": Sketch(saturated_ratio, "fp16", 1e-4, culprit="h / energy div"),
    "softplus with where": Sketch(softplus_with_where, "fp16", 20.0, culprit="torch.exp(h) exp"),
    "logcosh with where": Sketch(logcosh_with_where, "fp16", 20.0, culprit="torch.cosh(h) cosh"),
    "sigmoid by hand": Sketch(sigmoid_by_hand, "fp16", 20.0, culprit="torch.exp(-h) exp"),
    "swish by hand": Sketch(swish_by_hand, "fp16", 20.0, culprit="torch.exp(-h) exp"),
    "mish by hand": Sketch(mish_by_hand, "fp16", 20.0, culprit="torch.exp(h) exp"),
    "pow(0.5)": Sketch(magnitude_with_a_power, "fp16", 1e-4, culprit="squares.pow(0.5) pow"),
    "acos": Sketch(angle_between, "bf16", bias=3.5, culprit="torch.acos acos"),
    "asin": Sketch(arcsine, "bf16", bias=3.5, culprit="torch.asin asin"),
    "exp(-x^4)": Sketch(quartic_kernel, "fp16", 100.0, culprit="torch.pow(h, 4) pow"),
    "1 / (1 + x^4)": Sketch(rational_kernel, "fp16", 100.0, culprit="torch.pow(h, 4) pow"),
}


def fused_gelu(h: Tensor) -> Tensor:
    return F.gelu(h, approximate="tanh")


def three_norm(h: Tensor) -> Tensor:
    return torch.linalg.vector_norm(h, ord=3, dim=-1)


def normalized(h: Tensor) -> Tensor:
    return F.normalize(h, dim=-1, eps=1e-3)


def noisy_or_with_logsigmoid(h: Tensor) -> Tensor:
    return 1.0 - torch.exp(F.logsigmoid(-h).sum(-1))


def rooted_twice_guarded(h: Tensor) -> Tensor:
    inside = torch.where(h > 0.1, h, torch.ones_like(h))
    return torch.where(h > 0.1, torch.sqrt(inside), h)


def shifted_exponentials(h: Tensor) -> Tensor:
    e = torch.exp(h - h.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def lost_on_the_way(h: Tensor) -> Tensor:
    """The root's gradient is infinite in the low format, and `detach` keeps it from every parameter."""
    return h * 1e3 + torch.sqrt((h * h).detach())


def spread(h: Tensor) -> Tensor:
    """torch masks the derivative of std where it is zero."""
    return h / (h.std(-1, keepdim=True) + 1.0)


def nan_in_fp32_too(h: Tensor) -> Tensor:
    """Infinity times zero in every format: no fault of the low one."""
    return torch.where(h > 0.0, torch.sqrt(h * (h > 0.0)), torch.zeros_like(h))


def saturated(h: Tensor) -> Tensor:
    return torch.sigmoid(h).sum(-1)


# finite all the same: torch masks what is infinite, and next to nothing is left
VANISHING = {
    "atan2": Sketch(angle, "fp16", 1e-4, culprit="torch.atan2 atan2"),
    "sigmoid of large numbers": Sketch(saturated, "bf16", bias=9.0, culprit="torch.sigmoid(h) sigmoid"),
}

GOOD = {
    "fused gelu": Sketch(fused_gelu, "fp16", 250.0),
    "3-norm of ordinary numbers": Sketch(three_norm, "fp16"),
    "3-norm of small numbers in bf16": Sketch(three_norm, "bf16", 1e-3),
    "normalize": Sketch(normalized, "fp16", 1e-1),
    "logsigmoid": Sketch(noisy_or_with_logsigmoid, "bf16", bias=0.5),
    "double where": Sketch(rooted_twice_guarded, "fp16"),
    "softplus": Sketch(F.softplus, "fp16", 20.0),
    "sigmoid": Sketch(torch.sigmoid, "fp16", 4.0),
    "exp after the maximum": Sketch(shifted_exponentials, "fp16", 2.0),
    "atan2 of ordinary numbers": Sketch(angle, "fp16", 1.0),
    "detached root": Sketch(lost_on_the_way, "fp16", 1e-4),
    "std of what rounds to equals": Sketch(spread, "bf16", 1e-4, bias=1.0),
    "NaN in fp32 too": Sketch(nan_in_fp32_too, "fp16", 1.0),
    "gelu with a power, small": Sketch(gelu_with_a_power, "fp16", 1.0),
}
