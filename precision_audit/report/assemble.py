"""From everything that was found to one `Report`: provenance, verdict, what to do next.

Takes the records of all stages; gives the record that the files of `report/` render. Computes digests and counts, and
judges nothing that `verdict.py` does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from precision_audit import autocast, backends
from precision_audit.hardware.local import NAME as LOCAL
from precision_audit.planning import Planned
from precision_audit.records import Facts, Graph, Hardware, Meta, Plan, Policy, Report, Verification
from precision_audit.report import phrases, provenance, verdict
from precision_audit.report.findings import by_place
from precision_audit.verify.runs import Batch

SCHEMA = 1


def assemble(
    graph: Graph,
    made: Planned,
    verification: Verification | None,
    policy: Policy,
    meta: Meta,
    said: Mapping[str, str],
    kernels: str,
) -> Report:
    """The report. `said` is what the caller knows of the origins, `kernels` the device ("cpu", "cuda") whose
    autocast the casts stand beside."""
    made_up = said.get("made_up", "")
    judged, reasons = verdict.judge(made.findings, graph, made.plan, verification, policy, made_up=made_up)
    return Report(
        schema=SCHEMA,
        meta=meta,
        verdict=judged,
        summary=verdict.summary(judged, reasons, made.findings, made.plan, policy),
        graph=replace(graph, notes=tuple(dict.fromkeys(graph.notes))),
        decisions=made.decisions,
        findings=by_place(made.findings),
        plan=made.plan,
        verification=verification,
        autocast_casts=autocast.autocast_cast_count(graph, policy.autocast or kernels),
        next_steps=verdict.next_steps(
            judged,
            reasons,
            made.findings,
            model=meta.model,
            policy=policy.name,
            failed=_lowered(verification.first_parting, made.plan) if verification else "",
            options=said.get("options", ""),
            elsewhere=bool(backends.stand_ins(made.plan)),
        ),
    )


def _lowered(key: str, plan: Plan) -> str:
    """The op, if the plan runs it low: to keep high what is high already helps nobody."""
    return key if dict(plan.formats).get(key, plan.low) != plan.high else ""


def provenance_of(
    original: nn.Module | torch.export.ExportedProgram,
    policy: Policy,
    hardware: Hardware,
    device_from: str,
    plan: Plan,
    facts: Facts,
    batches: Sequence[Batch],
    said: Mapping[str, str],
) -> Meta:
    """Where everything came from, but for the weights' digest. `said` is what the caller knows of the origins."""
    return Meta(
        tool="precision-audit",
        versions=provenance.versions(),
        model=said.get("model") or type(original).__name__,
        policy=policy.name,
        policy_digest=policy.digest,
        device=hardware.name,
        device_from=device_from,
        weights=said.get("weights", "weights as given"),
        weights_digest="",
        inputs=said.get("inputs", "inputs as given"),
        batches=len(batches),
        parameters=facts.parameters,
        command=said.get("command", ""),
        emulated=provenance.emulated(plan),
        calibration_digest=provenance.batches_digest(batches),
        notes=_lacking(facts),
        machine=hardware.title if hardware.name == LOCAL else "",
    )


def _lacking(facts: Facts) -> tuple[str, ...]:
    """What the evidence lacks, which lowers the confidence in having found everything."""
    return tuple(dict.fromkeys((*([] if facts.batches else [phrases.NOTHING_RUN]), *facts.notes)))
