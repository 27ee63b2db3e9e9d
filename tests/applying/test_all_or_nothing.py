"""Whatever raises, the model is as it was; what does not fit is said in one line."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import precision_audit as pa
from precision_audit.applying import changes
from precision_audit.applying.hooks import Gives, cast_floats
from precision_audit.backends import torchao_float8
from precision_audit.plan import file as plan_file
from precision_audit.policy import parse
from tests.applying.small import Net, Streams, converted, rows, seeded

FP8 = "fp8-training-hopper"


def fingerprint(model: nn.Module) -> list[Any]:
    """Modules, tensors and hooks of a model, by identity."""
    found: list[Any] = []
    for name, module in model.named_modules(remove_duplicate=False):
        found.append((name, id(module), type(module), len(module._forward_hooks), len(module._forward_pre_hooks)))
        tensors = {**module._parameters, **module._buffers}
        found += [(name, key, id(t), t.dtype, t.data_ptr()) for key, t in tensors.items() if t is not None]
    return found


def test_a_refused_swap_changes_nothing() -> None:
    result, model = converted(seeded(Net), FP8), seeded(Net)
    model.again.register_forward_hook(lambda module, args, output: output)
    before = fingerprint(model)
    with pytest.raises(pa.InputError, match="again has hooks that a swap would drop"):
        pa.apply(model, result)
    assert fingerprint(model) == before


def test_a_backend_that_fails_halfway_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    result, model = converted(seeded(Net), FP8), seeded(Net)
    real = torchao_float8.build

    def build(linear: nn.Linear, swap: Any) -> nn.Module:
        if swap.module == "again":
            raise RuntimeError("out of memory")
        return real(linear, swap)

    monkeypatch.setattr(torchao_float8, "build", build)
    before = fingerprint(model)
    with pytest.raises(RuntimeError, match="out of memory"):
        pa.apply(model, result)
    assert fingerprint(model) == before


def test_a_hook_that_fails_takes_all_back(monkeypatch: pytest.MonkeyPatch) -> None:
    model = seeded(Net).eval()
    result = converted(model, "bf16-inference")

    def fails(*args: Any) -> Gives:
        raise KeyboardInterrupt

    monkeypatch.setattr(changes, "Gives", fails)
    before = fingerprint(model)
    with pytest.raises(KeyboardInterrupt):
        pa.apply(model, result)
    assert fingerprint(model) == before


def test_example_inputs_that_the_model_refuses() -> None:
    model = seeded(Streams).eval()
    result = converted(model, "bf16-inference")
    before = fingerprint(model)
    with pytest.raises(pa.InputError, match="the model cannot be run with the example inputs: RuntimeError"):
        pa.apply(model, result, (torch.randn(4, 7),))
    assert fingerprint(model) == before


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: setattr(m, "first", nn.Linear(48, 64)), "first is 48 -> 64, the plan has 32 -> 64"),
        (lambda m: delattr(m, "again"), "it swaps again, and there is no such module"),
        (lambda m: setattr(m, "norm", nn.LayerNorm(10, bias=False)), "it has no parameter norm.bias"),
        (lambda m: m.norm.half(), "norm.weight is fp16, the plan was made for fp32"),
        (lambda m: setattr(m, "norm", nn.LayerNorm(12)), r"norm.weight has the shape \(12,\), the plan was made for"),
    ],
)
def test_another_model_does_not_fit(change: Any, says: str) -> None:
    result, model = converted(seeded(Net), FP8), seeded(Net)
    change(model)
    before = fingerprint(model)
    with pytest.raises(pa.InputError, match=f"the plan does not fit Net: {says}"):
        pa.apply(model, result)
    assert fingerprint(model) == before


class Bare(nn.Module):
    """Nothing to store: a plan is hooks alone."""

    def __init__(self) -> None:
        super().__init__()
        self.act = nn.GELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(x).softmax(-1)


def _trained_by_torchao(model: nn.Module) -> None:
    from torchao.float8 import convert_to_float8_training

    convert_to_float8_training(model)


def _quantized(model: nn.Module) -> None:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    quantize_(model, Int8WeightOnlyConfig(set_inductor_config=False))


QUANTISED = """
name: quantised
mode: inference
formats: {high: fp32, low: bf16}
rules:
  - {name: all, op: linear, class: fp8-eligible, backend: torchao_quantize, recipe: int8wo}
  - {name: rest, class: keep-fp32}
"""


@cache
def _reported(policy: str) -> pa.Report:
    return pa.audit(seeded(Net).eval(), (rows(),), policy=parse(policy) if "\n" in policy else policy)


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (FP8, "module first is a Float8Linear, .* swapped for fp8 before; give the one it was made from"),
        (QUANTISED, "module first is a QuantisedLinear"),
        ("bf16-inference", "has the casts of a plan that was applied before; give a fresh model"),
        (_trained_by_torchao, "module first is a Float8Linear"),
        (_quantized, "first.weight is of class Int8Tensor, a tensor made of others"),
        (lambda m: m.bfloat16(), "first.weight is bf16"),
    ],
)
@pytest.mark.parametrize("then", [FP8, "bf16-training", "bf16-inference"])
def test_no_plan_goes_on_top_of_another_change(first: Any, says: str, then: str) -> None:
    """Whatever changed the model first, and whichever plan comes then: neither would be what runs."""
    model, plan = seeded(Net).eval(), _reported(then)
    if isinstance(first, str):
        pa.apply(model, _reported(first))
    else:
        first(model)
    before = fingerprint(model)
    with pytest.raises(pa.InputError, match=says) as caught:
        pa.apply(model, plan)
    assert "\n" not in str(caught.value) and fingerprint(model) == before


def test_a_plan_of_hooks_alone_is_not_applied_twice() -> None:
    model = Bare().eval()
    report = pa.audit(model, (rows(),), policy="bf16-inference")
    assert pa.apply(model, report).hooked
    with pytest.raises(pa.InputError, match="Bare has the casts of a plan that was applied before"):
        pa.apply(model, report)


def test_a_training_plan_without_swaps_changes_nothing_and_may_be_applied_again() -> None:
    model = seeded(Net)
    before, report = fingerprint(model), pa.audit(model, (rows(),), policy="bf16-training")
    assert pa.apply(model, report) == pa.apply(model, report)
    assert fingerprint(model) == before


def test_a_plan_alone_knows_what_it_stored() -> None:
    model = seeded(Net).eval()
    plan = pa.audit(model, (rows(),), policy="bf16-inference").plan
    with pytest.raises(pa.InputError, match=r"first\.weight is bf16 already: was it applied before\?"):
        pa.apply(model.bfloat16(), plan, (rows().bfloat16(),))


def test_a_wrapped_model_is_named() -> None:
    report = pa.audit(seeded(Net).eval(), (rows(),), policy="bf16-inference")
    with pytest.raises(pa.InputError, match=r"does not fit OptimizedModule: .*; it wraps _orig_mod: give that one"):
        pa.apply(torch.compile(seeded(Net).eval(), backend="eager"), report)


def test_a_converted_model_is_refused() -> None:
    result = converted(seeded(Net), FP8)
    with pytest.raises(pa.InputError, match="a converted one already"):
        pa.apply(result.module, result)


def test_a_plan_in_a_file_needs_inputs_for_inference(tmp_path: Path) -> None:
    model = seeded(Net).eval()
    result = converted(model, "bf16-inference")
    plan_file.write(result.plan, tmp_path / "plan.yaml")
    with pytest.raises(pa.InputError, match="a plan alone does not say who reads what: give the example inputs"):
        pa.apply(model, tmp_path / "plan.yaml")
    by_file = pa.apply(model, tmp_path / "plan.yaml", (rows(),))
    other = seeded(Net).eval()
    by_result = pa.apply(other, result)
    assert (by_file.stored, by_file.hooked, by_file.not_expressed) == (
        by_result.stored, by_result.hooked, by_result.not_expressed
    )  # fmt: skip
    assert torch.equal(model(rows()), other(rows()))


def test_a_training_plan_in_a_file_needs_none(tmp_path: Path) -> None:
    result, model = converted(seeded(Net), FP8), seeded(Net)
    plan_file.write(result.plan, tmp_path / "plan.yaml")
    applied = pa.apply(model, tmp_path / "plan.yaml")
    assert {swap.module for swap in applied.swapped} == {"first", "again"}


def test_casts_leave_what_is_no_container_alone() -> None:
    class Cache:
        def __init__(self) -> None:
            self.keys = torch.zeros(2)

    low, high = torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2)
    cache = Cache()
    given = {"a": (low, [low, 3, None]), "b": cache, "c": torch.arange(2)}
    found = cast_floats(given, torch.bfloat16, torch.float32)
    assert found["a"][0].dtype == found["a"][1][0].dtype == torch.float32
    assert found["b"] is cache and found["c"] is given["c"]
    assert given["a"][0] is low  # the caller's own container is as it was
    unchanged = ([high], {"x": high})
    assert cast_floats(unchanged, torch.bfloat16, torch.float32) is unchanged
