"""Training in fp16 parameters: what fp32 sums, loss scaling and fp32 master weights buy, each alone and together.

What it shows. Part one, a linear layer (1024 -> 512, batch 64, 500 steps of SGD at 1e-3): fp16 with and without each of
the three techniques of mixed-precision training, against fp32. The problem is made so that each is needed, as late in
a training, when outputs are nearly right:

    loss scaling     outputs are off by 0.002 and less, and nn.MSELoss divides by 64 x 512. The gradient of an output
                     off by r is 2 r / 32768: below r = 0.0005 it is less than half of 2^-24, fp16's smallest number
    master weights   weights are about 1e-4, where neighbouring fp16 numbers differ by 2^-24 or 2^-23 (6e-8 or 1.2e-7),
                     and one step changes them by some 1e-8
    fp32 sums        1024 products in an fp16 sum are off by much more than the sum's own rounding

Inputs are large (deviation 16, as raw counts are): otherwise no format learns anything at 1e-3 from such gradients.
fp16 products are computed as matrix units do it: fp16 in, sums in fp32, rounded once; "fp16" under "sums in" rounds the
sum after each 16 products. "gradients zero" are elements of the output's gradient that fp16 makes zero and fp32 does
not, "updates lost" those, of a gradient that is not zero, which leave the stored weight as it was; both over all steps.

Part two, a network (convolution 7x7, batch norm, dense 128) on the handwritten digits that scikit-learn ships, with
momentum 0.9, loss scale 128 and gradients clipped to norm 5, unscaled before they are clipped: fp16 with masters, and
without, beside fp32. Batch norm keeps fp32 parameters, which share the optimizer. Gradients are above 5 in the first
steps alone. Here all three learn alike: updates are still large, and part one is what happens later.

Run it:

    precision-audit examples/06_master_weights.py --policy fp16-training
    python examples/06_master_weights.py               # about 30 s on one core; part two needs scikit-learn
    python examples/06_master_weights.py --steps 50
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from tabulate import tabulate
from torch import Tensor, nn

import precision_audit as pa

BATCH, WIDTH, OUTPUTS = 64, 1024, 512
SCALE, CLIP = 128.0, 5.0
DEVIATION, MAGNITUDE, OFF = 16.0, 0.05, 0.002  # of inputs, of outputs, of outputs from their targets
TEST_DIGITS = 6 * BATCH  # the last 384 of 1,797


@dataclass(frozen=True)
class Way:
    """How to train: the format of parameters and products, of sums within a product, the loss scale, masters or not."""

    title: str
    format: torch.dtype = torch.float16
    sums: torch.dtype = torch.float32
    scale: float = 1.0
    masters: bool = False


LINEAR = {
    "fp32": Way("fp32", torch.float32),
    "none": Way("fp16 as it is", sums=torch.float16),
    "sums": Way("fp32 sums", sums=torch.float32),
    "scaling": Way("fp32 sums, scaling", scale=SCALE),
    "masters": Way("fp32 sums, masters", masters=True),
    "fp16-sums": Way("scaling, masters", sums=torch.float16, scale=SCALE, masters=True),
    "all": Way("all three", scale=SCALE, masters=True),
}
DIGITS = {
    "fp32": Way("fp32", torch.float32),
    "no-masters": Way("fp16", scale=SCALE),
    "all": Way("fp16 with masters", scale=SCALE, masters=True),
}

# --- part one: a linear layer


class Product(torch.autograd.Function):
    """[B, K] times [N, K], transposed, in the format of both; sums in `sums`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, sums: torch.dtype) -> Tensor:
        ctx.save_for_backward(x)
        ctx.sums = sums
        return product(x, weight.T, sums)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, None]:
        (x,) = ctx.saved_tensors
        return None, product(gradient.T, x, ctx.sums), None


def product(left: Tensor, right: Tensor, sums: torch.dtype) -> Tensor:
    """As a matrix unit multiplies: products exact, 16 of them added at a time to a sum that is kept in `sums`."""
    if sums == torch.float32:
        return (left.float() @ right.float()).to(left.dtype)
    total = torch.zeros(left.shape[0], right.shape[1], dtype=sums)
    for start in range(0, left.shape[1], 16):
        block = slice(start, start + 16)
        total = (left[:, block].float() @ right[block].float()).add_(total).to(sums)
    return total.to(left.dtype)


@dataclass(frozen=True)
class Fitted:
    """Of part one. `loss` is the last weights' mean squared error in fp32; shares are means over the steps; `weight` is
    the master, where there is one."""

    loss: float
    zero: float
    lost: float
    weight: Tensor


def problem() -> tuple[Tensor, Tensor, Tensor]:
    """Inputs [64, 1024] and a weight [512, 1024], both fp16 numbers, and targets that a weight close by would give."""
    generator = torch.Generator().manual_seed(0)
    unit = 1 / (DEVIATION * WIDTH**0.5)  # a weight of this deviation gives outputs of deviation 1
    inputs = (torch.randn(BATCH, WIDTH, generator=generator) * DEVIATION).half()
    weight = (torch.randn(OUTPUTS, WIDTH, generator=generator) * (MAGNITUDE * unit)).half()
    change = torch.randn(OUTPUTS, WIDTH, generator=generator) * (OFF * unit)
    return inputs, weight, inputs.float() @ (weight.float() + change).T


def fit(way: Way, steps: int) -> Fitted:
    inputs, start, targets = problem()
    inputs, parameter = inputs.to(way.format), nn.Parameter(start.to(way.format))
    # without masters the scale is taken back in the learning rate: dividing fp16 gradients would lose them after all
    optimizer = torch.optim.SGD([parameter], lr=1e-3 if way.masters else 1e-3 / way.scale)
    if way.masters:
        optimizer = pa.MasterWeights(optimizer, loss_scale=way.scale)
    (stored,) = optimizer.param_groups[0]["params"]
    zero, lost = 0.0, 0.0
    for _ in range(steps):
        optimizer.zero_grad()
        outputs = Product.apply(inputs, parameter, way.sums)
        outputs.retain_grad()
        error = outputs.float() - targets
        (error.square().mean() * way.scale).backward()
        zero += share((outputs.grad == 0) & (error != 0), error != 0)
        before = stored.detach().clone()
        optimizer.step()
        lost += share((stored == before) & (parameter.grad != 0), parameter.grad != 0)
    with torch.no_grad():
        loss = F.mse_loss(inputs.float() @ parameter.float().T, targets).item()
    return Fitted(loss, zero / steps, lost / steps, stored.detach().float())


def share(some: Tensor, of: Tensor) -> float:
    return some.sum().item() / max(1, of.sum().item())


def compare_linear(steps: int) -> dict[str, Fitted]:
    found = {key: fit(way, steps) for key, way in LINEAR.items()}
    start, exact = problem()[1].float(), found["fp32"].weight
    rows = []
    for key, way in LINEAR.items():
        each = found[key]
        distance = ((each.weight - exact).norm() / (exact - start).norm()).item()
        settings = [f"fp{torch.finfo(way.sums).bits}", f"{way.scale:g}", "fp32" if way.masters else "-"]
        rows.append(
            [way.title, *settings, f"{each.loss:.1e}", f"{distance:.3f}", f"{each.zero:.1%}", f"{each.lost:.1%}"]
        )
    headers = ["linear 1024 -> 512", "sums in", "scale", "masters", "last loss", "from fp32", "gradients zero"]
    print(tabulate(rows, [*headers, "updates lost"], disable_numparse=True, colalign=("left",) * 2 + ("right",) * 6))
    return found


# --- part two: a network


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 16, kernel_size=7, padding=3)
        self.norm = nn.BatchNorm2d(16)
        self.dense = nn.Linear(16 * 4 * 4, 128)
        self.head = nn.Linear(128, 10)

    def forward(self, images: Tensor) -> Tensor:
        features = F.max_pool2d(F.relu(self.norm(self.conv(images))), 2)  # [B, 16, 4, 4]
        return self.head(F.relu(self.dense(torch.flatten(features, 1))))


def build_model() -> nn.Module:
    torch.manual_seed(0)
    return Net()


def example_inputs() -> tuple[Tensor]:
    """One batch: standard normal, as the normalised digits are to first order."""
    return (torch.randn(BATCH, 1, 8, 8, generator=torch.Generator().manual_seed(0)),)


def loss(output: Tensor) -> Tensor:
    """Cross entropy against made-up labels 0, 1, … 9, 0, …: enough for gradients to be compared."""
    return F.cross_entropy(output.float(), torch.arange(output.shape[0], device=output.device) % 10)


def make_optimizer(params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)


@dataclass(frozen=True)
class Trained:
    """Of part two. Losses are cross entropies per digit, `accuracy` a share of the test digits."""

    losses: tuple[float, ...]
    test_loss: float
    accuracy: float
    clipped: int  # steps in which the norm was above 5


def digits() -> tuple[Tensor, Tensor]:
    """Images [1797, 1, 8, 8] with mean 0 and deviation 1, and labels."""
    from sklearn.datasets import load_digits

    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32).unsqueeze(1)
    return (images - images.mean()) / images.std(), torch.tensor(found.target)


def batches(images: Tensor, labels: Tensor, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        chosen = torch.randint(len(images) - TEST_DIGITS, (BATCH,), generator=generator)
        yield images[chosen], labels[chosen]


def train(way: Way, images: Tensor, labels: Tensor, steps: int) -> Trained:
    model = build_model().to(way.format)
    model.norm.float()  # statistics and parameters of norms stay fp32, in either format
    optimizer = make_optimizer(model.parameters())
    if way.masters:
        optimizer = pa.MasterWeights(optimizer, loss_scale=way.scale)
    losses, clipped = [], 0
    for given, label in batches(images, labels, steps):
        optimizer.zero_grad()
        step_loss = F.cross_entropy(model(given.to(way.format)).float(), label)
        (step_loss * way.scale).backward()
        clipped += clip(optimizer, way.scale) > CLIP
        optimizer.step()
        losses.append(step_loss.item())
    model.eval()
    with torch.no_grad():
        scores = model(images[-TEST_DIGITS:].to(way.format)).float()
    right = (scores.argmax(1) == labels[-TEST_DIGITS:]).float().mean().item()
    test_loss = F.cross_entropy(scores, labels[-TEST_DIGITS:]).item()
    return Trained(tuple(losses), test_loss, right, clipped)


def clip(optimizer: torch.optim.Optimizer, scale: float) -> float:
    """Unscales, then clips to the global norm 5: before, the norm would be 128 times as large. Gives the norm."""
    if isinstance(optimizer, pa.MasterWeights):
        optimizer.unscale_()
        parameters = optimizer.master_params()
    else:
        parameters = optimizer.param_groups[0]["params"]
        for parameter in parameters:
            parameter.grad.div_(scale)
    return nn.utils.clip_grad_norm_(parameters, CLIP).item()


def compare_digits(steps: int) -> dict[str, Trained]:
    images, labels = digits()
    found = {key: train(way, images, labels, steps) for key, way in DIGITS.items()}
    marks = [mark for mark in (1, 10, 50, 100, 250, 500) if mark < steps] + [steps]
    rows = []
    for key, way in DIGITS.items():
        each = found[key]
        curve = [f"{sum(last) / len(last):.4f}" for last in (each.losses[max(0, mark - 10) : mark] for mark in marks)]
        rows.append([way.title, *curve, f"{each.test_loss:.4f}", f"{each.accuracy:.1%}", str(each.clipped)])
    headers = ["digits", *(f"loss at {mark}" for mark in marks), "test loss", "accuracy", "steps clipped"]
    print(tabulate(rows, headers, disable_numparse=True, colalign=("left", *["right"] * (len(headers) - 1))))
    print("losses are means of the ten steps up to there")
    return found


def main(argv: Sequence[str] | None = None) -> tuple[dict[str, Fitted], dict[str, Trained]]:
    parser = argparse.ArgumentParser(description="Train fp16 parameters with and without fp32 master weights.")
    parser.add_argument("--steps", type=int, default=500, help="of each training (default 500)")
    options = parser.parse_args(argv)
    fitted = compare_linear(options.steps)
    print()
    return fitted, compare_digits(options.steps)


if __name__ == "__main__":
    main()
