"""Put the modules that replace linears at the paths of the originals.

Takes the state tree of a conversion, the capture and its plan; replaces each planned path by what the backend builds
around the *same* parameters, so that state-dict keys, ties and optimizers stay valid. Never chooses: the plan lists
the swaps.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from precision_audit import backends
from precision_audit.capture import Captured
from precision_audit.records import Plan, Swap

Build = Callable[[nn.Linear, Swap], nn.Module]


def put_modules(state: nn.Module, captured: Captured, plan: Plan, build: Build | None = None) -> None:
    """Replace the module at each planned path; a module that is called twice is built once. `build` makes the modules
    instead of the backends."""
    done: set[str] = set()
    for swap in plan.swaps:
        if swap.module in done:
            continue
        holder = state.get_submodule(swap.module)
        if isinstance(holder, nn.Linear):  # already swapped for the other mode
            continue
        make = build or backends.get(swap.backend).build
        built = make(_linear_of(holder, plan.mode == "training"), swap)
        parent, _, name = swap.module.rpartition(".")
        setattr(state.get_submodule(parent), name, built)
        done.add(swap.module)


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
