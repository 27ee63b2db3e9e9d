"""`torch.compile` on a module converted for training: one graph, and the gradients of the module as it is."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import precision_audit as pa
from tests.conformance.trained import NETWORKS

MODES = ["training", "evaluation"]


def made(network: str, policy: str, mode: str) -> tuple[nn.Module, Tensor, Tensor]:
    build, batch = NETWORKS[network]
    torch.manual_seed(0)
    inputs, wanted = batch(torch.Generator().manual_seed(0))
    module = pa.convert(build(), (inputs,), policy=policy, device="h100", verify=False).module
    return module.train(mode == "training"), inputs, wanted


def step(run: nn.Module, module: nn.Module, inputs: Tensor, wanted: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Scores and gradients, with the loss scaled so that none underflows in fp16."""
    module.zero_grad(set_to_none=True)
    scores: Tensor = run(inputs)
    (1024 * F.cross_entropy(scores, wanted)).backward()
    return scores.detach(), {name: each.grad for name, each in module.named_parameters() if each.grad is not None}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("policy", ["bf16-training", "fp16-training"])
@pytest.mark.parametrize("network", NETWORKS)
def test_compiled_whole_with_the_same_gradients(network: str, policy: str, mode: str) -> None:
    module, inputs, wanted = made(network, policy, mode)
    expected, gradients = step(module, module, inputs, wanted)
    torch._dynamo.reset()
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)  # a graph break raises
    found, others = step(compiled, module, inputs, wanted)
    assert found.dtype == torch.float32 and torch.equal(found, expected)
    assert set(others) == set(gradients) == {name for name, _ in module.named_parameters()}
    for name, gradient in gradients.items():
        assert torch.isfinite(gradient).all() and gradient.any(), name
        assert torch.equal(others[name], gradient), name


@pytest.mark.parametrize("policy", ["bf16-training", "fp16-training"])
@pytest.mark.parametrize("network", NETWORKS)
def test_no_graph_break_and_no_guard_that_fails(network: str, policy: str) -> None:
    module, inputs, _ = made(network, policy, "training")
    torch._dynamo.reset()
    explained = torch._dynamo.explain(module)(inputs)
    assert (explained.graph_count, explained.graph_break_count) == (1, 0)
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(module, backend=counter, fullgraph=True)
    for _ in range(3):
        compiled(inputs)
    assert counter.frame_count == 1  # compiled once, not again for every call
