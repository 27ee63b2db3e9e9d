"""What PA301 to PA308 and PA701 say: which rule, of which op, in which words; and that conversions mend it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import precision_audit as pa
from precision_audit import backends, hardware, policy
from precision_audit.analyse import analyse
from precision_audit.analyse.flags import CPU_MATMUL, FP16_SUMS, FP32_PRODUCTS, REDUCED_FP16
from precision_audit.capture import capture, private_copy
from precision_audit.decide import decide
from precision_audit.formats import dtype_of
from precision_audit.records import Finding
from tests import trap_models

OURS = ("PA301", "PA302", "PA303", "PA304", "PA305", "PA307", "PA308", "PA701")


def _told(model: nn.Module, args: Any, name: str, device: str = "local", **facts: Any) -> tuple[Finding, ...]:
    made = policy.parse(name, "mine.yaml") if "\n" in name else policy.load(name)
    captured = capture(private_copy(model.eval()), args, mode=made.mode)
    on = hardware.device(device)
    known = replace(analyse(captured, made, on, [(args, {})]), **facts)
    found = decide(captured.graph, made, on, backends.listed(), facts=known).findings
    return tuple(each for each in found if each.rule in OURS)


def _of(name: str) -> tuple[nn.Module, Any]:
    return trap_models.MODELS[name]()


@pytest.mark.parametrize(
    ("name", "way", "rule", "words"),
    [
        (
            "layer_norm, input upcast",
            "bf16-inference",
            "PA301",
            "input fp32, weight bf16, bias bf16 (the model's own to",
        ),
        ("float range into linear", "fp16-inference", "PA301", "arange() at line"),
        ("plain attribute into linear", "bf16-inference", "PA301", "kept is a plain attribute"),
        ("one-element tensor promotes", "bf16-inference", "PA301", "a tensor made in forward in the default format"),
        (
            "index_put into zeros like",
            "amp-cpu-bf16",
            "PA301",
            "torch.autocast(cpu, bf16) raises here: Index put requires",
        ),
        ("lerp with the input", "amp-cpu-bf16", "PA301", "torch.autocast(cpu, bf16) raises here"),
        ("lstm, state of zeros", "fp16-inference", "PA301", "hx fp32"),
        ("cdist", "bf16-inference", "PA302", "\"cdist\" not implemented for 'BFloat16'"),
        ("quantile", "fp16-inference", "PA302", "model.to(fp16) raises here"),
        ("fft", "bf16-inference", "PA302", "raises here"),
        ("view as complex", "bf16-inference", "PA303", "no complex numbers of bf16 parts"),
        ("polar", "bf16-inference", "PA303", "polar: no complex numbers of bf16 parts"),
        ("lstm, default state", "amp-cpu-fp16", "PA302", "primitive descriptor"),
    ],
)
def test_a_trap_is_told_by_its_rule(name: str, way: str, rule: str, words: str) -> None:
    model, args = _of(name)
    if name == "lstm, default state" and not _told(model, args, way):
        pytest.skip("this processor has an fp16 kernel for it")
    (finding, *others) = _told(model, args, way)
    assert finding.rule == rule and words in finding.message, finding.message
    assert finding.severity == "error" and finding.evidence.basis == "PROVED" and finding.remedy
    assert finding.source is not None and finding.source.file == trap_models.__file__
    assert {each.rule for each in others} <= {rule, "PA308"}


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("masked_fill with -1e9", "fp16-inference"),  # PA104's
        ("layer_norm, input upcast", "amp-cpu-bf16"),
        ("index_put into zeros like", "bf16-inference"),
        ("sinusoid into linear, cast", "bf16-inference"),
        ("cholesky, upcast", "bf16-inference"),
        ("view as complex, upcast", "bf16-inference"),
        ("layer_norm, input upcast", "fp32"),
    ],
)
def test_what_is_harmless_is_not_told(name: str, way: str) -> None:
    model, args = _of(name)
    assert _told(model, args, way) == ()


def test_a_kernel_that_only_the_table_knows_of_is_assumed() -> None:
    model, args = _of("cholesky")
    (finding,) = _told(model, args, "bf16-inference", "h100")
    assert (finding.severity, finding.evidence.basis) == ("warning", "ASSUMED")
    assert "no bf16 kernel is known on h100" in finding.message


class Filters(nn.Module):
    """A complex buffer, multiplied in the frequency domain."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("phases", torch.polar(torch.ones(5), torch.arange(5.0)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.fft.irfft(torch.fft.rfft(x.float()) * self.phases, n=8).type_as(x)
        return y


def test_a_complex_buffer_loses_its_imaginary_part() -> None:
    low = Filters().to(torch.bfloat16)
    assert not low.get_buffer("phases").is_complex()  # the truth that the rule tells
    told = [each for each in _told(Filters(), (torch.rand(2, 8),), "bf16-inference") if each.rule == "PA303"]
    assert any("phases: complex buffer" in each.message and each.severity == "warning" for each in told)


class Sampled(nn.Module):
    def forward(self, image: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return F.grid_sample(image, grid, align_corners=True)


@pytest.mark.parametrize(("height", "width", "wrong"), [(300, 300, True), (64, 1024, True), (128, 256, False)])
@pytest.mark.parametrize("low", ["bf16", "fp16"])
def test_grid_sample_is_condemned_where_pixels_outgrow_16_bits(height: int, width: int, wrong: bool, low: str) -> None:
    """An image of ones inside a grid of ones and less gives ones: anything beyond is garbage."""
    grid = F.affine_grid(torch.eye(2, 3)[None] * 0.9, [1, 1, height, width], align_corners=True)
    args = (torch.ones(1, 1, height, width), grid)
    image, low_grid = (each.to(dtype_of(low)) for each in args)
    result = F.grid_sample(image, low_grid, align_corners=True).float()
    assert bool(((result - 1).abs() > 0.1).any() or result.isnan().any()) is wrong
    told = [each for each in _told(Sampled(), args, f"{low}-inference") if each.rule == "PA304"]
    assert bool(told) is wrong
    assert _told(Sampled(), args, f"{low}-inference", "h100") == ()


def test_an_op_that_should_only_round_and_does_not() -> None:
    model, args = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (torch.rand(3, 4),)
    made = policy.load("bf16-inference")
    captured = capture(private_copy(model), args, mode="inference")
    facts = analyse(captured, made, hardware.device("local"), [(args, {})])
    wrong = tuple(replace(b, fresh=0.5) if b.value == "1/relu#0" else b for b in facts.beside)
    (finding,) = _told(model, args, "bf16-inference", beside=wrong)
    assert (finding.rule, finding.op, finding.evidence.basis) == ("PA304", "1/relu#0", "OBSERVED")
    assert finding.pins == ("1/relu#0",)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb, self.fc, self.head = nn.Embedding(50, 16), nn.Linear(16, 16), nn.Linear(16, 50, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(torch.tanh(self.fc(self.emb(ids))))
        return y


@pytest.mark.parametrize("name", ["bf16-inference", "fp16-inference", "bf16-training"])
def test_tied_weights_are_a_note(name: str) -> None:
    (finding,) = _told(Tied(), (torch.randint(0, 50, (2, 7)),), name)
    assert (finding.rule, finding.severity, finding.op) == ("PA305", "note", "emb/embedding#0")
    assert "emb.weight and head.weight are one tensor" in finding.message


# flags ----------------------------------------------------------------------------------------------------------------

DEEP = nn.Linear(4096, 4, bias=False)


@pytest.mark.parametrize(
    ("way", "device", "flags", "severities"),
    [
        ("fp16-inference", "h100", {REDUCED_FP16: "true"}, ["note"]),
        ("fp16-inference", "h100", {FP16_SUMS: "true"}, ["warning"]),
        ("bf16-inference", "h100", {FP16_SUMS: "true", REDUCED_FP16: "true"}, []),
        ("fp16-inference", "cpu-amx", {FP16_SUMS: "true", REDUCED_FP16: "true"}, []),
        ("fp16-inference", "h100", {}, []),
        ("bf16-inference", "local", {FP32_PRODUCTS: "medium"}, []),  # no product is kept in fp32
        ("bf16-inference", "local", {FP32_PRODUCTS: "high"}, []),
        ("name: mine\nextends: bf16-inference\nrules:\n  - {name: it, op: linear, class: keep-fp32}\n", "local",
         {FP32_PRODUCTS: "medium"}, ["warning"]),
        ("fp32", "cpu-amx", {CPU_MATMUL: "bf16"}, ["warning"]),
        ("fp32", "h100", {FP32_PRODUCTS: "medium", CPU_MATMUL: "bf16"}, []),  # of the CPU; PA703 speaks of CUDA
        (f"name: mine\nextends: fp16-inference\nenvironment: {{{FP16_SUMS}: false}}\n", "h100",
         {FP16_SUMS: "true"}, []),
    ],
)  # fmt: skip
def test_flags_count_where_they_act(way: str, device: str, flags: dict[str, str], severities: list[str]) -> None:
    told = _told(DEEP, (torch.ones(2, 4096),), way, device, flags=tuple(flags.items()))
    assert [each.severity for each in told if each.rule == "PA701"] == severities


# conversions ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("layer_norm, input upcast", "bf16-inference"),
        ("sinusoid into linear", "fp16-inference"),
        ("scatter into zeros", "bf16-inference"),
        ("gru, state of zeros", "bf16-inference"),
        ("cholesky", "fp16-inference"),
        ("polar", "bf16-inference"),
    ],
)
def test_the_conversion_does_not_raise_and_says_so(name: str, way: str) -> None:
    model, args = _of(name)
    report = pa.convert(model, args, policy=way).report
    told = [each for each in report.findings if each.rule in OURS and each.severity == "error"]
    assert told and all(each.resolved for each in told)
    assert report.verification is not None and report.verification.passed


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("index_put into zeros like", "amp-cpu-bf16"),
        ("index_put by mask", "amp-cpu-bf16"),
        ("cache, plain attribute, index_copy", "amp-cpu-bf16"),
        ("scatter into zeros like", "amp-cpu-bf16"),
        ("index_add of the other", "amp-cpu-bf16"),
        ("masked_scatter into zeros", "amp-cpu-bf16"),
        ("lerp with the input", "amp-cpu-bf16"),
    ],
)
def test_what_autocast_would_refuse_is_cast(name: str, way: str) -> None:
    """torch.autocast raises; the converted graph runs and is as near to fp32 as bf16 products are."""
    model, args = _of(name)
    with pytest.raises(RuntimeError), torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        model(*args)
    module = pa.convert(model, args, policy=way, verify=False).module
    with torch.no_grad():
        expected, found = model.eval()(*args), module(*args)
    assert torch.linalg.vector_norm(found.float() - expected) <= 2e-2 * torch.linalg.vector_norm(expected)
