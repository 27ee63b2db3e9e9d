"""Numbers of quantisation worked out by hand, and laws that hold for every scheme."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_audit import quantise
from precision_audit.formats import FORMATS
from precision_audit.quantise import Operand
from precision_audit.records import InputError

SCHEMES = tuple(quantise.SCHEMES)
OPERANDS: tuple[Operand, ...] = ("input", "weight", "gradient")


def row(*numbers: float, size: int = 32) -> torch.Tensor:
    return torch.tensor([[*numbers, *[0.0] * (size - len(numbers))]])


@pytest.mark.parametrize(
    ("scheme", "operand", "mode", "numbers", "expected"),
    [
        # scale 448/7 = 64: 1 -> 64, 0.01 -> 0.64 -> 0.625, 1e-5 -> 6.4e-4 below half of 2^-9 -> 0
        ("fp8_tensorwise", "input", "rceil", (7.0, 1.0, 0.01, 1e-5), (7.0, 1.0, 0.625 / 64, 0.0)),
        # a gradient is e5m2, two mantissa bits: scale 57344/7 = 8192; 1.1 -> 9011.2 -> 8192 (step 2048) -> 1
        ("fp8_tensorwise", "gradient", "rceil", (7.0, 1.1), (7.0, 1.0)),
        # rowwise rounds 448/5 = 89.6 down to 64: 5 -> 320 exactly; 1.03 -> 65.92 -> 64 (step 8)
        ("fp8_rowwise", "input", "rceil", (5.0, 1.03), (5.0, 1.0)),
        # RCEIL: 500/448 -> the power of two above, 2: 500/2 = 250 -> 256 -> 512 (step 16 in 128..256, 32 beyond)
        ("mxfp8_e4m3", "input", "rceil", (500.0, 3.0), (512.0, 3.0)),
        # FLOOR: 500 lies in 2^8..2^9, over e4m3's 2^8: scale 1, so 500 saturates at 448
        ("mxfp8_e4m3", "input", "floor", (500.0, 3.0), (448.0, 3.0)),
        # RCEIL: 7/6 -> 2: 3.5 -> ties to even 4 -> 8; 1 -> 0.5 -> 1; 0.4 -> 0.2 -> 0
        ("mxfp4", "input", "rceil", (7.0, 1.0, 0.4), (8.0, 1.0, 0.0)),
        # FLOOR: 7 in 4..8 over 4: scale 1: 7 saturates at 6; 0.4 -> 0.5
        ("mxfp4", "input", "floor", (7.0, 1.0, 0.4), (6.0, 1.0, 0.5)),
        # 12.75/127.5 = 0.1 a step: 1.234 -> 12 steps; -12.75 -> -127.5 -> ties to even -128
        ("int8", "input", "rceil", (-12.75, 1.234), (-12.8, 1.2)),
    ],
)
def test_by_hand(scheme: str, operand: str, mode: str, numbers: tuple[float, ...], expected: tuple[float, ...]) -> None:
    made = quantise.quantised(row(*numbers), scheme, operand, mode)
    assert made[0, : len(expected)].tolist() == pytest.approx(expected, rel=1e-6)
    assert not made[0, len(expected) :].any()


def test_nvfp4_by_hand() -> None:
    """Blocks of 16 with amax 6 and 0.3: the first has the scale 448 of the tensor's 6/2688, the second 0.05/(6/2688) =
    22.4 -> 22, so its steps are of 22 · 6/2688 = 0.0491."""
    made = quantise.quantised(row(*[6.0] * 16, 0.3, 0.05), "nvfp4")
    assert made[0, 0].item() == pytest.approx(6.0)
    assert made[0, 16].item() == pytest.approx(6 * 22 * 6 / 2688)
    assert made[0, 17].item() == pytest.approx(1 * 22 * 6 / 2688)


def test_groups_share_a_scale_and_others_do_not() -> None:
    """A huge number flushes what shares its scale: the tensor, the row, the block."""
    x = torch.full((256, 256), 1e-3)
    x[3, 5] = 6e4
    small = {scheme: quantise.quantised(x, scheme) == 0 for scheme in SCHEMES}
    assert small["fp8_tensorwise"].sum() == 256 * 256 - 1
    assert small["fp8_rowwise"].sum() == 255 and small["fp8_rowwise"][3].sum() == 255
    assert small["fp8_blockwise_128"].sum() == 127 and small["fp8_blockwise_128"][3, :128].sum() == 127
    assert small["mxfp8_e4m3"].sum() == small["mxfp4"].sum() == 31
    weight = quantise.quantised(x, "fp8_blockwise_128", "weight") == 0
    assert weight.sum() == 128 * 128 - 1 and weight[:128, :128].sum() == 128 * 128 - 1


@settings(max_examples=80, deadline=None)
@given(
    shape=st.lists(st.integers(0, 5) | st.sampled_from([16, 31, 33, 129, 130]), min_size=1, max_size=3),
    scheme=st.sampled_from(SCHEMES),
    operand=st.sampled_from(OPERANDS),
    seed=st.integers(0, 9),
)
def test_any_shape_keeps_its_shape_and_is_near(shape: list[int], scheme: str, operand: Operand, seed: int) -> None:
    """Ragged, empty and one-dimensional: no element is off by more than half a step at its group's amax."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    made = quantise.quantised(x, scheme, operand)
    assert made.shape == x.shape and made.dtype == x.dtype
    if x.numel():
        element = FORMATS[quantise.SCHEMES[scheme].format_of(operand)]
        coarse = 0.5001 / 127.5 if element.name == "int8" else 2 * (element.unit_roundoff or 0.0)
        assert float((made - x).abs().max()) <= coarse * float(x.abs().max())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_group_beside_padding_is_what_it_is_alone(scheme: str) -> None:
    x = torch.randn(130, 200, generator=torch.Generator().manual_seed(1))
    padded = torch.nn.functional.pad(x, (0, 56, 0, 126))
    for operand in OPERANDS[:2]:
        whole = quantise.quantised(padded, scheme, operand)
        assert torch.equal(quantise.quantised(x, scheme, operand), whole[:130, :200])
        assert not whole[130:].any() and not whole[:, 200:].any()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_zeros_and_the_lost(scheme: str) -> None:
    zeros = quantise.quantised(torch.zeros(4, 64), scheme)
    assert torch.isnan(zeros).all() if scheme == "nvfp4" else torch.equal(zeros, torch.zeros(4, 64))
    x = torch.ones(4, 256)
    x[1, 3] = math.nan
    lost = torch.isnan(quantise.quantised(x, scheme))
    spoiled = {"fp8_tensorwise": 1024, "nvfp4": 1024, "fp8_rowwise": 256, "int8": 256, "fp8_blockwise_128": 128}
    assert lost.sum() == spoiled.get(scheme, 32) and lost[1, 3]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_quantising_twice_changes_nothing_more(scheme: str) -> None:
    """Where scales are powers of two: what is restored has the same one. Otherwise amax and steps move by a little."""
    x = torch.randn(64, 128, generator=torch.Generator().manual_seed(2))
    once = quantise.quantised(x, scheme)
    if quantise.SCHEMES[scheme].scale in ("power of two", "e8m0"):
        assert torch.equal(quantise.quantised(once, scheme), once)
    else:
        assert float((quantise.quantised(once, scheme) - once).norm() / once.norm()) < 0.02


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_product_is_torchaos_emulated_linear(recipe: str, name: str) -> None:
    pytest.importorskip("torchao")
    import dataclasses

    from torchao.float8 import Float8LinearConfig
    from torchao.float8.float8_linear import Float8Linear

    torch.manual_seed(0)
    linear = torch.nn.Linear(64, 48).to(getattr(torch, name))
    config = dataclasses.replace(Float8LinearConfig.from_recipe_name(recipe), emulate=True)
    x = torch.randn(2, 16, 64).to(getattr(torch, name))
    with torch.no_grad():
        expected = Float8Linear.from_float(linear, config)(x)
        made = quantise.product(x, linear.weight, linear.bias, f"fp8_{recipe}")
    assert torch.equal(made, expected)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: quantise.quantised(torch.ones(4), "fp8_rowise"), "did you mean 'fp8_rowwise'"),
        (lambda: quantise.quantised(torch.ones(4).int(), "int8"), "a tensor in int32; expected fp32"),
        (lambda: quantise.quantised(torch.ones(4).to(torch.float8_e4m3fn), "int8"), "fp8_e4m3fn; expected fp32"),
        (lambda: quantise.quantised(torch.tensor(1.0), "int8"), "without axes"),
        (lambda: quantise.quantised(torch.ones(4), "int8", "output"), "operand 'output'; expected input"),  # type: ignore[arg-type]
        (lambda: quantise.quantised(torch.ones(4), "mxfp4", "input", "even"), "expected rceil or floor"),  # type: ignore[arg-type]
    ],
)
def test_bad_input_is_told_in_one_line(call: object, text: str) -> None:
    with pytest.raises(InputError, match=text) as raised:
        call()  # type: ignore[operator]
    assert "\n" not in str(raised.value)


def test_schemes_are_block_formats_and_recipes_name_them() -> None:
    from precision_audit.recipes import RECIPES

    for name, scheme in quantise.SCHEMES.items():
        assert scheme.name == name and name in FORMATS and scheme.element in FORMATS and scheme.gradient in FORMATS
        assert FORMATS[name].element in ("", scheme.element)
    assert {row.scheme for row in RECIPES.values()} <= set(quantise.SCHEMES)


def test_nothing_is_imported_but_torch() -> None:
    code = (
        "import sys; from precision_audit import quantise; assert 'torch' not in sys.modules; import torch;"
        "quantise.quantised(torch.ones(4, 32), 'nvfp4'); assert 'torchao' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
