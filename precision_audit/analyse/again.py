"""The low model once more beside the captured one, behind what went wrong in it.

Takes a capture, policy, device, the example, the differences and the facts so far; gives `Rerun`s. Behind an element
that became infinite or NaN nothing can be seen, and behind a large error little: a second hazard there would show only
after the first is mended. Where elements were lost, or an output is off by more than the policy allows, and a rule has
a remedy, the ops it names are kept high and the model is run again; twice at most, and not at all where the outputs are
right or nothing new was found. What the kept ops add by themselves stays as it was.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from precision_audit import backends
from precision_audit.analyse.beside import beside
from precision_audit.analyse.deltas import Deltas
from precision_audit.capture import Captured
from precision_audit.decide import decide
from precision_audit.records import Beside, Facts, Hardware, Policy, Rerun
from precision_audit.verify.limits import limit
from precision_audit.verify.runs import Batch

ROUNDS = 2  # further runs, each one more pass of the model beside its low form


def again(
    captured: Captured, policy: Policy, hardware: Hardware, batch: Batch, deltas: Deltas, facts: Facts
) -> Iterator[Rerun]:
    """One record per further run; each op's own error goes into `deltas`."""
    kept: set[str] = set()
    last = facts.beside
    for _ in range(ROUNDS):
        if not _wrong(last, captured, policy):
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


def _wrong(seen: Sequence[Beside], captured: Captured, policy: Policy) -> bool:
    """Whether elements were lost anywhere, or an output is another one than the policy allows."""
    tolerance = limit(policy, "relative_l2", "") or math.inf
    outputs = set(captured.graph.outputs)
    return any(each.lost or (each.value in outputs and (each.drift > tolerance or each.changed)) for each in seen)
