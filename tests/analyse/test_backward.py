"""Whose derivative loses gradients: the op is named on its line, what is kept high for it gives the gradients back, and
harmless models are left alone. The models are in `backward_models`; whether each fails is asked of eager torch."""

from __future__ import annotations

import inspect
import math
from functools import cache

import pytest
import torch

import precision_audit as pa
from precision_audit import policy as policies
from precision_audit.analyse.backward import backward
from precision_audit.analyse.blame import to_blame
from precision_audit.capture import Captured, capture, private_copy
from precision_audit.hardware import device
from precision_audit.records import Backward, Graph, Op, Operand, Tensor
from tests.analyse.backward_models import BAD, GOOD, VANISHING, Sketch, built, normalized_by_hand

DEVICE = device("cpu-amx")
FORMATS = {"fp16": torch.float16, "bf16": torch.bfloat16}
TOLERANCE = {"fp16": 0.15, "bf16": 0.3}  # of the shipped training policies


def loss(output: torch.Tensor) -> torch.Tensor:
    return output.float().mean()


def bare(low: str) -> str:
    """A policy that keeps nothing high by itself."""
    return (
        f"name: bare\nmode: training\nformats: {{high: fp32, low: {low}}}\n"
        f"tolerances: {{gradient_relative_l2: {TOLERANCE[low]}}}\nrules:\n  - {{name: rest, class: follow}}\n".replace(
            "class: follow", f"class: safe-in-{low}"
        )
    )


@cache
def found(name: str) -> tuple[Captured, tuple[Backward, ...]]:
    sketch = {**BAD, **VANISHING, **GOOD}[name]
    net, x = built(sketch)
    captured = capture(private_copy(net), (x,), mode="training")
    return captured, backward(captured, policies.parse(bare(sketch.low), "bare.yaml"), DEVICE, ((x,), {}), loss)


def eager_gradients(sketch: Sketch, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    net, x = built(sketch)
    net.to(dtype)
    return list(torch.autograd.grad(loss(net(x.to(dtype))), list(net.parameters())))


def finite(gradients: list[torch.Tensor]) -> bool:
    return all(bool(torch.isfinite(each).all()) for each in gradients)


@pytest.mark.parametrize("name", [*BAD, *VANISHING])
def test_the_op_is_named_on_its_line(name: str) -> None:
    captured, lost = found(name)
    sketch = {**BAD, **VANISHING}[name]
    text, _, op_name = sketch.culprit.rpartition(" ")
    ops = {op.key: op for op in captured.graph.ops}
    assert [ops[each.op].op for each in lost] == [op_name]
    (each,) = lost
    source = ops[each.op].source
    lines, start = inspect.getsourcelines(sketch.function)
    (line,) = [start + index for index, one in enumerate(lines) if text in one]
    assert source is not None and source.line == line
    assert each.reaches == ("fc.weight", "fc.bias") and 0 < each.lost <= each.count
    assert each.vanishes == (name in VANISHING)


@pytest.mark.parametrize("name", BAD)
def test_the_model_fails_as_it_says(name: str) -> None:
    sketch = BAD[name]
    assert finite(eager_gradients(sketch)) and not finite(eager_gradients(sketch, FORMATS[sketch.low]))


@pytest.mark.parametrize("name", VANISHING)
def test_a_gradient_that_vanishes(name: str) -> None:
    """Eager torch: where fp32 has a gradient the low format has none at all."""
    sketch = VANISHING[name]
    assert all(bool(each.any()) for each in eager_gradients(sketch))
    assert not any(bool(each.any()) for each in eager_gradients(sketch, FORMATS[sketch.low]))


@pytest.mark.parametrize("name", [*BAD, *VANISHING])
def test_what_is_kept_high_gives_the_gradients_back(name: str) -> None:
    """Under a policy that keeps nothing by itself: only the findings' remedies protect."""
    sketch = {**BAD, **VANISHING}[name]
    net, x = built(sketch)
    result = pa.convert(net, (x,), policy=policies.parse(bare(sketch.low), "bare.yaml"), device="cpu-amx", loss=loss)
    scale = found(name)[1][0].scale / 2
    made = torch.autograd.grad(loss(result.module(x)) * scale, list(result.module.parameters()))
    for exact, each in zip(eager_gradients(sketch), made, strict=True):
        assert bool(torch.isfinite(each).all())
        assert float((each / scale - exact).norm() / exact.norm()) <= TOLERANCE[sketch.low]
    gradient_findings = [finding for finding in result.report.findings if finding.rule == "PA607"]
    assert all(finding.resolved for finding in gradient_findings)
    (lost,) = found(name)[1]
    named = [finding for finding in result.report.findings if finding.op == lost.op and finding.severity != "note"]
    assert named and all(finding.resolved for finding in named)


@pytest.mark.parametrize("name", GOOD)
def test_harmless_models_are_left_alone(name: str) -> None:
    assert found(name)[1] == ()
    sketch = GOOD[name]
    if name != "NaN in fp32 too":
        assert finite(eager_gradients(sketch, FORMATS[sketch.low]))
    else:
        assert not finite(eager_gradients(sketch))


def test_what_the_first_hides_is_named_too() -> None:
    """NaN from the second root spoils all that lies before it, and the first one would have made its own."""

    def twice(h: torch.Tensor) -> torch.Tensor:
        return normalized_by_hand(normalized_by_hand(h) * 1e-2)

    net, x = built(Sketch(twice, "fp16", 1e-4))
    captured = capture(private_copy(net), (x,), mode="training")
    lost = backward(captured, policies.parse(bare("fp16"), "bare.yaml"), DEVICE, ((x,), {}), loss)
    assert [each.op for each in lost] == ["/sqrt#0", "/sqrt#1"]
    assert all(math.isfinite(each.error) and each.op in each.pins for each in lost)
    assert lost[0].reaches == lost[1].reaches == ("fc.weight", "fc.bias")


def test_inference_has_no_backward() -> None:
    net, x = built(BAD["4-norm"])
    captured = capture(private_copy(net), (x,))
    assert backward(captured, policies.load("fp16-inference"), DEVICE, ((x,), {}), loss) == ()


def _op(key: str, kind: str, *reads: str) -> Op:
    operands = tuple(Operand(value, f"a{i}") for i, value in enumerate(reads))
    return Op(key, key, key, kind, "", "", operands, (Tensor("fp32", (1,), (1,)),))


def test_blame_by_hand() -> None:
    """w → a → b → loss, and w → c: b gives a lost gradient of what it received whole; c is not on the way."""
    graph = Graph(
        (_op("w", "parameter"), _op("/a", "pointwise", "w"), _op("/c", "pointwise", "w"), _op("/b", "pointwise", "/a")),
        ("/b", "/c"),
        "training",
    )
    lost = {("/a", ""): 1, ("w", "/a"): 1, ("w", ""): 1}
    own = {("/a", ""): 1}
    assert to_blame(graph, lost, own) == {"/b": "/a"}
    assert to_blame(graph, {**lost, ("/b", ""): 1}, {}) == {}  # lost by the loss already
    assert to_blame(graph, {("w", ""): 1, ("w", "/c"): 2}, {("w", "/c"): 2}) == {"/c": "w"}
    assert to_blame(graph, {("/a", ""): 1}, own) == {}  # reaches no parameter
    assert to_blame(graph, lost, {**own, ("w", "/a"): 1}) == {"/a": "w", "/b": "/a"}  # each by itself
