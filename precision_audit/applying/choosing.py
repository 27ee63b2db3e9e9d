"""The ways to put a plan onto module boundaries, best first.

Takes graph and plan; gives `Choice`s: formats passed from island to island where that is right (`flow.py`); every
island closed, giving the high format; nothing but the swaps. The later ones are for models that a trial run shows to
do what the graph does not say (a module that returns its own input, say).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from precision_audit.applying.fitting import Names
from precision_audit.applying.flow import Flow, flow
from precision_audit.applying.islands import Layout, layout
from precision_audit.applying.reads import Reads, reads_of
from precision_audit.records import Fold, Graph, Plan
from precision_audit.records.applied import Hooked


@dataclass(frozen=True, slots=True)
class Choice:
    """What to store and hook; `runs` is the format of every op outside the islands, `reasons` why a module is none."""

    stored: tuple[Fold, ...]
    hooked: tuple[Hooked, ...]
    runs: Mapping[str, str]
    planned: Mapping[str, str]  # with ops that move values in the format that they are read in
    reasons: Mapping[str, str]


def choices(graph: Graph | None, plan: Plan, names: Names) -> Iterator[Choice]:
    """The choices, made when asked for."""
    if graph is None or plan.high == plan.low:
        yield Choice((), (), {}, {}, {})
        return
    reads = reads_of(graph, plan)
    found = layout(reads, _storable(reads, names))
    yield _choice(reads, found, flow(reads, found))
    yield _choice(reads, found, flow(reads, found, dict.fromkeys((each.module for each in found.islands), plan.high)))
    bare = layout(reads, ()) if not found.islands else Layout((), (), {}, {"": "the model raised with hooks"})
    yield _choice(reads, bare, flow(reads, bare))


def _choice(reads: Reads, found: Layout, settled: Flow) -> Choice:
    # An island takes its format even from those that give it: other calls, of other shapes, may come another way.
    hooked = {
        island.module: Hooked(island.module, island.takes, settled.gives[island.module])
        for island in found.islands
        if island.takes or settled.gives[island.module]
    }
    if settled.raised:
        hooked[""] = Hooked("", hooked[""].takes if "" in hooked else "", reads.plan.high)
    return Choice(
        found.stored, tuple(hooked[path] for path in sorted(hooked)), settled.runs, reads.formats, found.reasons
    )


def _storable(reads: Reads, names: Names) -> Iterator[str]:
    """Folded state that the model has, alone in its storage: two parameters that view one memory would come apart."""
    group = {name: members for members in reads.graph.storages for name in members}
    for fold in reads.plan.folds:
        tensor = names.tensor(fold.value)
        others = [names.tensor(name) for name in group.get(fold.value, ())]
        if tensor is not None and all(other is tensor for other in others):
            yield fold.value
