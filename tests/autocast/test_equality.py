"""The amp policies against torch.autocast itself: the same bits, forward and backward, on the CPU."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import precision_audit as pa
from precision_audit.capture import capture, private_copy
from precision_audit.rewrite import unchanged
from tests import models as zoo
from tests.benchmarks import models as benchmark

LOW = {"amp-cpu-bf16": torch.bfloat16, "amp-cpu-fp16": torch.float16}
# torch.autocast itself raises on these, with and without a capture: an op gets operands of two formats.
REFUSED = {
    "amp-cpu-bf16": {"scatter_index_put", "fp16_model", "finfo_mask"},
    "amp-cpu-fp16": {"scatter_index_put", "bf16_model", "finfo_mask", "lstm"},
}
# transformers' Llama enters a region of its own only where autocast is already on: its capture has none.
ASKS_FOR_AUTOCAST = {"small_llama"}
EXAMPLES = ("01_mnist_cnn.py", "02_transformer_block.py")


def under_autocast(module: nn.Module, args: Any, kwargs: Any, low: torch.dtype | None) -> tuple[Any, dict[str, Tensor]]:
    """Output and gradients of one call, in autocast's region where `low` is given."""
    module.zero_grad(set_to_none=True)
    torch.manual_seed(0)
    args, kwargs = copy.deepcopy((args, kwargs))
    with torch.autocast("cpu", low, enabled=low is not None):
        output = module(*args, **kwargs)
    loss = zoo.loss_of(output)
    if loss is not None:
        loss.backward()
    return output, {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


def assert_bitwise(left: tuple[Any, dict[str, Tensor]], right: tuple[Any, dict[str, Tensor]]) -> None:
    for one, other in zip(zoo.tensors(left[0]), zoo.tensors(right[0]), strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    assert left[1].keys() == right[1].keys()
    for name, gradient in left[1].items():
        assert torch.equal(gradient, right[1][name]), name


def assert_equal_to_autocast(model: nn.Module, args: Any, kwargs: Any, policy: str, mode: str, eager: bool) -> None:
    captured = {mode: capture(private_copy(model), args, kwargs, mode=mode)}
    reference = unchanged(captured).train(mode == "training")
    converted = pa.convert(model, args, kwargs, policy=policy, verify=False).module.train(mode == "training")
    expected = under_autocast(reference, args, kwargs, LOW[policy])
    found = under_autocast(converted, args, kwargs, None)
    assert_bitwise(expected, found)
    for name, buffer in reference.named_buffers():
        assert torch.equal(buffer, converted.get_buffer(name)), name
    if eager:
        twin = copy.deepcopy(model).train(mode == "training")
        assert_bitwise(under_autocast(twin, args, kwargs, LOW[policy]), found)


def skip_without_primitive(model: nn.Module, args: Any, kwargs: Any, low: torch.dtype) -> None:
    """oneDNN has no low LSTM on processors without AVX-512: autocast raises there, whoever calls it."""
    try:
        under_autocast(copy.deepcopy(model), args, kwargs, low)
    except RuntimeError as error:
        if "could not create a primitive" not in str(error):
            raise
        pytest.skip(f"this processor has no {low} LSTM")


@pytest.mark.parametrize("mode", ["training", "inference"])
@pytest.mark.parametrize("policy", LOW)
@pytest.mark.parametrize("name", zoo.MODELS)
def test_output_and_gradients_are_those_of_torch_autocast(name: str, policy: str, mode: str) -> None:
    model, args, kwargs = zoo.build(name)
    if name in REFUSED[policy]:
        with pytest.raises(RuntimeError):
            under_autocast(model.train(mode == "training"), args, kwargs, LOW[policy])
        return
    if name == "lstm":
        skip_without_primitive(model, args, kwargs, LOW[policy])
    # Eager takes another path in evaluation mode where it has a fused kernel; regions of the user's are inside both.
    same_path = name not in ASKS_FOR_AUTOCAST and (name not in zoo.EAGER_FAST_PATH or mode == "training")
    assert_equal_to_autocast(model, args, kwargs, policy, mode, eager=same_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_equal_autocast(name: str) -> None:
    example = zoo.load_example(name)
    torch.manual_seed(0)
    model = zoo.randomise(example.build_model(), 0)
    assert_equal_to_autocast(model, example.example_inputs(), {}, "amp-cpu-bf16", "training", eager=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(benchmark.SMALL))
def test_benchmark_models_equal_autocast(name: str) -> None:
    torch.manual_seed(0)
    model, args = benchmark.MODELS[name](**benchmark.SMALL[name])
    assert_equal_to_autocast(zoo.randomise(model, 0), args, {}, "amp-cpu-bf16", "training", eager=True)
