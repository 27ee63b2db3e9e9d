"""TF32: the rounding against arithmetic, the emulation against products in fp64, and where it says nothing."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from precision_audit import policy as policies
from precision_audit.analyse.flags import CONV, MATMUL, RNN
from precision_audit.analyse.tf32 import rounded, tf32
from precision_audit.capture import capture, private_copy
from precision_audit.hardware import device
from precision_audit.records import Tf32

EVERYTHING = ((MATMUL, "tf32"), (CONV, "tf32"), (RNN, "tf32"))

# rounding -------------------------------------------------------------------------------------------------------------


def by_arithmetic(value: float) -> float:
    """The nearest multiple of the last place that 11 bits leave, ties away from zero; 2^-136 is the smallest place."""
    if value == 0 or not math.isfinite(value):
        return value
    place = max(math.frexp(value)[1] - 11, -136)
    whole = math.floor(math.ldexp(abs(value), -place) + 0.5)  # exact in fp64: 24 bits and a half
    made = math.ldexp(whole, place)
    return math.copysign(made if made < 2.0**128 else math.inf, value)


def fp32(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def same(one: float, other: float) -> bool:
    alike = math.isnan(one) and math.isnan(other)
    return alike or (one == other and math.copysign(1, one) == math.copysign(1, other))


@settings(max_examples=500, deadline=None)
@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=64))
@example([0x00000000, 0x80000000, 0x00000001, 0x00000FFF, 0x00001000, 0x80001000, 0x007FFFFF, 0x00800000])
@example([0x7F7FFFFF, 0xFF7FFFFF, 0x7F7FEFFF, 0x7F7FF000, 0x7F7FE000, 0x7F800000, 0xFF800000])
@example([0x7FC00000, 0x7F800001, 0xFFFFFFFF, 0x7FFFFFFF])
@example([0x3F800FFF, 0x3F801000, 0x3F801001, 0x3F803000, 0xBF801000])
def test_rounding_is_that_of_arithmetic(patterns: list[int]) -> None:
    values = torch.tensor([fp32(each) for each in patterns], dtype=torch.float64)
    given_ = torch.tensor([each - 2**32 if each >= 2**31 else each for each in patterns], dtype=torch.int32)
    made = rounded(given_.view(torch.float32)).tolist()
    assert all(same(by_arithmetic(one), other) for one, other in zip(values.tolist(), made, strict=True))
    again = rounded(torch.tensor(made))
    assert all(same(one, other) for one, other in zip(again.tolist(), made, strict=True))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1 + 2.0**-11, 1 + 2.0**-10),  # halfway: away from zero, where even would stay at 1
        (-(1 + 2.0**-11), -(1 + 2.0**-10)),
        (1 + 3 * 2.0**-11, 1 + 2.0**-9),
        (2 - 2.0**-11, 2.0),  # a carry into the exponent
        (2049.0, 2050.0),
        (2.0**-137, 2.0**-136),
        (2.0**-138, 0.0),
        (2.0**-126 - 2.0**-149, 2.0**-126),  # the largest subnormal of fp32 becomes normal
        ((2 - 2.0**-10) * 2.0**127, (2 - 2.0**-10) * 2.0**127),
        ((2 - 2.0**-23) * 2.0**127, math.inf),
    ],
)
def test_known_roundings(value: float, expected: float) -> None:
    assert rounded(torch.tensor([value])).item() == expected


def test_rounding_keeps_the_layout_and_the_operand() -> None:
    value = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    before = value.clone()
    assert rounded(value).stride() == value.stride() and torch.equal(value, before)
    assert torch.equal(rounded(value[:, :1].expand(2, 3, 4, 5)), rounded(value[:, :1]).expand(2, 3, 4, 5))


# emulation ------------------------------------------------------------------------------------------------------------


class Call(nn.Module):
    """A product of its inputs."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Tensor:
        return self.function(*args)


def emulated(
    model: nn.Module,
    args: tuple[Any, ...],
    on: str = "a100",
    text: str = "fp32",
    process: tuple[tuple[str, str], ...] = EVERYTHING,
) -> tuple[Tf32, ...]:
    made = policies.parse(text, "mine.yaml") if "\n" in text else policies.load(text)
    captured = capture(private_copy(model), args, mode=made.mode)
    return tf32(captured, made, device(on), (args, {}), process)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


# function, its inputs, which of them are factors
PRODUCTS: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...], tuple[int, ...]]] = {
    "linear": (F.linear, ((8, 32), (16, 32), (16,)), (0, 1)),
    "matmul": (torch.matmul, ((3, 8, 32), (32, 16)), (0, 1)),
    "mm": (torch.mm, ((8, 32), (32, 16)), (0, 1)),
    "bmm": (torch.bmm, ((3, 8, 32), (3, 32, 16)), (0, 1)),
    "addmm": (lambda c, a, b: torch.addmm(c, a, b, beta=2, alpha=0.5), ((8, 16), (8, 32), (32, 16)), (1, 2)),
    "baddbmm": (torch.baddbmm, ((3, 8, 16), (3, 8, 32), (3, 32, 16)), (1, 2)),
    "addbmm": (torch.addbmm, ((8, 16), (3, 8, 32), (3, 32, 16)), (1, 2)),
    "einsum": (lambda a, b: torch.einsum("bik,jk->bij", a, b), ((3, 8, 32), (16, 32)), (0, 1)),
    "tensordot": (lambda a, b: torch.tensordot(a, b, dims=1), ((8, 32), (32, 16)), (0, 1)),
    "conv1d": (F.conv1d, ((2, 4, 20), (8, 4, 3), (8,)), (0, 1)),
    "conv2d, same": (lambda x, w: F.conv2d(x, w, padding="same"), ((2, 4, 9, 9), (8, 4, 3, 3)), (0, 1)),
    "conv2d, groups": (lambda x, w: F.conv2d(x, w, groups=2), ((2, 4, 9, 9), (8, 2, 3, 3)), (0, 1)),
    "conv3d": (F.conv3d, ((2, 4, 5, 5, 5), (8, 4, 3, 3, 3)), (0, 1)),
    "conv_transpose2d": (F.conv_transpose2d, ((2, 4, 9, 9), (4, 8, 3, 3)), (0, 1)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_an_op_is_off_by_what_rounding_its_factors_makes(name: str) -> None:
    function, shapes, factors = PRODUCTS[name]
    args = tuple(normal(*shape) for shape in shapes)
    exact = function(*(each.double() for each in args))
    coarse = function(
        *(each.double().apply_(by_arithmetic) if index in factors else each.double() for index, each in enumerate(args))
    )
    error = float((coarse - exact).norm() / exact.norm())
    assert 1e-5 < error < 1e-3  # of 2^-11
    (found,) = emulated(Call(function), args)
    assert found.kind == ("conv" if name.startswith("conv") else "matmul")
    assert [value for _, value in found.ops] == [pytest.approx(error, rel=1e-2)]
    assert found.output == pytest.approx(error, rel=1e-2)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (torch.matmul, ((8, 32), (32,))),
        (lambda a, b: torch.einsum("i,j->ij", a, b), ((8,), (8,))),
        (torch.outer, ((8,), (8,))),
        (lambda x, w: F.conv2d(x, w, groups=4), ((2, 4, 9, 9), (8, 1, 3, 3))),
        (F.scaled_dot_product_attention, ((2, 4, 8, 16), (2, 4, 8, 16), (2, 4, 8, 16))),
        (torch.mul, ((8, 8), (8, 8))),
    ],
)
def test_what_cuda_does_not_run_in_tf32_is_left_alone(
    function: Callable[..., Tensor], shapes: tuple[tuple[int, ...], ...]
) -> None:
    assert emulated(Call(function), tuple(normal(*shape) for shape in shapes)) == ()


@pytest.mark.parametrize("name", ["v100", "t4", "mi300x", "cpu-amx", "local"])
def test_devices_without_tf32(name: str) -> None:
    assert emulated(nn.Linear(32, 8), (normal(4, 32),), on=name) == ()


@pytest.mark.parametrize("name", ["a100", "l40s", "h100", "h200", "b200"])
def test_devices_with_tf32(name: str) -> None:
    assert [each.kind for each in emulated(nn.Linear(32, 8), (normal(4, 32),), on=name)] == ["matmul"]


@pytest.mark.parametrize(
    ("text", "process", "kinds"),
    [
        ("fp32", EVERYTHING, ["conv", "matmul"]),
        ("fp32", EVERYTHING[:1], ["matmul"]),
        ("fp32", (), []),
        ("bf16-inference", EVERYTHING, []),  # both run in bf16
        (f"name: mine\nextends: fp32\nenvironment: {{{MATMUL}: ieee}}\n", EVERYTHING, ["conv"]),
        ("name: mine\nextends: bf16-inference\nrules:\n  - {name: it, op: linear, class: keep-fp32}\n",
         EVERYTHING, ["matmul"]),
    ],
)  # fmt: skip
def test_only_what_stays_in_fp32_under_the_settings(
    text: str, process: tuple[tuple[str, str], ...], kinds: list[str]
) -> None:
    model = nn.Sequential(nn.Conv1d(4, 8, 3), nn.Flatten(), nn.Linear(80, 5))
    found = emulated(model, (normal(2, 4, 12),), text=text, process=process)
    assert [each.kind for each in found] == kinds


def exact(module: nn.Module) -> nn.Module:
    """With weights that TF32 holds."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randint(-4, 5, parameter.shape, generator=generator) / 16)
    return module


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.recurrent = kind(8, 6, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.recurrent(x)[0]
        return made


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_ops_multiply_inputs_weights_and_states_and_no_bias(kind: type[nn.RNNBase]) -> None:
    """One step from a state of zeros with weights and inputs that TF32 holds is exact; a second one has a state."""
    model = exact(Recurrent(kind))
    steps = torch.randint(-3, 4, (2, 2, 8), generator=torch.Generator().manual_seed(1)) / 4
    between = 2.0**-13  # lost if it were rounded
    with torch.no_grad():
        model.get_parameter("recurrent.bias_ih_l0").add_(between)
    (one,) = emulated(model, (steps[:, :1],))
    assert one.kind == "rnn" and one.output < 5e-7  # of fp32
    (two,) = emulated(model, (steps,))
    assert 2e-6 < two.output < 1e-2 and two.ops[0][1] == pytest.approx(two.output)
    with torch.no_grad():
        model.get_parameter("recurrent.weight_ih_l0").add_(between)
    (changed,) = emulated(model, (steps[:, :1],))
    assert 1e-5 < changed.output < 1e-2


class Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(8, 6)

    def forward(self, x: Tensor, hidden: Tensor, state: Tensor) -> Tensor:
        made: Tensor = self.cell(x, (hidden, state))[1]
        return made


def test_a_cell_multiplies_its_hidden_state_and_not_its_memory() -> None:
    """Written out: products of cuBLAS, under the setting of products."""
    model, x, ones = exact(Cells()), torch.ones(2, 8), torch.ones(2, 6)
    between = 1 + 2.0**-13
    (found,) = emulated(model, (x, ones, between * ones))
    assert found.kind == "matmul" and found.output == 0.0
    (found,) = emulated(model, (x, between * ones, ones))
    assert found.output > 0


def test_random_draws_and_statistics_are_the_same_in_every_run() -> None:
    """In training mode: dropout by half is exact, batch statistics are read and written."""
    model = exact(nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5), nn.BatchNorm1d(16), nn.Dropout(0.5)))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    (found,) = emulated(model, (torch.randint(-3, 4, (8, 16)) / 4,))
    assert found.output == 0.0 and found.ops == (("0/linear#0", 0.0),)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_errors_of_several_ops_add_up() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64))
    (found,) = emulated(model, (normal(32, 64),))
    assert [key for key, _ in found.ops] == ["0/linear#0", "1/linear#0", "2/linear#0"]
    apart = math.hypot(*(error for _, error in found.ops))  # of independent errors
    assert 0.7 * apart < found.output < 1.4 * apart


def test_what_overflows_in_tf32_is_infinitely_far_off() -> None:
    (found,) = emulated(nn.Linear(1, 1, bias=False), (torch.full((1, 1), torch.finfo(torch.float32).max),))
    assert found.output == math.inf


def test_an_empty_batch_is_off_by_nothing() -> None:
    assert [each.output for each in emulated(Call(torch.mm), (torch.ones(0, 4), torch.ones(4, 3)))] == [0.0]
