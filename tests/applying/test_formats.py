"""What an applied model really runs in: captured again with its hooks on, op by op against the plan."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import precision_audit as pa
from precision_audit import ops
from precision_audit.capture import capture, private_copy
from tests.applying.small import Streams, converted, rows, seeded
from tests.models import HAVE_TRANSFORMERS, MODELS, NEED_TRANSFORMERS, build, tensors

NAMES = (
    *("mlp", "convnet", "tied_language_model", "gru_classifier", "lstm", "multi_head_attention", "dict_input"),
    *("dataclass_output", "rope_attention", "unet", "called_twice", "nested_lists", "small_bert", "small_llama"),
)
POLICIES = ("bf16-inference", "fp16-inference", "bf16-inference-stream-high")
# Hooks add casts, so their numbers in a module shift; views are recorded anew by each capture.
UNCOUNTED = ("to", "_to_copy", "alias")


def runs_in(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, list[str]]:
    """Formats of the outputs of every op that an eager model runs, by key."""
    graph = capture(private_copy(model), args, kwargs).graph
    return {op.key: [tensor.format for tensor in op.outputs] for op in graph.ops if "/" in op.key}


def relative(found: Any, wanted: Any) -> float:
    pairs = [(f, w) for f, w in zip(tensors(found), tensors(wanted), strict=True) if w.is_floating_point()]
    return max(float((f.double() - w.double()).norm() / w.double().norm().clamp(min=1e-30)) for f, w in pairs)


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", NAMES)
def test_every_op_runs_as_the_record_says(name: str, policy: str) -> None:
    if name in NEED_TRANSFORMERS and not HAVE_TRANSFORMERS:
        pytest.skip("transformers is not installed")
    model, args, kwargs = build(name)
    model.eval()
    result = pa.convert(model, args, kwargs, policy=policy, verify=False, device="cpu-amx")
    with torch.no_grad():
        reference = model(*args, **kwargs)
        applied = pa.apply(model, result)
        found, wanted = model(*args, **kwargs), result.module.eval()(*args, **kwargs)
    assert [t.dtype for t in tensors(found)] == [t.dtype for t in tensors(wanted)]
    differs = {key: each.runs for each in applied.not_expressed for key in each.ops}
    if not differs:
        assert relative(found, wanted) == 0.0
    assert relative(found, reference) <= 1.5 * relative(wanted, reference) + 1e-6
    _check_formats(result, runs_in(model, args, kwargs), differs)


def _check_formats(result: pa.Conversion, found: dict[str, list[str]], differs: dict[str, str]) -> None:
    records, counted = {op.key: op for op in result.report.graph.ops}, 0
    for key, planned in result.plan.formats:
        op = records[key]
        if "/" not in key or op.op in UNCOUNTED or key not in found:
            continue
        row = ops.row(op.op)
        moves = row is not None and row.arithmetic == "none"  # rounding before it gives the same numbers
        for tensor, runs in zip(op.outputs, found[key], strict=True):
            if tensor.format == result.plan.high and not (moves and key not in differs):
                assert runs == differs.get(key, planned), key
                counted += 1
    assert counted


@pytest.mark.parametrize("name", ["mlp", "convnet", "unet"])
def test_a_plan_that_modules_can_express_is_expressed_exactly(name: str) -> None:
    model, args, kwargs = build(name)
    result = pa.convert(model.eval(), args, kwargs, policy="bf16-inference", verify=False, device="cpu-amx")
    applied = pa.apply(model, result)
    assert applied.exact and not applied.not_expressed
    assert {each.name for each in applied.stored} == {fold.value for fold in result.plan.folds}
    assert "not expressed: nothing, every op runs as planned" in str(applied)


class Norms(nn.Module):
    """A sum of a low and a high branch in one forward."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.norm = nn.Linear(32, 32), nn.LayerNorm(32)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + torch.exp(self.low(x)))


def test_formats_within_one_forward_are_left_high_and_stated() -> None:
    model = seeded(nn.Sequential, Norms(), nn.Linear(32, 32)).eval()
    result = converted(model, "bf16-inference")
    applied = pa.apply(model, result)
    planned = dict(result.plan.formats)
    left = {key for each in applied.not_expressed for key in each.ops}
    for each in applied.not_expressed:
        assert all(planned[key] == each.planned == "bf16" for key in each.ops) and each.runs == "fp32"
        assert each.sources and "forward" in each.reason and "convert" in each.remedy
    found = runs_in(model, (rows(),), {})
    assert found["0/exp#0"] == ["fp32"]  # pinned high: no hook may lower it
    assert found["0.low/linear#0"] == ["bf16"] and model[0].low.weight.dtype == torch.bfloat16
    assert all(found[key] == ["fp32"] for key in left)
    assert not any(f"/{name}#0" in key for key in left for name in ("linear", "exp"))


def test_a_mask_of_the_lowest_number_stays_finite() -> None:
    """fp32's lowest number rounds to -inf in bf16, and a row of only -inf is NaN after softmax."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query = nn.Linear(32, 32)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            query = self.query(x)
            return torch.nn.functional.scaled_dot_product_attention(query, query, query, attn_mask=mask)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = Masked()

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return torch.exp(self.attention(x, mask=mask))

    model = seeded(Model).eval()
    x, mask = torch.randn(1, 4, 32), torch.full((1, 4, 4), torch.finfo(torch.float32).min)
    result = pa.convert(model, (x, torch.zeros_like(mask)), policy="bf16-inference", verify=False, device="h100")
    assert any(each.module == "attention" for each in pa.apply(model, result).hooked)
    assert model(x, mask).isfinite().all()


def test_a_model_that_does_what_its_graph_does_not_say_is_run_once() -> None:
    """With example inputs the model is run, and hooks that make it raise are taken back."""
    model = seeded(Streams).eval()
    result, before = converted(model, "bf16-inference"), copy.deepcopy(model)
    applied = pa.apply(model, result, (rows(),))
    with torch.no_grad():
        assert relative(model(rows()), before(rows())) < 1e-2
    assert any("the model raised RuntimeError" in each.reason for each in applied.not_expressed)
    # closed: what comes out of it is fp32 again, the stream that went through it included
    assert {each.module: each.gives for each in applied.hooked}["passing"] == "fp32"


@pytest.mark.parametrize("name", sorted(set(MODELS) - set(NAMES) - set(NEED_TRANSFORMERS)))
@pytest.mark.slow
def test_nothing_raises_and_nothing_runs_below_its_plan(name: str) -> None:
    model, args, kwargs = build(name)
    model.eval()
    try:
        result = pa.convert(model, args, kwargs, policy="bf16-inference", verify=False, device="cpu-amx")
    except pa.InputError:
        pytest.skip("cannot be captured")
    applied = pa.apply(model, result)
    with torch.no_grad():
        model(*args, **kwargs)
    assert not [each for each in applied.not_expressed if each.runs == result.plan.low and each.planned != each.runs]
