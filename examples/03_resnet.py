"""ResNet-50, written with torch alone, lowered to bf16 for inference.

What it shows. Batch norm between convolutions: its data may run in bf16 while its statistics stay fp32, so that the
whole of the network needs one cast on the way in and one on the way out, where torch.autocast casts at every
convolution. One forward each is timed and compared with fp64:

    fp32              everything as written
    everything bf16   model.bfloat16(), the blunt way, statistics included
    autocast bf16     torch.autocast
    bf16-inference    converted

Weights are random (no pretrained ones are fetched) but not untouched: norms and running statistics are filled in, and
the statistics fit the activations, so each block does its share.

Run it:

    precision-audit examples/03_resnet.py
    python examples/03_resnet.py                     # 224 x 224, about a minute on two CPU cores
    python examples/03_resnet.py --size 64 --batch 1 --only bf16 autocast
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from tabulate import tabulate
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import precision_audit as pa

EXPANSION = 4  # a bottleneck's output is four times as wide as its inside


class Bottleneck(nn.Module):
    """1x1 down, 3x3 (which strides), 1x1 up, and a shortcut around them."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        wide = width * EXPANSION
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, wide, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(wide)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != wide:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, wide, 1, stride, bias=False), nn.BatchNorm2d(wide))

    def forward(self, features: Tensor) -> Tensor:
        inside = F.relu(self.bn1(self.conv1(features)), inplace=True)
        inside = F.relu(self.bn2(self.conv2(inside)), inplace=True)
        summed: Tensor = self.bn3(self.conv3(inside)) + self.shortcut(features)
        return F.relu(summed, inplace=True)


class ResNet(nn.Module):
    def __init__(self, depths: Sequence[int], width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 7, 2, padding=3, bias=False), nn.BatchNorm2d(width))
        blocks: list[nn.Module] = []
        channels = width
        for stage, depth in enumerate(depths):
            for index in range(depth):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(Bottleneck(channels, width << stage, stride))
                channels = (width << stage) * EXPANSION
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        features = F.max_pool2d(F.relu(self.stem(images), inplace=True), 3, 2, padding=1)
        pooled = self.blocks(features).mean(dim=(2, 3))
        scores: Tensor = self.head(pooled)
        return scores


def build_model(depths: Sequence[int] = (3, 4, 6, 3), width: int = 64, classes: int = 1000, seed: int = 0) -> nn.Module:
    """ResNet-50 by default. The statistics of every norm are those of three batches of noise."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = ResNet(depths, width, classes)
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu", generator=generator)
        elif isinstance(module, nn.BatchNorm2d):
            # As training leaves them, a block adds a fraction to its shortcut: gains of 1 would make rounding errors
            # grow from block to block.
            low, high = (0.1, 0.4) if name.endswith("bn3") else (0.5, 1.5)
            nn.init.uniform_(module.weight, low, high, generator=generator)
            nn.init.normal_(module.bias, std=0.2, generator=generator)
            module.momentum = None  # average over the batches below
    model.train()
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(4, 3, 64, 64, generator=generator))
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.1
    return model.eval()


def example_inputs(batch: int = 2, size: int = 224, seed: int = 0) -> tuple[Tensor]:
    return (torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(seed)),)


class CountCasts(TorchDispatchMode):
    """Counts conversions from one float format to another while it is active."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and args[0].dtype != result.dtype:
            self.count += args[0].is_floating_point() and result.is_floating_point()
        return result


@dataclass(frozen=True)
class Outcome:
    """One way to run the network, against fp64. Seconds of one forward, the median of three."""

    relative_l2: float
    casts: int
    seconds: float


Run = Callable[[Tensor], Tensor]


def everything_bf16(model: nn.Module, images: Tensor) -> Run:
    lowered = model.bfloat16()
    return lambda batch: lowered(batch.bfloat16())


def autocast(model: nn.Module, images: Tensor) -> Run:
    run: Run = torch.autocast("cpu", torch.bfloat16)(model.forward)
    return run


def converted(model: nn.Module, images: Tensor) -> Run:
    """`verify=False`: this script compares with fp64 by itself."""
    return pa.convert(model, (images,), policy="bf16-inference", verify=False).module


WAYS: dict[str, tuple[str, Callable[[nn.Module, Tensor], Run]]] = {
    "fp32": ("fp32", lambda model, images: model),
    "bf16": ("everything bf16", everything_bf16),
    "autocast": ("autocast bf16", autocast),
    "converted": ("bf16-inference", converted),
}


def measure(run: Run, images: Tensor, exact: Tensor) -> Outcome:
    """Casts and error of one forward, which also warms up; then the time of three more."""
    counter = CountCasts()
    times: list[float] = []
    with torch.no_grad():
        with counter:
            scores = run(images)
        for _ in range(3):
            start = time.perf_counter()
            run(images)
            times.append(time.perf_counter() - start)
    error = (scores.double() - exact).norm() / exact.norm()
    return Outcome(error.item(), counter.count, sorted(times)[1])


def main(argv: Sequence[str] | None = None) -> dict[str, Outcome]:
    parser = argparse.ArgumentParser(description="Lower ResNet-50 to bf16 and compare.")
    parser.add_argument("--size", type=int, default=224, help="height and width of the images (default 224)")
    parser.add_argument("--batch", type=int, default=2, help="images at once (default 2)")
    parser.add_argument("--only", nargs="+", choices=WAYS, default=list(WAYS), help="compare these alone")
    options = parser.parse_args(argv)
    print("building ResNet-50", file=sys.stderr)
    model = build_model().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = example_inputs(options.batch, options.size)[0].to(memory_format=torch.channels_last)
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(images.double())
    outcomes: dict[str, Outcome] = {}
    for key in options.only:
        print(f"running: {WAYS[key][0]}", file=sys.stderr)
        outcomes[key] = measure(WAYS[key][1](copy.deepcopy(model), images), images, exact)
    rows = [
        [WAYS[key][0], f"{one.relative_l2:.1e}", one.casts, f"{one.seconds * 1e3:.0f}"] for key, one in outcomes.items()
    ]
    headers = ["runs as", "relative L2", "casts", "ms"]
    print(tabulate(rows, headers=headers, disable_numparse=True, colalign=("left",) + ("right",) * 3))
    return outcomes


if __name__ == "__main__":
    main()
