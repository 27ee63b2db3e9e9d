"""The model zoo of the suite: small but real models that the checks run on, by name.

`build(name)` gives (module, args, kwargs): seeded, in evaluation mode, with everything random that a fresh module
leaves at zero or one. Untouched initial values make checks vacuous: with a zero head every format agrees, with unit
statistics a batch norm does nothing. So `build` also runs a copy once and refuses a model whose output is constant.

The models themselves are in `zoo_networks` (what people build), `zoo_formats` (formats chosen by the user: regions,
casts, models that are not fp32) and `zoo_ops` (state, several outputs, indices, ops with a difficulty of their own);
each is a function without arguments. `MODELS` is the whole list; those from transformers are in it only when that
package is there. `load_example` imports one of the scripts in `examples/`.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from tests import zoo_formats, zoo_networks, zoo_ops

Built = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]

EXAMPLES = Path(__file__).parents[1] / "examples"

HAVE_TRANSFORMERS = importlib.util.find_spec("transformers") is not None
NEED_TRANSFORMERS = ("small_bert", "small_llama")

FACTORIES: dict[str, Callable[[], Built]] = {
    name: factory
    for zoo in (zoo_networks.MODELS, zoo_formats.MODELS, zoo_ops.MODELS)
    for name, factory in zoo.items()
    if HAVE_TRANSFORMERS or name not in NEED_TRANSFORMERS
}
MODELS: tuple[str, ...] = tuple(sorted(FACTORIES))

# No output has a gradient path to a parameter.
NO_GRADIENT = frozenset({"integer_output"})
# Formats other than fp32 in parameters or inputs as built.
NOT_FP32 = frozenset({"fp16_model", "bf16_model", "mixed_fp16_fp32", "float64_model"})
# In evaluation mode eager runs a fused kernel that a captured graph does not have; differs by 1e-6.
EAGER_FAST_PATH = frozenset({"transformer_encoder", "multi_head_attention"})


def build(name: str, seed: int = 0) -> Built:
    """One model, ready to be checked."""
    torch.manual_seed(seed)
    module, args, kwargs = FACTORIES[name]()
    randomise(module.eval(), seed)
    with torch.no_grad():
        trial = copy.deepcopy(module)(*copy.deepcopy(args), **copy.deepcopy(kwargs))
    assert_not_constant(trial)
    return module, args, kwargs


def randomise(module: nn.Module, seed: int) -> nn.Module:
    """Fill, in place and in their own format, what initialisation leaves constant: parameters all of one value (zero
    biases and heads, norm affines of one and zero) and running statistics. Shapes, names and ties stay."""
    generator = torch.Generator().manual_seed(seed)

    def normal(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=generator, dtype=torch.float64)

    with torch.no_grad():
        for _, parameter in module.named_parameters():
            if constant(parameter):
                value = parameter.flatten()[0].double().item()
                parameter.copy_(value + 0.2 * normal(parameter))
        for name, buffer in module.named_buffers():
            if name.endswith("running_mean"):
                buffer.copy_(0.3 * normal(buffer))
            elif name.endswith("running_var"):
                buffer.copy_(0.5 + normal(buffer).abs())
    return module


def constant(tensor: Tensor) -> bool:
    """All elements the same. A single element that is not zero is a value someone chose, and no constant."""
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return False
    first = tensor.flatten()[0]
    return bool((tensor == first).all()) and (tensor.numel() > 1 or first.item() == 0)


def assert_not_constant(output: Any) -> None:
    """Every tensor that the model gives is finite and, where it has several elements, not all one value; where it has
    several rows, not all the same row (an output that ignores its input is as good as constant)."""
    seen = [tensor for tensor in tensors(output) if tensor.numel() > 0]
    assert seen, "the model gives no tensor"
    for tensor in seen:
        if tensor.is_floating_point() or tensor.is_complex():
            assert torch.isfinite(tensor).all(), "the model's output is not finite"
        if tensor.numel() > 1:
            assert (tensor != tensor.flatten()[0]).any(), "the model's output is constant"
        if tensor.ndim > 1 and len(tensor) > 1:
            assert (tensor != tensor[0]).any(), "all rows of the model's output are the same"


def loss_of(output: Any) -> Tensor | None:
    """A scalar that gives every float element of the output a weight of its own in (-1, 1); None where nothing in the
    output has a gradient. Zero-size and integer outputs count for nothing."""
    total: Tensor | None = None
    for tensor in tensors(output):
        if not tensor.requires_grad or tensor.numel() == 0:
            continue
        real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        weights = torch.rand(real.shape, generator=torch.Generator().manual_seed(real.numel())) * 2 - 1
        term = (real.to(torch.float64) * weights).mean()
        total = term if total is None else total + term
    return total


def tensors(output: Any) -> Iterator[Tensor]:
    """Tensors of a nested output, in order; dataclasses that torch does not know are looked into."""
    for leaf in tree_leaves(output):
        if isinstance(leaf, Tensor):
            yield leaf
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            for field in dataclasses.fields(leaf):
                yield from tensors(getattr(leaf, field.name))
        elif isinstance(leaf, Mapping):
            yield from tensors(list(leaf.values()))


def load_example(name: str) -> ModuleType:
    """A module of `examples/`, whose names start with a digit and so cannot be imported by statement."""
    title = f"example_{Path(name).stem}"
    if title not in sys.modules:
        spec = importlib.util.spec_from_file_location(title, EXAMPLES / name)
        assert spec is not None and spec.loader is not None
        sys.modules[title] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[title]
