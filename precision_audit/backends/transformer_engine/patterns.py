"""Where a graph has what TransformerEngine computes in one module: norm → linear, and norm → linear → act → linear.

Takes a linear and the graph's records; gives what stands around it, or why it stays `te.Linear`. A module that takes
the place of several ops must be the only reader of every value inside, compute the same function, and hold the very
same parameters. So:

    norm         exactly `nn.LayerNorm` with weight and bias or `nn.RMSNorm` with weight and eps, over the last axis
    readers      the linear alone reads the norm's output. Of q, k and v that read one norm each would compute it again,
                 and one module for the three would need one weight made of three copies: they stay `te.Linear`
    activation   what `te.LayerNormMLP` computes: relu, silu, gelu in its tanh approximation (the exact gelu is another
                 function); gated, the first half of the linear's output is activated and multiplied by the second.
                 gate and up as two linears would need one weight made of two copies
    biases       of both linears or of none
    calls        one call of each module; nothing between (dropout), nothing of the user's own region or format
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from precision_audit.backends._linear import PLAIN, Index, index_of
from precision_audit.records import Graph, Op, Swap

_NORMS = {
    "layer_norm": ("torch.nn.modules.normalization.LayerNorm", "LayerNorm"),
    "rms_norm": ("torch.nn.modules.normalization.RMSNorm", "RMSNorm"),
}
# aten op → activation of te.LayerNormMLP, alone and gated. Its gelu is the tanh approximation (common/util/math.h).
_ACTIVATIONS = {
    "relu": ("relu", "reglu"),
    "silu": ("silu", "swiglu"),
    "gelu": ("gelu", "geglu"),
    "sigmoid": ("", "glu"),
}
_NAMES = {  # a module's own names of the parameters of norm and linears
    "te.LayerNormLinear": ("layer_norm_weight", "layer_norm_bias", "weight", "bias"),
    "te.LayerNormMLP": ("layer_norm_weight", "layer_norm_bias", "fc1_weight", "fc1_bias"),
}


@dataclass(frozen=True, slots=True)
class Norm:
    key: str
    module: str
    normalization: str  # as te calls it
    eps: float


@dataclass(frozen=True, slots=True)
class Mlp:
    """What follows the first linear."""

    activation: str  # as te calls it
    between: tuple[str, ...]  # keys of the ops of the activation
    second: str  # key of the second linear
    module: str  # of the second linear
    biased: bool


def norm_before(key: str, graph: Graph) -> Norm | None:
    """The norm that the linear alone reads, None where there is none or it cannot be computed inside."""
    found = _norm(key, graph)
    return found if isinstance(found, Norm) else None


def why_alone(op: Op, graph: Graph) -> Iterator[str]:
    """Why the linear stays `te.Linear` although it reads a norm; nothing where no norm is read."""
    found = _norm(op.key, graph)
    if isinstance(found, str) and found:
        yield f"te.Linear, not te.LayerNormLinear: {found}"


def mlp_after(key: str, graph: Graph) -> Mlp | None:
    """Activation and second linear, where they are all that reads the first."""
    index = index_of(graph)
    first = index.makers[key]
    found = _activation(first, graph, index)
    if found is None or _calls(first, index) > 1:
        return None
    activation, between = found
    last = between[-1]
    readers = _readers(last.key, graph, index)
    if len(readers) != 1 or readers[0].op != "linear" or readers[0].module_type != PLAIN:
        return None
    second = readers[0]
    values = {operand.argument: operand.value for operand in second.operands}
    biased = _biased(first)
    narrow = index.tensors[values["weight"]].shape[0] == index.tensors[_weight(first)].shape[1]
    if values["input"] != last.key or biased != _biased(second) or not narrow or _calls(second, index) > 1:
        return None
    if not _plain(second, first):
        return None
    return Mlp(activation, tuple(op.key for op in between), second.key, second.module, biased)


def layer_norm_linear(swap: Swap, norm: Norm) -> Swap:
    """The swap with the norm inside."""
    options = (("eps", norm.eps), ("normalization", norm.normalization))
    return _fused(swap, "te.LayerNormLinear", norm, (norm.key,), options)


def layer_norm_mlp(swap: Swap, norm: Norm, mlp: Mlp) -> Swap:
    """The swap with norm, activation and second linear inside; N stays that of the first linear."""
    options = (("activation", mlp.activation), ("eps", norm.eps), ("normalization", norm.normalization))
    made = _fused(swap, "te.LayerNormMLP", norm, (norm.key, *mlp.between, mlp.second), options)
    second = [("fc2_weight", f"{mlp.module}.weight")] + [("fc2_bias", f"{mlp.module}.bias")] * mlp.biased
    kept = tuple(each for each in made.parameters if mlp.biased or each[0] != "fc1_bias")
    return replace(made, parameters=(*kept, *second))


def gated(activation: str) -> bool:
    """Whether half of the first linear's output gates the other half."""
    return activation.endswith("glu")


def _fused(swap: Swap, kind: str, norm: Norm, covers: tuple[str, ...], options: tuple[tuple[str, object], ...]) -> Swap:
    norm_bias = norm.normalization == "LayerNorm"
    theirs = (f"{norm.module}.weight", f"{norm.module}.bias", f"{swap.module}.weight", f"{swap.module}.bias")
    named = [(own, key) for own, key in zip(_NAMES[kind], theirs, strict=True) if norm_bias or own != "layer_norm_bias"]
    if ("bias", False) in swap.options:
        named = [each for each in named if each[1] != theirs[3]]
    return replace(swap, kind=kind, covers=covers, parameters=tuple(named), options=(*swap.options, *options))


def _norm(key: str, graph: Graph) -> Norm | str:
    """The norm, why it stays outside, or "" where the linear reads none."""
    index = index_of(graph)
    linear = index.makers[key]
    value = next(operand.value for operand in linear.operands if operand.argument == "input")
    norm = index.makers[value]
    if norm.op not in _NORMS:
        return ""
    kind, name = _NORMS[norm.op]
    if norm.module_type != kind:
        return f"{norm.key} is no call of nn.{name} itself"
    others = [op.module or op.key for op in _readers(value, graph, index) if op.key != key]
    if others or value in graph.outputs:
        return f"{norm.module} is also read by {', '.join(others) or 'the caller of the model'}"
    attributes = dict(norm.attributes)
    reason = _unfit(norm, attributes, name, index) or ("" if _plain(norm, linear) else "its format is the user's own")
    if reason:
        return f"{norm.module}: {reason}"
    if _calls(linear, index) > 1 or _calls(norm, index) > 1:
        return f"{linear.module} or {norm.module} is called more than once"
    return Norm(norm.key, norm.module, name, float(str(attributes["eps"])))


def _unfit(norm: Op, attributes: dict[str, object], name: str, index: Index) -> str:
    values = {operand.argument: operand.value for operand in norm.operands}
    for part in ("weight", "bias")[: 2 if name == "LayerNorm" else 1]:
        if part not in values:
            return f"it has no {part}, and te.{name} always has one"
        if values[part] != f"{norm.module}.{part}" or index.makers[values[part]].kind != "parameter":
            return f"its {part} is {values[part]}, not its own parameter"
    shape = attributes.get("normalized_shape")
    if not isinstance(shape, tuple | list) or len(shape) != 1:
        return "it is over more than the last axis"
    if not isinstance(attributes.get("eps"), int | float):
        return "its eps is that of the format it runs in; te.RMSNorm wants a number"
    return ""


def _activation(first: Op, graph: Graph, index: Index) -> tuple[str, list[Op]] | None:
    """te's name of what follows the first linear, and its ops."""
    readers = _readers(first.key, graph, index)
    if len(readers) != 1 or not _plain(readers[0], first):
        return None
    only = readers[0]
    if only.op in _ACTIVATIONS:
        name = _ACTIVATIONS[only.op][0]
        return (name, [only]) if name and _computes(only) else None
    halves = _halves(only)
    if halves is None:
        return None
    activated, factor = (_readers(value, graph, index) for value in halves)
    if len(activated) != 1 or len(factor) != 1 or activated[0].op not in _ACTIVATIONS or factor[0].op != "mul":
        return None
    act, mul = activated[0], factor[0]
    reads = sorted(operand.value for operand in mul.operands)
    fits = reads == sorted((act.key, halves[1])) and _readers(act.key, graph, index) == (mul,)
    if not fits or not _computes(act) or not (_plain(act, first) and _plain(mul, first)):
        return None
    return _ACTIVATIONS[act.op][1], [only, act, mul]


def _halves(op: Op) -> tuple[str, str] | None:
    """The two values that a linear's output is cut into along its last axis."""
    if op.op not in ("chunk", "split") or len(op.outputs) != 2:
        return None
    axis, rank = dict(op.attributes).get("dim", 0), len(op.outputs[0].shape)
    last = axis in (-1, rank - 1) and op.outputs[0].shape[-1] == op.outputs[1].shape[-1]
    return (op.values[0], op.values[1]) if last else None


def _computes(act: Op) -> bool:
    return act.op != "gelu" or dict(act.attributes).get("approximate", "none") == "tanh"


def _plain(op: Op, like: Op) -> bool:
    """Nobody fixed the op's format, and it has the linear's."""
    return (
        op.region == like.region == ""
        and not op.mutates
        and op.fixed == like.fixed
        and {tensor.format for tensor in op.outputs} == {like.outputs[0].format}
    )


def _readers(value: str, graph: Graph, index: Index) -> tuple[Op, ...]:
    """Who reads a value; the model's output counts as a reader that no module can replace."""
    found = index.readers.get(value, ())
    return (*found, *found, *found) if value in graph.outputs else found


def _calls(op: Op, index: Index) -> int:
    return sum(each.op == op.op for each in index.by_module[op.module])


def _weight(linear: Op) -> str:
    return next(operand.value for operand in linear.operands if operand.argument == "weight")


def _biased(linear: Op) -> bool:
    return any(operand.argument == "bias" for operand in linear.operands)
