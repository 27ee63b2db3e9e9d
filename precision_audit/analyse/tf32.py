"""TF32 emulated: how far off the products that stay in fp32 would be on a device that computes them in TF32.

Takes a capture, policy, device, the example and the process's flags; gives one `Tf32` per kind of product (matmul,
conv, rnn) that would run so: each op's own error (both factors rounded, the product in fp32, against the captured
product of the same operands) and that of the model's outputs with all ops of the kind rounded. Costs a forward, every
such product once more, and a forward per kind; nothing where no product is concerned: on devices without TF32, under
settings that leave it off, for products that the policy lowers anyway. Never changes the model or a setting.

The rounding is that of PTX's `cvt.rna.tf32.f32`: to 10 mantissa bits, to nearest, ties away from zero, which is how
CUTLASS prepares operands; NVIDIA says of its libraries that they round. Products of two such numbers are exact in fp32.
Not emulated: how tensor cores add, which is a matter of fp32's last bits, and kernels that leave the rounding to the
unit, which cuts the 13 low bits off and so is at most twice as far off in each factor.

Left alone, since CUDA does not run them in TF32 or what it does is not known:
    attention     the fp32 kernel (memory efficient) makes three TF32 products of each, as good as fp32, whatever is
                  set; only where it falls back to plain products would these obey the setting
    vectors       mv, dot, outer and einsum without a sum, which run outside tensor cores
    depthwise     convolutions of contiguous fp32 tensors, which have kernels of their own
    several       multi_dot, chains, powers: the order of their products is the library's
Recurrent ops are taken apart into their steps (`recurrent`); where that cannot be done, the states between the steps
are not rounded, which gives a lower bound.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from precision_audit import ops
from precision_audit.ambient import restored_on_error
from precision_audit.analyse.flags import ON_CPU, settings
from precision_audit.analyse.recurrent import stepped
from precision_audit.capture import Captured
from precision_audit.decide import decisions_alone
from precision_audit.hardware import has_tf32
from precision_audit.records import Graph, Hardware, Op, Policy, Tf32
from precision_audit.records import Tensor as TensorRecord
from precision_audit.rewrite import unchanged
from precision_audit.rewrite.converted import Converted
from precision_audit.verify.measures import measure
from precision_audit.verify.runs import Batch, Conditions, without_trace

_HALF, _KEPT, _EXPONENT = 0x1000, ~0x1FFF, 0x7F800000  # half of tf32's last place, the bits it keeps, fp32's exponent

# the setting that an op obeys, and the arguments that are its factors
_PRODUCTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "linear": ("matmul", ("input", "weight")),
    **dict.fromkeys(("matmul", "inner", "tensordot", "linalg_matmul"), ("matmul", ("self", "other"))),
    **dict.fromkeys(("mm", "bmm"), ("matmul", ("self", "mat2"))),
    **dict.fromkeys(("addmm", "_addmm_activation"), ("matmul", ("mat1", "mat2"))),
    **dict.fromkeys(("addbmm", "baddbmm"), ("matmul", ("batch1", "batch2"))),
    "einsum": ("matmul", ("tensors",)),
    **dict.fromkeys(  # written out in products of cuBLAS
        ("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"), ("matmul", ("input", "hx", "w_ih", "w_hh"))
    ),
    **dict.fromkeys(
        (
            *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
            *("convolution", "_convolution", "_convolution_mode"),
        ),
        ("conv", ("input", "weight")),
    ),
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), ("rnn", ("input", "data", "hx", "params"))),
}


def tf32(
    captured: Captured, policy: Policy, hardware: Hardware, batch: Batch, process: Sequence[tuple[str, str]]
) -> tuple[Tf32, ...]:
    """One record per kind of product that the policy keeps in fp32 and the device would run in TF32."""
    kinds = _concerned(captured.graph, policy, hardware, process)
    if not kinds:
        return ()
    module = unchanged({captured.graph.mode: captured})
    own: dict[str, float] = {}
    found = []
    with _exact_on_cpu(process):
        expected = _run(module, batch, kinds, own)
        for kind in dict.fromkeys(kinds.values()):
            keys = {key: each for key, each in kinds.items() if each == kind}
            errors = tuple((key, own[key]) for key in keys if key in own)
            if errors:
                found.append(Tf32(kind, errors, _apart(expected, _run(module, batch, keys, None))))
    return tuple(found)


def rounded(value: Tensor) -> Tensor:
    """An fp32 tensor with every element rounded to the nearest tf32 number, ties away from zero. Beyond the largest it
    is an infinity; infinities and NaN stay."""
    bits = value.view(torch.int32)
    finite = (bits & _EXPONENT) != _EXPONENT
    return torch.where(finite, (bits + _HALF) & _KEPT, bits).view(torch.float32)  # a carry goes into the exponent


def kind_of(op: Op, tensors: Mapping[str, TensorRecord]) -> str:
    """The setting (matmul, conv, rnn) under which a CUDA device with TF32 runs `op` in it, "" for none. `tensors` are
    the graph's values."""
    kind, factors = _PRODUCTS.get(op.op, ("", ()))
    read = [(each.argument, tensors[each.value]) for each in op.operands if each.argument in factors]
    if not read or any(tensor.format != "fp32" for _, tensor in (*read, ("", op.outputs[0]))):
        return ""
    if op.op == "einsum":
        inputs = [tensors[each.value] for each in op.operands]
        return kind if (ops.reduction_depth(op, inputs) or 0) > 1 else ""
    if kind == "matmul" and "cell" not in op.op and any(len(tensor.hint) < 2 for _, tensor in read):
        return ""
    return "" if kind == "conv" and _depthwise(op, dict(read)) else kind


def _concerned(graph: Graph, policy: Policy, hardware: Hardware, process: Sequence[tuple[str, str]]) -> dict[str, str]:
    """The kind of every op that would run in TF32, by op key, in graph order."""
    on = {kind for kind, each in settings(process, policy.environment).items() if each.tf32}
    if not on or not has_tf32(hardware) or policy.high != "fp32":
        return {}
    tensors = {value: tensor for op in graph.ops for value, tensor in zip(op.values, op.outputs, strict=True)}
    kinds = {op.key: kind_of(op, tensors) for op in graph.ops if op.op in _PRODUCTS}
    kinds = {key: kind for key, kind in kinds.items() if kind in on}
    if not kinds:
        return {}
    kept = {each.op for each in decisions_alone(graph, policy, hardware) if each.chosen == "fp32"}
    return {key: kind for key, kind in kinds.items() if key in kept}


@contextlib.contextmanager
def _exact_on_cpu(process: Sequence[tuple[str, str]]) -> Iterator[None]:
    """Without oneDNN where this process lets it make bf16 or TF32 parts of fp32 products on the CPU too. It is switched
    off as a whole, since its settings of precision cannot be put back as they were: they are read resolved."""
    onednn: Any = torch.backends.mkldnn
    coarse, before = any(name.startswith(ON_CPU) for name, _ in process), onednn.enabled
    if coarse:
        onednn.enabled = False
    try:
        yield
    finally:
        if coarse:
            onednn.enabled = before


def _depthwise(op: Op, read: Mapping[str, TensorRecord]) -> bool:
    """One channel in, one or more out of it: the weight is [channels x multiple, 1, ...]."""
    attributes = dict(op.attributes)
    groups, weight = attributes.get("groups", 1), read.get("weight")
    transposed = "transpose" in op.op or bool(attributes.get("transposed", False))
    alone = weight is not None and len(weight.hint) > 1 and weight.hint[1] == 1
    return alone and not transposed and isinstance(groups, int) and groups > 1


def _run(module: Converted, batch: Batch, kinds: Mapping[str, str], own: dict[str, float] | None) -> tuple[Any, ...]:
    """The model's flat outputs. With `own`, as captured, and each op's own error is written there; without, rounded."""
    conditions = Conditions(training=False, draws=False, written=module.written)
    with torch.no_grad(), restored_on_error(), without_trace(module, conditions):
        args, kwargs = pytree.tree_map_only(Tensor, lambda v: v.detach().clone(), (batch[0], dict(batch[1])))
        flat = module.flatten(args, kwargs)
        made: tuple[Any, ...] = _Emulated(module, kinds, own).run(*flat, enable_io_processing=False)
    return made


class _Emulated(fx.Interpreter):
    """One run of the graph; every node draws the same numbers in every run."""

    def __init__(self, module: Converted, kinds: Mapping[str, str], own: dict[str, float] | None) -> None:
        super().__init__(module, graph=module.graph)
        self._kinds, self._own = kinds, own
        self._seeds = {node: number for number, node in enumerate(module.graph.nodes)}

    def run_node(self, n: fx.Node) -> Any:
        key = n.meta.get("op_key", "")
        torch.default_generator.manual_seed(self._seeds[n])
        if key not in self._kinds:
            return super().run_node(n)
        if self._own is None:
            return self._rounded(n)
        result = super().run_node(n)
        first = result[0] if isinstance(result, list | tuple) else result
        assert isinstance(n.target, torch._ops.OpOverload)
        if not _is_wrapped(first) and not n.target._schema.is_mutable:  # what was overwritten cannot be computed again
            torch.default_generator.manual_seed(self._seeds[n])
            again = self._rounded(n)
            self._own[key] = _apart([first], [again[0] if isinstance(again, list | tuple) else again])
        return result

    def _rounded(self, n: fx.Node) -> Any:
        """The node's result with its factors rounded."""
        target = n.target
        assert isinstance(target, torch._ops.OpOverload)
        factors = _PRODUCTS[target._schema.name.partition("::")[2].removesuffix("_")][1]
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        names = [argument.name for argument in target._schema.arguments]
        if self._kinds[n.meta["op_key"]] == "rnn":
            made = stepped(target, {**dict(zip(names, args, strict=False)), **kwargs}, _plain_rounded)
            if made is not None:
                return made
        args = tuple(_factor(name, each, factors) for name, each in zip(names, args, strict=False))
        return target(*args, **{name: _factor(name, each, factors) for name, each in kwargs.items()})


def _factor(name: str, value: Any, factors: Sequence[str]) -> Any:
    """An argument with what enters a product rounded: of (hidden, cell) states the first, of parameters no bias."""
    if name not in factors:
        return value
    if isinstance(value, list | tuple):
        enters = [each for each in value if name != "params" or each.dim() > 1]
        enters = enters[:1] if name == "hx" else enters
        return [_factor(name, each, factors) if any(each is one for one in enters) else each for each in value]
    return _plain_rounded(value) if isinstance(value, Tensor) else value


def _plain_rounded(value: Tensor) -> Tensor:
    plain = value.dtype == torch.float32 and value.layout == torch.strided
    return rounded(value) if plain and not _is_wrapped(value) else value


def _is_wrapped(value: Tensor) -> bool:
    """Inside the user's vmap or grad: not a tensor of its own, and left as it is."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(value))


def _apart(expected: Sequence[Any], made: Sequence[Any]) -> float:
    """The largest relative L2 of any float tensor; what is infinite or NaN in the first counts for nothing."""
    found = 0.0
    for one, other in zip(expected, made, strict=True):
        if isinstance(one, Tensor) and one.is_floating_point():
            error = measure(one, other).relative_l2
            found = max(found, math.inf if math.isnan(error) else error)
    return found
