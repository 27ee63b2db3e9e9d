"""A digit classifier, trained four ways: fp32, autocast, and twice with fp8 linears.

What it shows. `fc1` (9216 -> 128) is eligible for fp8, `fc2` (128 -> 10) is not, since 10 is no multiple of 16; the
convolutions run in bf16 and the log-softmax in fp32. The same network is trained a few hundred steps on the real
handwritten digits that scikit-learn ships (1,797 of them, 8x8, upscaled here to MNIST's 28x28) and the results are
printed side by side:

    fp32                     everything as written
    autocast bf16            torch.autocast, fp32 parameters
    fp8 from fp32            converted, `fc1` swapped; parameters stay fp32, so small updates are not lost
    fp8 from Net().bfloat16  converted, `fc1` swapped; parameters are bf16: there are no fp32 masters

Run it:

    precision-audit examples/01_mnist_cnn.py --policy fp8-training-hopper
    python examples/01_mnist_cnn.py                  # needs scikit-learn; about 20 s a row on two CPU cores
    python examples/01_mnist_cnn.py --steps 20 --only fp32 autocast

Without a GPU fp8 is emulated: the numbers are those of fp8, the times are not.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from tabulate import tabulate
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

import precision_audit as pa

BATCH = 64
TEST_DIGITS = 6 * BATCH  # the last 384 of 1,797: six whole batches, so every digit of the test set counts
POLICY = "fp8-training-hopper"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, kernel_size=3)
        self.conv2 = nn.Conv2d(32, 64, kernel_size=3)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, images: Tensor) -> Tensor:
        features = F.relu(self.conv2(F.relu(self.conv1(images))))
        features = self.dropout1(F.max_pool2d(features, 2))  # [B, 64, 12, 12], 9216 values an image
        hidden = F.relu(self.fc1(torch.flatten(features, 1)))
        return F.log_softmax(self.fc2(self.dropout2(hidden)), dim=1)


def build_model() -> nn.Module:
    torch.manual_seed(0)
    return Net()


def example_inputs() -> tuple[Tensor]:
    """One batch: standard normal, as the normalised digits are to first order."""
    return (torch.randn(BATCH, 1, 28, 28, generator=torch.Generator().manual_seed(0)),)


def dynamic_shapes() -> dict[str, dict[int, torch.export.Dim]]:
    """The batch varies. Backward of an fp8 linear then holds only for multiples of 16, which the audit states."""
    return {"images": {0: torch.export.Dim("B")}}


def loss(output: Tensor) -> Tensor:
    """Negative log-likelihood against made-up labels 0, 1, … 9, 0, …: enough for gradients to be compared."""
    return F.nll_loss(output.float(), torch.arange(output.shape[0], device=output.device) % 10)


def make_optimizer(params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adadelta(params, lr=1.0)


@dataclass(frozen=True)
class Variant:
    """One way to train: the module, the format its images are given in, whether autocast is on, what was swapped."""

    module: nn.Module
    images: torch.dtype = torch.float32
    autocast: bool = False
    swapped: tuple[str, ...] = ()


def plain() -> Variant:
    return Variant(build_model())


def autocast() -> Variant:
    return Variant(build_model(), autocast=True)


def fp8_from_fp32() -> Variant:
    result = pa.convert(build_model(), example_inputs(), policy=POLICY, loss=loss)
    return Variant(result.module, swapped=tuple(swap.module for swap in result.plan.swaps))


def fp8_from_bf16() -> Variant:
    inputs = (example_inputs()[0].bfloat16(),)
    result = pa.convert(build_model().bfloat16(), inputs, policy=POLICY, loss=loss)
    return Variant(result.module, torch.bfloat16, swapped=tuple(swap.module for swap in result.plan.swaps))


VARIANTS: dict[str, tuple[str, Callable[[], Variant]]] = {
    "fp32": ("fp32", plain),
    "autocast": ("autocast bf16", autocast),
    "fp8": ("fp8 from fp32", fp8_from_fp32),
    "fp8-no-masters": ("fp8 from Net().bfloat16()", fp8_from_bf16),
}


@dataclass(frozen=True)
class Outcome:
    """What training gave. Losses are negative log-likelihoods per digit, `accuracy` a share of the test digits."""

    first_loss: float
    last_loss: float
    test_loss: float
    accuracy: float
    seconds: float  # of training alone


def load_digits() -> tuple[TensorDataset, TensorDataset]:
    """Training and test set: images [N, 1, 28, 28] with mean 0 and deviation 1 over the training set, and labels."""
    from sklearn.datasets import load_digits as bundled

    digits = bundled()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16  # pixels are integers 0..16
    images = F.interpolate(images, size=(28, 28), mode="bilinear", align_corners=False)
    labels = torch.tensor(digits.target)
    train = slice(0, len(images) - TEST_DIGITS)
    images = (images - images[train].mean()) / images[train].std()
    test = slice(len(images) - TEST_DIGITS, None)
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def train_test(variant: Variant, train: TensorDataset, test: TensorDataset, steps: int) -> Outcome:
    """Train for `steps` batches, the learning rate falling by 0.7 an epoch, then test."""
    # drop_last: fp8's backward multiplies along the batch, so each batch, the last included, must be a multiple of 16.
    # 1,413 digits leave a rest of 5, on which a GPU would raise an error at the end of the first epoch.
    batches = DataLoader(train, BATCH, shuffle=True, drop_last=True, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(2)  # dropout: the same masks for every variant
    optimizer = make_optimizer(variant.module.parameters())
    schedule = StepLR(optimizer, step_size=1, gamma=0.7)
    losses: list[float] = []
    variant.module.train()
    start = time.perf_counter()
    while len(losses) < steps:
        for images, labels in batches:
            optimizer.zero_grad()
            step_loss = F.nll_loss(predict(variant, images), labels)
            step_loss.backward()
            optimizer.step()
            losses.append(step_loss.item())
            if len(losses) == steps:
                break
        schedule.step()
    seconds = time.perf_counter() - start
    last = losses[-10:]
    return Outcome(losses[0], sum(last) / len(last), *evaluate(variant, test), seconds)


def evaluate(variant: Variant, test: TensorDataset) -> tuple[float, float]:
    """Loss and accuracy over the test set. Forward alone has no demand on the batch size."""
    variant.module.eval()
    total, right = 0.0, 0
    with torch.no_grad():
        for images, labels in DataLoader(test, BATCH):
            scores = predict(variant, images)
            total += F.nll_loss(scores, labels, reduction="sum").item()
            right += int((scores.argmax(1) == labels).sum())
    return total / len(test), right / len(test)


def predict(variant: Variant, images: Tensor) -> Tensor:
    """Log-probabilities in fp32, whatever the module computes in."""
    region = torch.autocast(images.device.type, torch.bfloat16) if variant.autocast else contextlib.nullcontext()
    with region:
        scores: Tensor = variant.module(images.to(variant.images))
    return scores.float()


def main(argv: Sequence[str] | None = None) -> dict[str, Outcome]:
    parser = argparse.ArgumentParser(description="Train a digit classifier in fp32, under autocast and in fp8.")
    parser.add_argument("--steps", type=int, default=330, help="batches to train on (default 330: 15 epochs)")
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=list(VARIANTS), help="train these alone")
    options = parser.parse_args(argv)
    train, test = load_digits()
    outcomes: dict[str, Outcome] = {}
    rows: list[list[object]] = []
    for key in options.only:
        title, prepare = VARIANTS[key]
        variant = prepare()
        print(f"training: {title}", file=sys.stderr)
        outcome = outcomes[key] = train_test(variant, train, test, options.steps)
        parameters = next(variant.module.parameters()).dtype
        swapped = ", ".join(variant.swapped) or "-"
        losses = [f"{value:.4f}" for value in (outcome.first_loss, outcome.last_loss, outcome.test_loss)]
        rows.append([title, f"{parameters}"[6:], swapped, *losses, f"{outcome.accuracy:.1%}", f"{outcome.seconds:.1f}"])
    headers = ["trained as", "parameters", "fp8 linears", "first loss", "last loss", "test loss", "accuracy", "seconds"]
    print(tabulate(rows, headers=headers, disable_numparse=True, colalign=("left",) * 3 + ("right",) * 5))
    return outcomes


if __name__ == "__main__":
    main()
