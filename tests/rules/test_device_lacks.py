"""PA404: what a policy asks for and the device has not; and silence where it has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import precision_audit as pa
from precision_audit import backends, hardware, policy
from precision_audit.capture import capture, private_copy
from precision_audit.decide import decide
from precision_audit.records import Finding, Hardware, Policy

X = (torch.linspace(-1, 1, 16 * 32).reshape(16, 32),)
FP8 = "name: mine\nextends: {parent}\nrules:\n  - {{name: linears, op: linear, class: fp8-eligible{recipe}}}\n"


def _net() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32), nn.Linear(32, 16))


def _found(given: str, on: str | Hardware, net: nn.Module | None = None, args: Any = X) -> list[Finding]:
    made = policy.parse(given, "mine.yaml") if "\n" in given else policy.load(given)
    row = hardware.device(on) if isinstance(on, str) else on
    captured = capture(private_copy(net or _net()), args, mode=made.mode)
    return list(decide(captured.graph, made, row, backends.listed()).findings)


def _told(given: str, on: str | Hardware, **more: Any) -> list[tuple[str, str]]:
    return [(one.severity, one.message) for one in _found(given, on, **more) if one.rule == "PA404"]


def _asking(recipe: str = "", parent: str = "bf16-training") -> str:
    return FP8.format(parent=parent, recipe=f", {recipe}" if recipe else "")


def _te(recipe: str) -> str:
    return _asking(f"backend: transformer_engine, recipe: {recipe}")


ADA, BLACKWELL = "8.9 (Ada) or later", "10.0 (Blackwell) or later"


@pytest.mark.parametrize(
    ("given", "on", "reason"),
    [
        (_asking("recipe: tensorwise"), "a100", f"fp8 tensorwise needs compute capability {ADA}; a100 (Ampere) is 8.0"),
        (_asking(), "cpu-amx", f"fp8 rowwise needs a GPU of compute capability {ADA}; cpu-amx is a CPU"),
        (
            _te("NVFP4BlockScaling"),
            "h100",
            f"NVFP4BlockScaling needs compute capability {BLACKWELL}; h100 (Hopper) is 9.0",
        ),
        (
            _te("MXFP8BlockScaling"),
            "h200",
            f"MXFP8BlockScaling needs compute capability {BLACKWELL}; h200 (Hopper) is 9.0",
        ),
        (
            _te("MXFP8BlockScaling"),
            "rtx5090",
            "MXFP8BlockScaling is refused from compute capability 12.0 on: TransformerEngine refuses it there "
            "(issue 2304); rtx5090 (Blackwell, consumer) is 12.0",
        ),
        (
            _te("DelayedScaling"),
            "mi300x",
            f"fp8 DelayedScaling needs CUDA and compute capability {ADA}; mi300x (CDNA 3) is gfx942",
        ),
    ],
)
def test_a_recipe_that_the_device_lacks(given: str, on: str, reason: str) -> None:
    (finding,) = [one for one in _found(given, on) if one.rule == "PA404" and "stay" in one.message]
    assert (finding.severity, finding.message) == ("warning", f"{reason} → 2 linears stay bf16")
    assert finding.source is not None and (finding.source.file, finding.source.line) == ("mine.yaml", 4)
    assert finding.evidence.basis == "PROVED" and ("linears", 2.0) in finding.evidence.numbers


@pytest.mark.parametrize(
    ("given", "on", "remedy"),
    [
        (_te("MXFP8BlockScaling"), "h100", "recipe: DelayedScaling"),
        (_te("DelayedScaling"), "mi300x", "backend: torchao, recipe: tensorwise"),
        (_asking("recipe: rowwise"), "rtx5090", "recipe: tensorwise"),
        (_asking(), "a100", "plan for a device that has it (--device h100), or class: safe-in-bf16"),
        (_te("NVFP4BlockScaling"), "a100", "plan for a device that has it (--device b200), or class: safe-in-bf16"),
    ],
)
def test_the_mend_is_something_that_exists(given: str, on: str, remedy: str) -> None:
    (finding,) = [one for one in _found(given, on) if one.rule == "PA404"]
    assert finding.remedy == remedy


def test_it_is_said_once_and_the_linears_run_low() -> None:
    """Not again by PA401 for every linear; PA505 says that nothing is left of fp8."""
    report = pa.audit(_net(), X, policy="fp8-training-hopper", device="a100", verify=False)
    assert [one.rule for one in report.findings] == ["PA404", "PA505"]
    assert report.plan.swaps == () and report.verdict == "NOT ENOUGH EVIDENCE"
    assert {one.chosen for one in report.decisions if one.op.endswith("linear#0")} == {"bf16"}
    assert report.findings[1].remedy == "plan for a device that has it (PA404), or use a policy without fp8"


def test_local_is_no_gpu_here() -> None:
    """What `--device local` is on a CPU: it used to take fp8 without a word."""
    report = pa.audit(_net(), X, policy="fp8-training-hopper", device="cpu-amx", verify=False)
    assert report.plan.swaps == () and report.findings[0].rule == "PA404"


@pytest.mark.parametrize("on", ["p100", "v100", "t4"])
@pytest.mark.parametrize("given", ["bf16-inference", "bf16-training", "amp-cuda-bf16"])
def test_bf16_before_ampere(on: str, given: str) -> None:
    (finding,) = [one for one in _found(given, on) if one.rule == "PA404"]
    assert finding.severity == "warning" and finding.message.startswith(f"bf16 is emulated on {on} (")
    assert "2 products" in finding.message and "including_emulation=False" in finding.evidence.text
    other = {"amp-cuda-bf16": "amp-cuda-fp16"}.get(given, given.replace("bf16", "fp16"))
    assert finding.remedy == f"--policy {other}" + ("" if on == "p100" else ", which has tensor cores there")
    policy.load(other)  # there is one of that name


@pytest.mark.parametrize(
    ("given", "on", "severity", "part"),
    [
        ("fp16-inference", "p100", "note", "fp16 has no units of its own on p100 (Pascal)"),
        ("fp16-inference", "mps-m1-max", "note", "only memory is saved"),
        ("bf16-inference", "mps-m1-max", "warning", "bf16 is emulated on mps-m1-max"),
        ("bf16-inference", "cpu-avx2", "note", "bf16 is emulated on cpu-avx2"),
        ("fp16-inference", "cpu-avx512-bf16", "note", "fp16 is emulated on cpu-avx512-bf16"),
    ],
)  # fmt: skip
def test_formats_without_units(given: str, on: str, severity: str, part: str) -> None:
    ((found, message),) = _told(given, on)
    assert found == severity and part in message


def test_apple_has_no_fp64() -> None:
    given = "name: m\nmode: inference\nformats: {high: fp64, low: fp32}\nrules:\n"
    given += "  - {name: all, op: linear, class: keep-fp64}\n  - {name: rest, class: follow}\n"
    net, args = _net().double(), (X[0].double(),)
    message = "mps-m4-max (Apple 9) has no fp64, in which 2 products would run"
    assert _told(given, "mps-m4-max", net=net, args=args) == [("error", message)]
    assert _told(given, "a100", net=net, args=args) == []


def test_a_pin_asks_too() -> None:
    given = "name: mine\nextends: fp16-inference\nrules:\n  - {name: it, op: linear, module: '0', class: 'pin:bf16'}\n"
    assert [message[:30] for _, message in _told(given, "v100")] == ["bf16 is emulated on v100 (Volt"]
    assert _told(given, "a100") == []


def test_where_no_product_runs_low_nothing_is_said() -> None:
    assert _told("bf16-inference", "v100", net=nn.Sequential(nn.LayerNorm(32), nn.GELU())) == []
    assert _told("fp32", "v100") == []


MATMUL = "torch.backends.cuda.matmul.fp32_precision"


@pytest.mark.parametrize(
    ("setting", "on", "part"),
    [
        (f"{MATMUL}: tf32", "v100", f"{MATMUL}: tf32 changes nothing: TF32 does not exist on v100 (Volta)"),
        ("torch.backends.cuda.matmul.allow_tf32: true", "t4", "TF32 does not exist on t4 (Turing)"),
        ("torch.backends.fp32_precision: tf32", "p100", "TF32 does not exist on p100 (Pascal)"),
        (f"{MATMUL}: tf32", "mi300x", "TF32 stays off unless HIPBLASLT_ALLOW_TF32=1 is set on mi300x (CDNA 3)"),
        (f"{MATMUL}: tf32, HIPBLASLT_ALLOW_TF32: 1", "mi300x", ""),
        (f"{MATMUL}: ieee", "v100", ""),
        (f"{MATMUL}: tf32", "a100", ""),
        (f"{MATMUL}: tf32", "cpu-amx", ""),  # a policy may be for both
    ],
)
def test_tf32_where_there_is_none(setting: str, on: str, part: str) -> None:
    told = _told(f"name: mine\nextends: fp32\nenvironment: {{{setting}}}\n", on)
    assert len(told) == bool(part) and all(severity == "warning" and part in message for severity, message in told)


class Stored(nn.Module):
    """Weights as an fp8 checkpoint has them."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("weight", torch.eye(32).to(dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.get_buffer("weight").to(torch.float32)


@pytest.mark.parametrize(
    ("dtype", "on", "severities"),
    [
        (torch.float8_e4m3fn, "mi300x", ["warning"]),
        (torch.float8_e4m3fnuz, "mi300x", []),
        (torch.float8_e4m3fn, "mi355x", []),
        (torch.float8_e4m3fn, "h100", []),
    ],
)
def test_fp8_of_the_other_encoding(dtype: torch.dtype, on: str, severities: list[str]) -> None:
    told = _told("fp32", on, net=Stored(dtype))
    assert [severity for severity, _ in told] == severities
    assert all("half the value" in message and "fp8_e4m3fn" in message for _, message in told)


def test_the_byte_that_means_half() -> None:
    """What the warning says, of torch's own two types."""
    bytes_ = torch.tensor([0x38, 0x7E, 0x80], dtype=torch.uint8)
    ocp, fnuz = (bytes_.view(each).float() for each in (torch.float8_e4m3fn, torch.float8_e4m3fnuz))
    assert ocp.tolist() == [1.0, 448.0, 0.0] and fnuz[:2].tolist() == [0.5, 224.0] and fnuz[2].isnan()


def test_swaps_on_fnuz_are_noted_once() -> None:
    assert [severity for severity, _ in _told("fp8-training-hopper", "mi300x")] == ["note"]
    assert _told("fp8-training-hopper", "mi355x") == []


# Every shipped policy on the device it names; those that name none, where their low format has matrix units.
HOME = {
    "bf16": ("a100", "h100", "b200", "mi300x", "cpu-amx"),
    "fp16": ("v100", "t4", "a100", "h100", "mi300x", "cpu-amx"),
}


@pytest.mark.parametrize("name", policy.shipped())
def test_no_wolf_is_cried_at_home(name: str) -> None:
    made = policy.load(name)
    for on in (made.device,) if made.device else HOME.get(made.low, ("v100", "h100")):
        assert _told(name, on) == [], on


def test_a_device_without_a_table_of_units_is_not_judged() -> None:
    bare = replace(hardware.device("v100"), units=())
    assert _told("bf16-inference", bare) == []


def test_a_committed_plan_is_checked_against_the_device_that_is_asked_for() -> None:
    """A plan with swaps fits the GPU it is applied for, though the policy names no device, and no other."""
    made: Policy = policy.parse(_asking(), "mine.yaml")
    plan = pa.convert(_net(), X, policy=made, device="h100", verify=False).plan
    assert len(plan.swaps) == 2
    assert pa.convert(_net(), X, policy=made, device="h100", apply_plan=plan, verify=False).plan.swaps == plan.swaps
    with pytest.raises(pa.InputError, match="cannot be swapped: fp8 rowwise needs compute capability"):
        pa.convert(_net(), X, policy=made, device="a100", apply_plan=plan, verify=False)
