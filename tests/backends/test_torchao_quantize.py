"""quantize_ for inference: which sizes are taken, and that real and emulated modules compute what torchao computes."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn

import precision_audit as pa
from precision_audit import saving
from precision_audit.backends import _quantised_linear as quantised
from precision_audit.backends.torchao_quantize import KINDS, NAME, RECIPES, build, match_device, offer, runs_on_cpu
from precision_audit.hardware import device
from precision_audit.policy import parse
from precision_audit.recipes import recipe as row_of
from precision_audit.records import InputError, Refusal, Swap
from tests.backends.graphs import entering, graph, linear, other, sized, state

H100, B200 = device("h100"), device("b200")
EMULATED = tuple(name for name in RECIPES if not runs_on_cpu(name))


def swap_for(recipe: str) -> Swap:
    return Swap("fc/linear#0", "fc", NAME, recipe, 64, 48, 32)


# offer ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "shape", "words"),
    [
        ("float8dq-row", (64, 48, 1), ""),
        ("float8dq-row", (56, 48, 1), "K=56 is not a multiple of 16"),
        ("float8dq-tensor", (64, 15, 1), "N=15 is not a multiple of 16"),
        ("float8dq-row", (712, 15, 1), "K=712 is not a multiple of 16; N=15 is not a multiple of 16"),
        ("float8wo", (7, 5, 3), ""),
        ("int8wo", (7, 5, 3), ""),
        ("int8dq", (24, 40, 3), ""),
        ("int8dq", (20, 40, 3), "K=20 is not a multiple of 8"),
        ("mxfp8", (48, 48, 32), "K=48 is not a multiple of 32"),
        ("mxfp4", (64, 40, 32), "N=40 is not a multiple of 16"),
        ("nvfp4", (48, 48, 32), "K=48 is not a multiple of 32"),
        ("nvfp4", (64, 48, 1), ""),
        ("int8wo", (1, 48, 1), "K=1: torchao takes"),
        ("float8wo", (1, 1, 1), "K=1: torchao takes"),
        ("int8wo", (2, 1, 1), ""),
        ("int8wo", (0, 48, 1), "K=0, N=48: a weight without elements"),
        ("mxfp4", (32, 0, 1), "K=32, N=0: a weight without elements"),
    ],
)
def test_sizes_decide_and_are_named(recipe: str, shape: tuple[int, int, int], words: str) -> None:
    k, n, m = shape
    op, records = sized(k, n, (m,), (m,))
    found = offer(op, records, recipe, "inference", B200)
    if words:
        assert isinstance(found, Refusal) and words in found.reason and found.backend == NAME
    else:
        kind = KINDS[row_of(NAME, recipe).scheme]
        assert found == Swap("fc/linear#0", "fc", NAME, recipe, k, n, m, kind=kind)


@pytest.mark.parametrize(("k", "n"), [(k, n) for k in (16, 32, 48, 64) for n in (8, 16, 24, 32)])
@pytest.mark.parametrize("recipe", ["float8dq-row", "mxfp8", "mxfp4", "nvfp4"])
def test_sizes_are_those_of_the_kernel(recipe: str, k: int, n: int) -> None:
    """torch's meta kernel has the rules of CUDA's. mx wants whole blocks of 32 besides, which torchao checks."""
    halves = "fp4" in recipe
    element = torch.float4_e2m1fn_x2 if halves else torch.float8_e4m3fn

    def made(rows: int) -> torch.Tensor:
        return torch.empty(rows, k // 2 if halves else k, dtype=torch.uint8, device="meta").view(element)

    block = 16 if recipe == "nvfp4" else 32
    format_ = torch.float8_e4m3fn if recipe == "nvfp4" else torch.float8_e8m0fnu
    blocked = 128 * math.ceil(math.ceil(k / block) / 4) * 4
    if recipe == "float8dq-row":
        scales = [torch.empty(32, 1, device="meta"), torch.empty(1, n, device="meta")]
    else:
        scales = [torch.empty(blocked, dtype=format_, device="meta") for _ in range(2)]
    try:
        torch._scaled_mm(made(32), made(n).t(), *scales, out_dtype=torch.bfloat16)
        takes = not recipe.startswith("mx") or k % 32 == 0
    except (RuntimeError, ValueError):
        takes = False
    op, records = sized(k, n)
    assert isinstance(offer(op, records, recipe, "inference", B200), Swap) is takes


ODD = (0, 1, 2, 3, 8, 15, 16, 17, 32, 33, 128)


@pytest.mark.parametrize("recipe", RECIPES)
def test_what_is_offered_can_be_built_and_run(recipe: str) -> None:
    """Every odd size, with bias and without, of every format, on several rows, one and none."""
    torch.manual_seed(0)
    offered = [
        (k, n) for k in ODD for n in ODD if isinstance(offer(*sized(k, n, (3,), (3,)), recipe, "inference", B200), Swap)
    ]
    assert (128, 128) in offered and all(k and n for k, n in offered)
    dtypes = (torch.bfloat16, torch.float16, torch.float32)
    for index, (k, n) in enumerate(offered):
        dtype, bias = dtypes[index % 3], bool(index // 3 % 2)
        made = nn.Linear(k, n, bias, dtype=dtype)
        swapped = build(made, swap_for(recipe))
        for rows in (3, 1, 0):
            x = torch.randn(rows, 1, k, dtype=dtype)
            found, expected = swapped(x), made(x)
            assert (found.shape, found.dtype) == (expected.shape, dtype)
            size = x.float().abs() @ made.weight.float().abs().t() + 1.0  # of the terms: a sum may cancel
            assert ((found - expected).abs() <= 0.35 * size).all()


def test_training_is_refused_by_the_policy_and_by_the_offer() -> None:
    op, records = sized()
    found = offer(op, records, "float8dq-row", "training", H100)
    assert isinstance(found, Refusal) and "for inference" in found.reason
    text = POLICY.format(recipe="float8dq-row", device="h100").replace("inference", "training")
    with pytest.raises(InputError, match=r"rule 'linears': float8dq-row quantises for inference, not training"):
        parse(text)


def test_what_is_changed_in_place_without_autograd_is_no_obstacle() -> None:
    op = linear(bias="")
    changed = other("/relu#0", op.key, mutates="self")
    ops = (entering((16, 64), (16, 64)), state("fc.weight", (48, 64)), op, changed)
    records = graph(*ops, aliases=((op.key, changed.key),))
    assert isinstance(offer(op, records, "float8dq-row", "inference", H100), Swap)


# build ----------------------------------------------------------------------------------------------------------------


def plain(bias: bool = True, k: int = 64, n: int = 48) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(k, n, bias=bias)


def torchaos_own(made: nn.Linear, recipe: str) -> nn.Linear:
    """The linear in bf16 with the weight that torchao's configuration gives it, past its check of the device."""
    from torchao import quantization
    from torchao.prototype.mx_formats.inference_workflow import MXDynamicActivationMXWeightConfig
    from torchao.quantization.quantize_.common import KernelPreference

    low = copy.deepcopy(made).to(torch.bfloat16)
    if recipe.startswith("float8dq"):
        from torchao.quantization.quantize_.workflows.float8.float8_tensor import (
            Float8Tensor,
            QuantizeTensorToFloat8Kwargs,
        )

        granularity = quantization.PerRow() if recipe == "float8dq-row" else quantization.PerTensor()
        told = QuantizeTensorToFloat8Kwargs(torch.float8_e4m3fn, granularity)
        weight = Float8Tensor.from_hp(
            low.weight.detach(),
            granularity=granularity,
            mm_config=quantization.Float8MMConfig(use_fast_accum=True),
            act_quant_kwargs=told,
        )
        low.weight = nn.Parameter(weight, requires_grad=False)
        return low
    element = torch.float8_e4m3fn if recipe == "mxfp8" else torch.float4_e2m1fn_x2
    config = {
        "float8wo": lambda: quantization.Float8WeightOnlyConfig(set_inductor_config=False),
        "int8wo": lambda: quantization.Int8WeightOnlyConfig(set_inductor_config=False),
        "int8dq": lambda: quantization.Int8DynamicActivationInt8WeightConfig(set_inductor_config=False),
    }.get(
        recipe,
        lambda: MXDynamicActivationMXWeightConfig(
            activation_dtype=element, weight_dtype=element, kernel_preference=KernelPreference.EMULATED
        ),
    )()
    quantization.quantize_(low, config)
    return low


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("recipe", [name for name in RECIPES if name != "nvfp4"])
def test_computes_what_torchao_computes(recipe: str, bias: bool) -> None:
    """float8dq: torch's CPU kernel over torchao's tensors. Sums of 64 products and a bias, once rounded to bf16: at
    most one rounding, 2^-8, apart where the bias is added before or after. mx: torchao's emulation rounds the factors
    to bf16 first, which holds them exactly, and sums as this does."""
    made = plain(bias)
    x = torch.randn(32, 64, dtype=torch.bfloat16)
    found, expected = build(made, swap_for(recipe))(x), torchaos_own(made, recipe)(x)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected.float(), rtol=2**-7, atol=2**-8 * expected.abs().max().item())
    if not bias or runs_on_cpu(recipe):
        assert torch.equal(found, expected)


def test_nvfp4_weights_are_torchaos_and_inputs_quantised_as_weights_are() -> None:
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale

    def rounded(value: torch.Tensor) -> torch.Tensor:
        scale = per_tensor_amax_to_scale(value.abs().max())
        return NVFP4Tensor.to_nvfp4(value, per_tensor_scale=scale).dequantize(torch.float32)

    made, x = plain(bias=False), torch.randn(32, 64, dtype=torch.bfloat16)
    expected = (rounded(x) @ rounded(made.weight.detach().to(torch.bfloat16)).t()).to(torch.bfloat16)
    assert torch.equal(build(made, swap_for("nvfp4"))(x), expected)


@pytest.mark.parametrize("recipe", RECIPES)
def test_real_where_a_cpu_has_it_and_emulated_over_the_same_parameter_elsewhere(recipe: str) -> None:
    made = plain()
    built: Any = build(made, swap_for(recipe))
    assert built.bias is made.bias and list(built.state_dict()) == list(made.state_dict())
    assert built.emulated is (recipe in EMULATED) and ("emulated" in repr(built)) is built.emulated
    if built.emulated:
        assert built.weight is made.weight
    else:
        assert type(built.weight).__name__ == KINDS[row_of(NAME, recipe).scheme]
    assert match_device(nn.Sequential(built)) == 0  # it is what its device allows already


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("format", [torch.float32, torch.float16, torch.bfloat16])
def test_the_output_has_the_format_and_the_shape_of_the_input(recipe: str, format: torch.dtype) -> None:
    built = build(plain(), swap_for(recipe))
    for lead in ((3,), (2, 3), (1, 2, 3), ()):
        found = built(torch.randn(*lead, 64, dtype=format))
        assert found.shape == (*lead, 48) and found.dtype == format


@pytest.mark.parametrize("recipe", [name for name in RECIPES if name != "nvfp4"])
def test_rows_and_weights_of_zeros_give_the_bias_and_no_nan(recipe: str) -> None:
    """0 / 0 in torchao's float8dq: padded tokens, pruned outputs."""
    made = plain()
    with torch.no_grad():
        made.weight[5] = 0
    x = torch.randn(4, 64)
    x[2] = 0
    found = build(made, swap_for(recipe))(x)
    bias = made.bias.detach().to(torch.bfloat16).float()
    torch.testing.assert_close(found[2], bias)
    torch.testing.assert_close(found[:, 5], bias[5].expand(4))


def test_a_stored_weight_of_zeros_is_mended_as_the_emulated_one_is() -> None:
    """What a GPU would hold: torchao's tensor with a scale of zero."""
    from torchao.quantization import PerRow
    from torchao.quantization.quantize_.workflows import Float8Tensor

    weight = torch.randn(4, 16, dtype=torch.bfloat16)
    weight[1] = 0
    held = Float8Tensor.from_hp(weight, granularity=PerRow())
    assert held.dequantize()[1].isnan().all()
    mended = quantised._without_division_by_zero(nn.Parameter(held, requires_grad=False)).dequantize()
    assert torch.equal(mended[1], torch.zeros_like(weight[1])) and mended.isfinite().all()


def test_quantising_leaves_the_process_as_it_was() -> None:
    import torch._inductor.config as inductor

    before = (torch.get_float32_matmul_precision(), inductor.coordinate_descent_tuning, inductor.epilogue_fusion)
    for recipe in RECIPES:
        build(plain(), swap_for(recipe))
    assert before == (
        torch.get_float32_matmul_precision(),
        inductor.coordinate_descent_tuning,
        inductor.epilogue_fusion,
    )


def test_a_layer_that_torchao_leaves_alone_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its float8dq returns the weight unchanged where a size does not fit."""
    monkeypatch.setattr("torchao.quantization.quantize_", lambda model, config: None)
    with pytest.raises(InputError, match="torchao left a linear 64 -> 48 unquantised under int8wo"):
        build(plain(), swap_for("int8wo"))


def test_build_refuses_what_a_swap_would_lose() -> None:
    class Scaled(nn.Linear):
        pass

    hooked = plain()
    hooked.register_forward_hook(lambda module, inputs, output: output * 2)
    with pytest.raises(InputError, match=r"not exactly nn\.Linear"):
        build(Scaled(64, 48), swap_for("int8wo"))
    with pytest.raises(InputError, match="fc has hooks"):
        build(hooked, swap_for("int8wo"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("recipe", ["float8dq-row", "float8dq-tensor", "float8wo", "int8wo", "int8dq"])
def test_on_a_gpu_the_weight_is_quantised_and_the_product_near_the_emulated_one(recipe: str) -> None:
    built: Any = build(plain(k=256, n=512), swap_for(recipe))
    x = torch.randn(32, 256)
    emulated = built(x)
    built.cuda()
    match_device(nn.Sequential(built))
    assert not built.emulated
    error = (built(x.cuda()).cpu() - emulated).norm() / emulated.norm()
    assert error < 1e-2


# a whole model --------------------------------------------------------------------------------------------------------

POLICY = """\
name: quantised
mode: inference
device: {device}
formats: {{high: fp32, low: bf16}}
tolerances: {{relative_l2: 3.0e-1}}
rules:
  - {{name: linears, op: linear, class: fp8-eligible, backend: torchao_quantize, recipe: {recipe}}}
  - {{name: rest, class: safe-in-bf16}}
"""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.head = nn.Linear(64, 128), nn.Linear(128, 64, bias=False), nn.Linear(64, 15)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(x + self.down(torch.relu(self.up(x))))
        return y


def converted(recipe: str) -> Any:
    torch.manual_seed(0)
    made = parse(
        POLICY.format(recipe=recipe, device="h100" if row_of(NAME, recipe).peak in ("", "fp8", "int8") else "b200")
    )
    return pa.convert(Net(), (torch.randn(8, 64),), policy=made)


@pytest.mark.parametrize("recipe", RECIPES)
def test_convert_verifies_and_says_what_was_emulated(recipe: str) -> None:
    result = converted(recipe)
    weights_only = not row_of(NAME, recipe).activations
    assert [swap.module for swap in result.plan.swaps] == ["up", "down", *(["head"] if weights_only else [])]
    found = result.report.verification
    assert found.passed and not [each for each in result.report.findings if each.severity != "note"]
    assert found.emulated == (() if recipe not in EMULATED else ("fp8" if "float8" in recipe else recipe,))
    kind = result.plan.swaps[0].kind
    assert f"{kind}: {len(result.plan.swaps)} of 3 linears" in result.report.summary
    chosen = {each.op: each.chosen for each in result.report.decisions}
    assert chosen["up/linear#0"].endswith(f" {recipe}")


def test_the_shipped_policy() -> None:
    torch.manual_seed(0)
    x = torch.randn(8, 64)
    x[3] = 0  # a padded row
    result = pa.convert(Net(), (x,), policy="fp8-inference-hopper")
    assert [(swap.module, swap.recipe) for swap in result.plan.swaps] == [
        ("up", "float8dq-row"),
        ("down", "float8dq-row"),
    ]
    assert [(each.module, each.reason) for each in result.plan.refusals] == [("head", "N=15 is not a multiple of 16")]
    assert result.report.verification.passed and result.module(x).isfinite().all()


@pytest.mark.parametrize("recipe", ["float8dq-row", "int8wo"])
def test_a_model_that_is_quantised_already_is_refused(recipe: str) -> None:
    with pytest.raises(InputError, match=r"is a QuantisedLinear, .*: this model was swapped for fp8 before"):
        pa.convert(converted(recipe).module, (torch.randn(8, 64),), policy="fp8-inference-hopper")


@pytest.mark.parametrize("recipe", EMULATED)
def test_what_is_emulated_saves_and_loads_bit_for_bit(recipe: str, tmp_path: Any) -> None:
    result, x = converted(recipe), torch.randn(8, 64)
    saving.save(result.module, result.plan, tmp_path / "out", (x,))
    assert torch.equal(saving.load(tmp_path / "out", Net())(x), result.module(x))
    assert not (tmp_path / "out" / saving.quantised.FILE).exists()


@pytest.mark.parametrize("recipe", ["float8wo", "int8wo", "int8dq"])
def test_what_is_stored_quantised_saves_and_loads_bit_for_bit(recipe: str, tmp_path: Any) -> None:
    result, x = converted(recipe), torch.randn(8, 64)
    saving.save(result.module, result.plan, tmp_path / "out", (x,))
    assert torch.equal(saving.load(tmp_path / "out", Net())(x), result.module(x))
    saved = saving.quantised.names(tmp_path / "out" / saving.quantised.FILE)
    assert set(saved) == {f"{swap.module}.weight" for swap in result.plan.swaps}


def test_what_this_device_cannot_run_is_not_loaded_as_something_else(tmp_path: Any) -> None:
    """As if a GPU had stored what a CPU only emulates."""
    result, x = converted("int8wo"), torch.randn(8, 64)
    folder = saving.save(result.module, result.plan, tmp_path / "out", (x,))
    with pytest.raises(InputError, match=r"weight was stored quantised by another device, and cpu cannot run"):
        saving.quantised.restore(Net(), folder / saving.quantised.FILE)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(32, 64), nn.Linear(64, 32, bias=False)
        self.out.weight = self.table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.out(self.table(ids))
        return y


def test_a_tied_weight_that_is_stored_quantised_leaves_the_other_name_its_own(tmp_path: Any) -> None:
    torch.manual_seed(0)
    ids = torch.arange(32).reshape(2, 16)
    result = pa.convert(Tied(), (ids,), policy=parse(POLICY.format(recipe="int8wo", device="h100")))
    assert any("quantised here alone, so stored twice" in note for note in result.plan.swaps[0].notes)
    saving.save(result.module, result.plan, tmp_path / "out", (ids,))
    assert torch.equal(saving.load(tmp_path / "out", Tied())(ids), result.module(ids))
