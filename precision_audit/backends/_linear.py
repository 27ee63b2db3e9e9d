"""A linear as a swap backend sees it: whose weight it is, its sizes, and what stands against a swap.

Takes an op and the graph's records; gives a `Linear`, or the one sentence that says why the op cannot be swapped by any
backend. A swap puts a module at the path of an `nn.Linear` and drops what was there, so the op must be that module's
own product of its own weight: exactly `nn.Linear` (a subclass carries more), not a linear called as a function
(attention's `in_proj_weight`), not a weight that is computed anew in every step.

What may stay: a weight tied to another parameter (it remains the same Parameter), a module called several times, and
whatever hooks compute around the op (they were captured as ops of their own).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from precision_audit.divisible import product
from precision_audit.records import Graph, Op, Tensor

PLAIN = "torch.nn.modules.linear.Linear"
FORMATS = ("fp32", "bf16", "fp16")  # what Float8Linear and TransformerEngine take; fp64 fails, complex is meaningless


@dataclass(frozen=True, slots=True)
class Linear:
    """y[M, N] = x[M, K] · weight[N, K] transposed; M is the product of the leading dimensions of x."""

    k: int | str
    n: int | str
    m: int | str
    m_example: int
    frozen: bool  # the weight needs no gradient
    known: frozenset[str]  # symbols whose value the example gives; others are known only at run time
    notes: tuple[str, ...]


def describe(op: Op, graph: Graph, *, trained: bool = True) -> Linear | str:
    """The linear's sizes and notes, or why it cannot be swapped. `trained`: by a module that autograd goes through."""
    index = index_of(graph)
    reason = _not_a_module(op, index) or _not_in_a_known_format(op, index)
    if trained:
        reason = reason or _changed_in_place(op, graph, index)
    if reason:
        return reason
    values = {operand.argument: operand.value for operand in op.operands}
    entering, weight = index.tensors[values["input"]], index.tensors[values["weight"]]
    lead = entering.hint[:-1]
    example = 1
    for size in lead:
        example *= size
    if len(weight.shape) != 2:
        return f"its weight is of shape {list(weight.shape)}, not [N, K]"
    n, k = weight.shape
    if 0 in (k, n):
        return f"K={k}, N={n}: a weight without elements has nothing to scale by"
    return Linear(
        k=k,
        n=n,
        m=product(entering.shape[:-1]),
        m_example=example,
        frozen=not weight.requires_grad,
        known=frozenset(name for name, _ in graph.symbols if not _at_run_time(name)),
        notes=tuple(_notes(op, values["weight"], index)),
    )


@dataclass(frozen=True, slots=True)
class Index:
    """What is asked of a graph once per linear, gathered once per graph."""

    tensors: Mapping[str, Tensor]
    makers: Mapping[str, Op]
    readers: Mapping[str, tuple[Op, ...]]
    by_module: Mapping[str, tuple[Op, ...]]
    ties: Mapping[str, tuple[str, ...]]


_last: list[tuple[Graph, Index]] = []


def index_of(graph: Graph) -> Index:
    """Of the graph asked about last; a graph with thousands of linears is read once."""
    if _last and _last[0][0] is graph:
        return _last[0][1]
    tensors: dict[str, Tensor] = {}
    makers: dict[str, Op] = {}
    readers: dict[str, list[Op]] = {}
    by_module: dict[str, list[Op]] = {}
    for op in graph.ops:
        for value, tensor in zip(op.values, op.outputs, strict=True):
            tensors[value], makers[value] = tensor, op
        for value in dict.fromkeys(operand.value for operand in op.operands):
            readers.setdefault(value, []).append(op)
        if op.operands:
            by_module.setdefault(op.module, []).append(op)
    ties = {key: group for group in graph.storages for key in group}
    index = Index(
        tensors,
        makers,
        {value: tuple(found) for value, found in readers.items()},
        {module: tuple(found) for module, found in by_module.items()},
        ties,
    )
    _last[:] = [(graph, index)]
    return index


def _not_a_module(op: Op, index: Index) -> str:
    if op.op != "linear":
        return f"{op.op} is not a linear"
    if op.region:
        return f"runs in a region of the user's own ({op.region}), whose format is theirs"
    values = {operand.argument: operand.value for operand in op.operands}
    weight = values["weight"]
    maker = index.makers[weight]
    if maker.kind not in ("parameter", "buffer", "constant"):
        return f"its weight is computed by {maker.key} (parametrization, weight norm, LoRA or a user's own), not stored"
    if op.module_type != PLAIN:
        if op.module and _owns(f"{op.module}.weight", weight, index):
            return f"{op.module} is {op.module_type}, not exactly nn.Linear: a swap would drop what the class adds"
        caller = op.module_type.rpartition(".")[2] or "the model"
        return f"functional linear: {caller} reads {weight} itself, no nn.Linear is called"
    if maker.kind != "parameter":
        return f"its weight {weight} is a {maker.kind}, not a parameter"
    if not op.module:
        return "the model itself is the nn.Linear, so there is no path to swap at: wrap it in nn.Sequential"
    return _foreign(op.module, values, index)


def _foreign(module: str, values: Mapping[str, str], index: Index) -> str:
    """Weight or bias of another module, read inside this one (by a hook, say)."""
    for name in ("weight", "bias"):
        own, value = f"{module}.{name}", values.get(name, "")
        if not value and own in index.tensors:
            return f"it does not read the module's own {own}"
        # A weight whose own name is no value of the graph was a second name of a tied one: capture kept the other.
        renamed = name == "weight" and own not in index.tensors
        if value and not renamed and not _owns(own, value, index):
            return f"its {name} is {value}, not the module's own {own}"
    return ""


def _owns(own: str, value: str, index: Index) -> bool:
    return value == own or own in index.ties.get(value, ())


def _not_in_a_known_format(op: Op, index: Index) -> str:
    for operand in op.operands:
        found = index.tensors[operand.value].format
        if found not in FORMATS:
            already = " already" if found.startswith("fp8") else ""
            return f"its {operand.argument} is{already} {found}; {', '.join(FORMATS[:-1])} or {FORMATS[-1]} is needed"
    return ""


def _changed_in_place(op: Op, graph: Graph, index: Index) -> str:
    """Without a bias the fp8 product is a view that autograd forbids to change (torchao 0.18, every recipe)."""
    if any(operand.argument == "bias" for operand in op.operands):
        return ""
    for group in graph.aliases:
        if op.key in group:
            writers = [each.key for value in group for each in index.readers.get(value, ()) if each.mutates]
            where = f"its output is changed in place by {min(writers, default='an op')}"
            return f"{where}, which autograd forbids after fp8 without a bias: write that op out of place"
    return ""


def _notes(op: Op, weight: str, index: Index) -> list[str]:
    """What the user should know although the swap is right."""
    notes: list[str] = []
    here = index.by_module[op.module]
    calls = [each for each in here if each.op == "linear" and each.module_type == PLAIN]
    if len(calls) > 1:
        notes.append(f"called {len(calls)} times: every call runs the one module")
    if others := [each.key for each in here if each.op != "linear"]:
        notes.append(f"what hooks compute stays as captured: {', '.join(others)}")
    tied = sorted({*index.ties.get(weight, ()), weight} - {f"{op.module}.weight"})
    if tied:
        notes.append(f"weight tied to {', '.join(tied)}: it stays one parameter")
    names = {weight, *tied}
    readers = sorted({r.key for name in names for r in index.readers.get(name, ()) if r.module != op.module})
    if readers:
        notes.append(f"the weight is also read by {', '.join(readers)}, in that op's own format")
    return notes


def _at_run_time(symbol: str) -> bool:
    """Sizes that data decide (experts' tokens, non-zeros) are called u0, u1 by torch; they may be zero."""
    return symbol[:1] == "u" and symbol[1:].isdigit()
