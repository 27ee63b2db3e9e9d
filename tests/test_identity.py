"""Laws that hold for every model of the suite: identity under `fp32`, and what no conversion may change."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

import precision_audit as pa
from precision_audit.capture import capture, private_copy
from precision_audit.rewrite import unchanged
from tests import models as zoo

POLICIES = ("bf16-inference", "fp16-inference", "bf16-training", "fp16-training", "fp8-training-hopper")


def run(module: nn.Module, args: Any, kwargs: Any, seed: int = 0) -> tuple[Any, dict[str, Tensor]]:
    """Output and gradients of one call, under a seed."""
    module.zero_grad(set_to_none=True)
    torch.manual_seed(seed)
    output = module(*copy.deepcopy(args), **copy.deepcopy(kwargs))
    loss = zoo.loss_of(output)
    if loss is not None:
        loss.backward()
    found = {name: p.grad for name, p in module.named_parameters(remove_duplicate=False) if p.grad is not None}
    return output, found


def assert_same(left: Any, right: Any) -> None:
    for one, other in zip(zoo.tensors(left), zoo.tensors(right), strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        assert torch.equal(one, other)


@pytest.mark.parametrize("mode", ["training", "inference"])
@pytest.mark.parametrize("name", zoo.MODELS)
def test_policy_fp32_is_the_captured_graph_bit_for_bit(name: str, mode: str) -> None:
    model, args, kwargs = zoo.build(name)
    captured = {mode: capture(private_copy(model), args, kwargs, mode=mode)}
    reference = unchanged(captured).train(mode == "training")
    converted = pa.convert(model, args, kwargs, policy="fp32", verify=False).module.train(mode == "training")
    expected, gradients = run(reference, args, kwargs)
    found, others = run(converted, args, kwargs)
    assert_same(expected, found)
    assert gradients.keys() == others.keys()
    assert (name in zoo.NO_GRADIENT) == (not gradients)
    for key, gradient in gradients.items():
        assert torch.equal(gradient, others[key]), key
    for key, buffer in reference.named_buffers():
        assert torch.equal(buffer, converted.get_buffer(key)), key


@pytest.mark.parametrize("name", zoo.MODELS)
def test_captured_is_eager(name: str) -> None:
    model, args, kwargs = zoo.build(name)
    report = pa.audit(model, args, kwargs, policy="fp32")
    said = report.verification.captured_against_eager
    if name in zoo.EAGER_FAST_PATH and "fast path" in said:
        assert "e-07 on the example" in said
    else:
        assert said.startswith("bitwise on the example; bitwise on a perturbed input")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", zoo.MODELS)
def test_what_a_conversion_never_changes(name: str, policy: str) -> None:
    model, args, kwargs = zoo.build(name)
    before = copy.deepcopy(model)
    result = pa.convert(model, args, kwargs, policy=policy)
    converted = result.module

    verification = result.report.verification
    for each in (*verification.outputs, *verification.gradients):
        # A value that rounding moves across a ReLU's corner costs plain low precision as much: no fault of the plan.
        assert each.passed or each.relative_l2 <= 1.05 * each.plain_relative_l2, each
    assert_same(list(before.state_dict().values()), list(model.state_dict().values()))
    assert list(converted.state_dict()) == list(model.state_dict())
    assert ties(converted) == ties(model)
    assert not {id(p) for p in model.parameters()} & {id(p) for p in converted.parameters()}

    converted.train(policy.endswith("training") or "training" in policy)
    model.train(converted.training)
    expected, _ = run(model, args, kwargs)
    found, _ = run(converted, args, kwargs)
    left, right = tree_flatten(expected), tree_flatten(found)
    assert left[1] == right[1]
    for one, other in zip(zoo.tensors(expected), zoo.tensors(found), strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)

    if policy.endswith("training"):
        formats = {key: value.dtype for key, value in model.state_dict().items()}
        assert {key: value.dtype for key, value in converted.state_dict().items()} == formats
    counts = Counter((cast.value, cast.to, cast.consumers) for cast in result.plan.casts)
    assert not [key for key, count in counts.items() if count > 1]
    for node in converted.graph.nodes:
        if "cast" in node.meta and node.args:
            assert node.args[0].meta["val"].is_floating_point(), node


@pytest.mark.parametrize("name", zoo.MODELS)
def test_converting_twice_plans_nothing_the_second_time(name: str) -> None:
    model, args, kwargs = zoo.build(name)
    once = pa.convert(model, args, kwargs, policy="bf16-inference", verify=False).module
    again = pa.convert(once, args, kwargs, policy="bf16-inference", verify=False)
    assert [(cast.value, cast.to) for cast in again.plan.casts] == []
    expected, _ = run(once, args, kwargs)
    found, _ = run(again.module, args, kwargs)
    assert_same(expected, found)


def ties(module: nn.Module) -> set[frozenset[str]]:
    """Names of one parameter."""
    names: dict[int, set[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), set()).add(name)
    return {frozenset(group) for group in names.values() if len(group) > 1}
