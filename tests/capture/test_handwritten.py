"""Hand-written gradients kept whole: which calls become one op, which cannot, and what the graph says of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from precision_audit.capture import Captured, capture, private_copy
from precision_audit.capture.handwritten import class_of, names
from precision_audit.records import CustomFunction


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class Scaled(torch.autograd.Function):
    """Takes a number, a text and a table beside its tensor."""

    @staticmethod
    def forward(ctx: Any, factor: float, x: Tensor, how: str, table: dict[str, tuple[int, ...]]) -> Tensor:
        assert how == "times" and table == {"a": (1, 2)}
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, None, None]:
        return None, gradient * 7, None, None


class Two(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            return x.round(), x.sign()

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:
        return first + second


class Written(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.round_()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class Counted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, int]:
        return x.round(), 3

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: None) -> Tensor:
        return gradient


class Held(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, module: nn.Module) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def _closing(net: Net, x: Tensor) -> Tensor:
    weight = net.fc.weight

    class Closing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x + weight.sum()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * 2

    y: Tensor = Closing.apply(x)
    return y


class Net(nn.Module):
    def __init__(self, way: Callable[[Net, Tensor], Any]) -> None:
        super().__init__()
        self.fc, self.way = nn.Linear(4, 4), way

    def forward(self, x: Tensor) -> Any:
        return self.way(self, self.fc(x))


X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)) * 3


def captured(way: Callable[[Net, Tensor], Any], kept: str, **options: Any) -> Captured:
    torch.manual_seed(0)
    return capture(private_copy(Net(way)), (X,), mode="training", kept={kept} if kept else (), **options)


def computed(found: Captured) -> list[str]:
    return [op.op for op in found.graph.ops if op.kind not in ("input", "parameter")]


@pytest.mark.parametrize(
    ("way", "kept", "expected"),
    [
        (lambda net, x: Straight.apply(x), "", ["linear", "round"]),
        (lambda net, x: Straight.apply(x), "Straight", ["linear", "function::Straight"]),
        (lambda net, x: Straight.apply(x), "Scaled", ["linear", "round"]),
        (lambda net, x: Straight.apply(Straight.apply(x)), "Straight", ["linear", *["function::Straight"] * 2]),
        (
            lambda net, x: Scaled.apply(2.0, x, "times", {"a": (1, 2)}),
            "Scaled",
            ["linear", "function::Scaled"],
        ),
        (lambda net, x: sum(Two.apply(x)), "Two", ["linear", "function::Two", "add", "add"]),
    ],
)
def test_a_kept_call_is_one_op(way: Callable[[Net, Tensor], Any], kept: str, expected: list[str]) -> None:
    found = captured(way, kept)
    assert computed(found) == expected
    assert names(found.root.graph) == ({kept} if f"function::{kept}" in expected else frozenset())
    for key, op in ((op.key, op) for op in found.graph.ops if op.op.startswith("function::")):
        assert (op.fixed, op.kind, op.module) == ("hand-written", "hand_written", "")
        assert op.source is not None and f"{kept}.apply" in op.source.text
        assert class_of(found.nodes[key].target).__name__ == kept  # type: ignore[union-attr]


def test_the_record_of_a_kept_function_names_its_op() -> None:
    found = captured(lambda net, x: Straight.apply(x), "Straight")
    (function,) = found.graph.functions
    assert (function.name, function.kept, function.why_not) == ("Straight", True, "")
    assert function.ops == ("/function::Straight#0",)


@pytest.mark.parametrize(
    ("way", "kept", "why"),
    [
        (lambda net, x: Written.apply(x * 1), "Written", "it writes to its input"),
        (lambda net, x: Counted.apply(x)[0], "Counted", "it returns more than tensors"),
        (lambda net, x: Held.apply(x, net), "Held", "its argument 1 is a Net, which may hold tensors"),
        (_closing, "Closing", "its class closes over tensors or modules"),
    ],
)
def test_what_cannot_be_kept_is_inlined_and_says_why(way: Callable[[Net, Tensor], Any], kept: str, why: str) -> None:
    found = captured(way, kept)
    (function,) = found.graph.functions
    assert isinstance(function, CustomFunction)
    assert (function.kept, function.why_not) == (False, why)
    assert not any(name.startswith("function::") for name in computed(found))


def test_sizes_stay_open() -> None:
    batch = torch.export.Dim("batch", min=2, max=16)
    found = captured(lambda net, x: Straight.apply(x), "Straight", dynamic_shapes={"x": {0: batch}})
    (op,) = [op for op in found.graph.ops if op.op == "function::Straight"]
    assert op.outputs[0].shape == ("batch", 4)


def test_literals_still_follow_the_example() -> None:
    """The capture in fp64 that tells them has the same kept call."""
    way = lambda net, x: Straight.apply(x).clamp(min=torch.finfo(x.dtype).min)  # noqa: E731
    found = captured(way, "Straight")
    assert [op.op for op in found.graph.ops if op.follows] == ["clamp"]
    assert not found.graph.notes


def test_what_is_given_back_unchanged_is_another_value() -> None:
    """Readers of the input do not become readers of the function's result."""

    class Same(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * 5

    def way(net: Net, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = Same.apply(x)
        return x * y

    (product,) = [op for op in captured(way, "Same").graph.ops if op.op == "mul"]
    assert {operand.value for operand in product.operands} == {"fc/linear#0", "/function::Same#0"}
