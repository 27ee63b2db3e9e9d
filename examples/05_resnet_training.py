"""A ResNet, a transformer and an LSTM, each trained in fp32, fp16, bf16 and fp8 by one and the same loop.

What it shows. The three gain differently from a lower format, because different shares of their time and different
layers can run in it. Each is converted with `pa.convert` and then trained by a loop that knows nothing of formats:

    fp32             as written
    fp16 + scaler    policy fp16-training; torch.amp.GradScaler keeps small gradients from becoming zero
    bf16             policy bf16-training; no scaler, since bf16 has the range of fp32
    fp8 swapped      policy fp8-training-hopper: linears whose sizes are multiples of 16 become Float8Linear, the rest
                     is bf16. Convolutions and recurrent layers have no fp8 here, so the ResNet swaps no layer

Parameters and optimizer state stay fp32 in all of them. The columns of the table:

    s/epoch          of training alone, on a CPU, which may have no units for fp16 or bf16; "emulated" where it has no
                     kernel for fp8: the numbers are those of fp8, the time is not
    accuracy … F1    on digits held out; precision, recall and F1 are means over the ten classes
    loss scale       first → last, and the steps skipped because a gradient overflowed
    below 2^-24      the share of gradient elements, not zero and unscaled, that fp16 cannot hold; over all steps

Above each table stands the share of time that a lower format can touch at all: the time that a profiler sees in
matrix products, convolutions, attention and recurrent layers, over all time, in training steps in fp32 on this CPU.

The data are the handwritten digits that scikit-learn ships (1,797 of 8x8 pixels): an image for the ResNet, patches for
the transformer, a sequence of rows for the LSTM. `--data fashion-mnist` takes FashionMNIST through torchvision from
the folder given with `--data-folder`, where it must already be: nothing is fetched.

Run it:

    precision-audit examples/05_resnet_training.py --policy fp16-training
    python examples/05_resnet_training.py            # needs scikit-learn; a few minutes on one CPU core
    python examples/05_resnet_training.py --model lstm --epochs 3 --pictures out/
    python examples/05_resnet_training.py --model resnet --full --data fashion-mnist --data-folder data/
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from tabulate import tabulate
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import precision_audit as pa
from precision_audit.pictures.drawing import require
from precision_audit.records import Range, Training

BATCH = 64  # a multiple of 16, which fp8's backward needs; the rest of an epoch is dropped
HELD_OUT = 6 * BATCH  # digits
CLASSES = 10
WIDTH = 64  # of transformer and LSTM
SMALLEST = -24  # fp16 holds no number but zero below 2**-24
# Names of operators whose time depends on the format of a matrix unit; their backward passes are made of the same.
TOUCHED = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::linear", "convolution", "attention", "rnn")


class Bottleneck(nn.Module):
    """1x1 down, 3x3 (which strides), 1x1 up to four times the width, and a shortcut around them."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != 4 * width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, features: Tensor) -> Tensor:
        inside = F.relu(self.bn1(self.conv1(features)))
        inside = F.relu(self.bn2(self.conv2(inside)))
        return F.relu(self.bn3(self.conv3(inside)) + self.shortcut(features))


class ResNet(nn.Module):
    """The stem is a 3x3 convolution that keeps the size, as usual for small images."""

    def __init__(self, depths: Sequence[int], width: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        blocks, channels = list[nn.Module](), width
        for stage, depth in enumerate(depths):
            for index in range(depth):
                blocks.append(Bottleneck(channels, width << stage, stride=2 if stage > 0 and index == 0 else 1))
                channels = 4 * (width << stage)
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.head(self.blocks(self.stem(images)).mean(dim=(2, 3)))
        return scores


class Block(nn.Module):
    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, stream: Tensor) -> Tensor:
        batch, length, width = stream.shape
        heads = self.qkv(self.norm1(stream)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(batch, length, width)
        stream = stream + self.out(mixed)
        mended: Tensor = stream + self.down(F.gelu(self.up(self.norm2(stream))))
        return mended


class Transformer(nn.Module):
    """Over patches of a quarter (8x8) or a seventh (28x28) of the image's side."""

    def __init__(self, size: int, depth: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.patch = 2 if size <= 8 else 4
        self.embedding = nn.Linear(self.patch**2, WIDTH)
        self.positions = nn.Parameter(0.02 * torch.randn((size // self.patch) ** 2, WIDTH))
        self.blocks = nn.Sequential(*(Block(heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        patches = F.unfold(images, self.patch, stride=self.patch).transpose(1, 2)  # [B, patches, pixels of one]
        stream = self.blocks(self.embedding(patches) + self.positions)
        scores: Tensor = self.head(self.norm(stream).mean(dim=1))
        return scores


class Recurrent(nn.Module):
    """An LSTM over the rows of the image, and a hidden layer on its last state."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(size, WIDTH, batch_first=True)
        self.hidden = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        states, _ = self.lstm(images.squeeze(1))  # [B, rows, width]
        scores: Tensor = self.head(F.relu(self.hidden(states[:, -1])))
        return scores


MODELS = ("resnet", "transformer", "lstm")


def build_model(name: str = "resnet", size: int = 8, full: bool = False) -> nn.Module:
    """A network for images of `size` x `size`; with `full` the ResNet has the blocks and widths of ResNet-50."""
    torch.manual_seed(0)
    if name == "resnet":
        return ResNet((3, 4, 6, 3), 64) if full else ResNet((1, 1), 16)
    return Transformer(size) if name == "transformer" else Recurrent(size)


def example_inputs(size: int = 8) -> tuple[Tensor]:
    """One batch: standard normal, as the normalised images are to first order."""
    return (torch.randn(BATCH, 1, size, size, generator=torch.Generator().manual_seed(0)),)


def loss(output: Tensor) -> Tensor:
    """Cross-entropy in nats against made-up labels 0, 1, … 9, 0, …: enough for gradients to be compared."""
    return F.cross_entropy(output.float(), torch.arange(output.shape[0], device=output.device) % CLASSES)


def make_optimizer(params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=4e-3)


@dataclass(frozen=True)
class Way:
    """One way to train. `policy` is "" for the model as written; `emulated`: no time of it means anything on a CPU."""

    title: str
    policy: str = ""
    scaler: bool = False
    emulated: bool = False


WAYS = {
    "fp32": Way("fp32"),
    "fp16": Way("fp16 + scaler", "fp16-training", scaler=True),
    "bf16": Way("bf16", "bf16-training"),
    "fp8": Way("fp8 swapped", "fp8-training-hopper", emulated=True),
}


@dataclass
class Outcome:
    """What one training gave; lists have one number a step. `powers[e]`: gradient elements from 2**e to 2**(e+1)."""

    swapped: int
    losses: list[float] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    below: list[float] = field(default_factory=list)
    powers: Counter[int] = field(default_factory=Counter)
    zeros: int = 0
    lost: int = 0  # NaN or infinite
    epoch_seconds: float = 0.0
    scores: tuple[float, ...] = ()  # accuracy, precision, recall, F1

    @property
    def accuracy(self) -> float:
        return self.scores[0]

    @property
    def skipped(self) -> int:
        return sum(after < before for before, after in zip(self.scales, self.scales[1:], strict=False))

    @property
    def share_below(self) -> float:
        """Of the gradient elements that are not zero."""
        return sum(number for power, number in self.powers.items() if power < SMALLEST) / max(self.powers.total(), 1)


def load_digits() -> tuple[TensorDataset, TensorDataset]:
    """Training and held-out set: images [N, 1, 8, 8] with mean 0 and deviation 1 over the training set, and labels."""
    from sklearn.datasets import load_digits as bundled

    digits = bundled()
    images, labels = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1), torch.tensor(digits.target)
    return split(images, labels, len(images) - HELD_OUT)


def load_fashion(folder: Path) -> tuple[TensorDataset, TensorDataset]:
    """The same of FashionMNIST, [N, 1, 28, 28]; held out are its 10,000 test images."""
    try:
        from torchvision.datasets import FashionMNIST
    except ImportError:
        raise pa.InputError(
            "--data fashion-mnist: torchvision is not installed; install it, or use --data digits"
        ) from None
    try:
        parts = [FashionMNIST(str(folder), train=train, download=False) for train in (True, False)]
    except RuntimeError:
        raise pa.InputError(
            f"--data fashion-mnist: no FashionMNIST in {folder}; put torchvision's files in "
            f"{folder / 'FashionMNIST' / 'raw'}, name another folder with --data-folder, or use --data digits"
        ) from None
    images = torch.cat([part.data for part in parts]).float().unsqueeze(1)
    return split(images, torch.cat([part.targets for part in parts]), len(parts[0]))


def split(images: Tensor, labels: Tensor, train: int) -> tuple[TensorDataset, TensorDataset]:
    images = (images - images[:train].mean()) / images[:train].std()
    return TensorDataset(images[:train], labels[:train]), TensorDataset(images[train:], labels[train:])


def train_test(model: nn.Module, way: Way, train: TensorDataset, test: TensorDataset, epochs: int) -> Outcome:
    """Convert, train and test. The loop is the same for all ways; a scaler that is not enabled does nothing."""
    size = train.tensors[0].shape[-1]
    outcome = Outcome(swapped=0)
    if way.policy:  # verify=False: what is of interest here, training, is compared below
        shapes = {"images": {0: torch.export.Dim("B")}}  # the last batch of the test set is smaller
        inputs = example_inputs(size)
        result = pa.convert(model, inputs, policy=way.policy, loss=loss, dynamic_shapes=shapes, verify=False)
        model, outcome.swapped = result.module, len(result.plan.swaps)
    batches = DataLoader(train, BATCH, shuffle=True, drop_last=True, generator=torch.Generator().manual_seed(1))
    optimizer = make_optimizer(model.parameters())
    # it doubles the scale after 50 steps without overflow, not 2,000 as by default: the training is short
    scaler = torch.amp.GradScaler("cpu", growth_interval=50, enabled=way.scaler)
    model.train()
    seconds = 0.0
    for _ in range(epochs):
        for images, labels in batches:
            outcome.scales.append(scaler.get_scale())
            started = time.perf_counter()
            optimizer.zero_grad()
            step_loss = F.cross_entropy(model(images).float(), labels)
            scaler.scale(step_loss).backward()
            scaler.step(optimizer)  # takes the scale off the gradients; does nothing if one is infinite
            scaler.update()
            seconds += time.perf_counter() - started
            outcome.losses.append(step_loss.item())
            count_gradients(model, outcome)
    outcome.epoch_seconds = seconds / epochs
    outcome.scores = evaluate(model, test)
    return outcome


def count_gradients(model: nn.Module, outcome: Outcome) -> None:
    """Add the magnitudes of this step's gradients, the scale already taken off."""
    flat = torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None]).float()
    finite = flat[torch.isfinite(flat)]
    nonzero = finite[finite != 0]
    exponents, numbers = (torch.frexp(nonzero)[1] - 1).unique(return_counts=True)
    step = Counter(dict(zip(exponents.tolist(), numbers.tolist(), strict=True)))
    outcome.powers += step
    outcome.zeros += len(finite) - len(nonzero)
    outcome.lost += len(flat) - len(finite)
    outcome.below.append(sum(number for power, number in step.items() if power < SMALLEST) / max(len(nonzero), 1))


def evaluate(model: nn.Module, test: TensorDataset) -> tuple[float, float, float, float]:
    """Accuracy, and precision, recall and F1 as means over the classes."""
    from sklearn.metrics import accuracy_score, precision_recall_fscore_support

    model.eval()
    with torch.no_grad():
        found = torch.cat([model(images).argmax(1) for images, _ in DataLoader(test, BATCH)])
    wanted = test.tensors[1]
    precision, recall, f1, _ = precision_recall_fscore_support(wanted, found, average="macro", zero_division=0)
    return float(accuracy_score(wanted, found)), float(precision), float(recall), float(f1)


def touchable(model: nn.Module, train: TensorDataset, steps: int = 10) -> float:
    """Share of all time that is the operators' of TOUCHED own, over a few steps in fp32 after three others."""
    images, labels = train[:BATCH]
    optimizer = make_optimizer(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    for _ in range(3):
        step()
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler writes of its own doings on stderr
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(steps):
            step()
    times = {each.key: each.self_cpu_time_total for each in profile.key_averages()}
    return sum(spent for key, spent in times.items() if any(name in key for name in TOUCHED)) / sum(times.values())


def report(name: str, outcomes: dict[str, Outcome], parameters: int, touched: float) -> None:
    """One archetype's table."""
    print(
        f"{name}: {parameters:,} parameters; a lower format can touch {touched:.0%} of a training step's time in fp32"
    )
    rows = []
    for key, one in outcomes.items():
        way = WAYS[key]
        seconds = "emulated" if way.emulated and one.swapped else f"{one.epoch_seconds:.2f}"
        scale = f"{one.scales[0]:g} → {one.scales[-1]:g}, {one.skipped} skipped" if way.scaler else "-"
        shares = [f"{score:.1%}" for score in one.scores[:3]] + [f"{one.scores[3]:.3f}"]
        rows.append([way.title, one.swapped or "-", seconds, *shares, scale, f"{one.share_below:.3%}"])
    headers = ["trained as", "fp8 linears", "s/epoch", "accuracy", "precision", "recall", "F1", "loss scale",
               "below 2^-24"]  # fmt: skip
    print(tabulate(rows, headers=headers, disable_numparse=True, colalign=("left",) + ("right",) * 8), end="\n\n")


def draw(name: str, outcomes: dict[str, Outcome], folder: Path) -> None:
    """Training curves, the magnitudes of fp32's gradients against fp16, and fp16's loss scale, as SVG."""
    first, scaled = outcomes["fp32"], outcomes["fp16"]
    curves = {WAYS[key].title: one.losses for key, one in outcomes.items()}
    smooth = max(1, len(first.losses) // 20)
    title = f"{name}: one training in four formats"
    pa.pictures.training_curves(
        curves, folder / f"{name}_curves.svg", title=title, quantity="cross-entropy (nats)", smooth=smooth
    )
    gradients = Training(len(first.losses), tuple(first.losses), (), (as_range(first),), (), ())
    pa.pictures.gradient_histogram(gradients, folder / f"{name}_gradients.svg", scale=scaled.scales[-1])
    pa.pictures.underflow_and_scale(scaled.below, scaled.scales, folder / f"{name}_scale.svg")


def as_range(outcome: Outcome) -> Range:
    """The counted gradients as the record that the picture takes; magnitudes to within their power of two."""
    powers = tuple(sorted(outcome.powers.items()))
    smallest, largest = (2.0 ** powers[0][0], 2.0 ** (powers[-1][0] + 1)) if powers else (0.0, 0.0)
    count = outcome.powers.total() + outcome.zeros + outcome.lost
    return Range("all parameters", "OBSERVED", count, largest, smallest, -largest, largest, outcome.zeros,
                 infinite=outcome.lost, histogram=powers)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> dict[str, dict[str, Outcome]]:
    parser = argparse.ArgumentParser(description="Train three kinds of network in fp32, fp16, bf16 and fp8.")
    parser.add_argument("--model", choices=[*MODELS, "all"], default="all", help="train this one alone (default all)")
    parser.add_argument("--epochs", type=int, default=10, help="passes over the training set (default 10)")
    parser.add_argument("--small", action="store_true", help="640 training images only")
    parser.add_argument("--full", action="store_true", help="the ResNet is ResNet-50: hours on a CPU")
    parser.add_argument("--data", choices=("digits", "fashion-mnist"), default="digits", help="what to classify")
    parser.add_argument("--data-folder", type=Path, default=Path("data"), help="where FashionMNIST is (default data)")
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="draw there as .svg, needs matplotlib")
    options = parser.parse_args(argv)
    if options.epochs < 1:
        parser.error(f"--epochs {options.epochs}: expected 1 or more")
    try:
        if options.pictures is not None:
            require()
            options.pictures.mkdir(exist_ok=True)
        train, test = load_digits() if options.data == "digits" else load_fashion(options.data_folder)
    except ImportError as missing:
        parser.error(f"{missing}; pip install 'precision-audit[examples]'")
    except (pa.InputError, OSError) as error:
        parser.error(str(error))
    if options.small:
        train = TensorDataset(*train[: 10 * BATCH])
    size = train.tensors[0].shape[-1]
    found: dict[str, dict[str, Outcome]] = {}
    for name in MODELS if options.model == "all" else [options.model]:
        outcomes = found[name] = {}
        for key, way in WAYS.items():
            print(f"training: {name}, {way.title}", file=sys.stderr)
            outcomes[key] = train_test(build_model(name, size, options.full), way, train, test, options.epochs)
        model = build_model(name, size, options.full)
        report(name, outcomes, sum(each.numel() for each in model.parameters()), touchable(model, train))
        if options.pictures is not None:
            draw(name, outcomes, options.pictures)
    return found


if __name__ == "__main__":
    main()
