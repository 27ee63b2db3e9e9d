"""The low model once more beside the captured one, behind what it lost.

Takes a capture, policy, device, the example, the differences and the facts so far; gives `Rerun`s. Behind an element
that became infinite or NaN nothing can be seen: a second hazard there would show only after the first is mended. Where
elements were lost and a rule has a remedy, the ops it names are kept high and the model is run again; twice at most,
and not at all where nothing was lost or nothing new was found. What the kept ops add by themselves stays as it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from precision_audit import backends
from precision_audit.analyse.beside import beside
from precision_audit.analyse.deltas import Deltas
from precision_audit.capture import Captured
from precision_audit.decide import decide
from precision_audit.records import Facts, Hardware, Policy, Rerun
from precision_audit.verify.runs import Batch

ROUNDS = 2  # further runs, each one more pass of the model beside its low form


def again(
    captured: Captured, policy: Policy, hardware: Hardware, batch: Batch, deltas: Deltas, facts: Facts
) -> Iterator[Rerun]:
    """One record per further run; each op's own error goes into `deltas`."""
    kept: set[str] = set()
    last = facts.beside
    for _ in range(ROUNDS):
        if not any(each.lost for each in last):
            return
        found = decide(captured.graph, policy, hardware, backends.listed(), facts=facts).findings
        named = {key for finding in found if not finding.overridden for key in finding.pins}
        if named <= kept:
            return
        kept |= named
        deltas.flips.clear()
        last = beside(captured, policy, hardware, batch, deltas, kept)
        rerun = Rerun(tuple(op.key for op in captured.graph.ops if op.key in kept), last, tuple(deltas.flips))
        facts = replace(facts, again=(*facts.again, rerun))
        yield rerun
