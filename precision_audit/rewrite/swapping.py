"""Put the modules that replace linears at the paths of the originals.

Takes the state tree of a conversion and a plan; replaces each planned path by what the backend builds around the
*same* parameters, so that state-dict keys, ties and optimizers stay valid. A swap that computes several ops at once
goes beside the linear, under a name of its own, and only knows its parameters: they stay registered where the model
has them. Never chooses: the plan lists the swaps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from torch import fx, nn

from precision_audit import backends
from precision_audit.records import Plan, Swap

Build = Callable[[nn.Linear, Swap], nn.Module]


def places(state: nn.Module, plans: Iterable[Plan]) -> dict[tuple[str, str], str]:
    """Where the module of each swap goes, by module and kind."""
    found: dict[tuple[str, str], str] = {}
    for swap in (swap for plan in plans for swap in plan.swaps):
        if (swap.module, swap.kind) in found:
            continue
        path = swap.module
        if swap.covers:
            path = f"{path}_{swap.kind.rpartition('.')[2]}"
            while _holds(state, path) or path in found.values():
                path += "_"
        found[swap.module, swap.kind] = path
    return found


def put_modules(state: nn.Module, plan: Plan, at: Mapping[tuple[str, str], str], build: Build | None = None) -> None:
    """Put a module at each planned path; one that is called twice, known under two names, or in both modes is built
    once. `build` makes the modules of single linears instead of the backends."""
    make = build or backends.module_for
    training = plan.mode == "training"
    made: dict[tuple[object, ...], nn.Module] = {}
    for swap in plan.swaps:
        path = at[swap.module, swap.kind]
        parent, _, name = path.rpartition(".")
        holder = state.get_submodule(parent)
        if swap.covers:
            if name not in holder._modules:
                parameters = {own: _parameter(state, key) for own, key in swap.parameters}
                holder.add_module(name, backends.fused_module_for(parameters, swap, training))
        elif type(bare := state.get_submodule(path)) is nn.Module:  # else already swapped
            same = (id(bare.weight), id(getattr(bare, "bias", None)), swap.backend, swap.recipe)
            if same not in made:
                made[same] = make(_linear_of(bare, training), swap)
            setattr(holder, name, made[same])


def call(
    graph: fx.Graph, nodes: Mapping[str, fx.Node], order: Mapping[fx.Node, int], swap: Swap, path: str
) -> dict[str, fx.Node]:
    """One call of the module at `path` for all that the swap computes; the nodes that changed, by op key. `order` is
    that of the captured nodes."""
    computed = [nodes[key] for key in swap.ops]
    first, last = min(computed, key=order.__getitem__), max(computed, key=order.__getitem__)
    with graph.inserting_before(last):
        swapped = graph.call_module(path, (first.args[0],))
    swapped.meta.update(last.meta)
    last.replace_all_uses_with(swapped)
    for node in sorted(_within(computed), key=order.__getitem__, reverse=True):
        graph.erase_node(node)
    return {key: swapped for key in swap.ops}


def _within(computed: Iterable[fx.Node]) -> set[fx.Node]:
    """The nodes of the ops and those that pick one of several outputs of one."""
    ops = set(computed)
    return ops | {user for node in ops for user in node.users if user.op == "call_function" and _picks(user)}


def _picks(node: fx.Node) -> bool:
    return getattr(node.target, "__name__", "") == "getitem"


def _parameter(state: nn.Module, key: str) -> nn.Parameter:
    path, _, name = key.rpartition(".")
    value = getattr(state.get_submodule(path), name)
    assert isinstance(value, nn.Parameter)
    return value


def _holds(state: nn.Module, path: str) -> bool:
    parent, _, name = path.rpartition(".")
    return hasattr(state.get_submodule(parent), name)


def _linear_of(holder: nn.Module, training: bool) -> nn.Linear:
    """A plain linear around the parameters that the bare holder has."""
    weight = holder.weight
    assert isinstance(weight, nn.Parameter)
    bias = getattr(holder, "bias", None)
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    linear.weight = weight
    if bias is not None:
        linear.bias = bias
    return linear.train(training)
