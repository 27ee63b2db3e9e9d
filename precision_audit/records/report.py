"""Everything that was found, as one record."""

from __future__ import annotations

from dataclasses import dataclass, field

from precision_audit.records.cost import Cost
from precision_audit.records.facts import NO_FACTS, Facts
from precision_audit.records.findings import Finding
from precision_audit.records.graph import Graph
from precision_audit.records.measured import Quantised
from precision_audit.records.plan import Decision, Plan
from precision_audit.records.search import Search
from precision_audit.records.training import Training
from precision_audit.records.verification import Verification
from precision_audit.records.words import Verdict


@dataclass(frozen=True, slots=True)
class Meta:
    """Provenance of a report."""

    tool: str
    versions: tuple[tuple[str, str], ...]
    model: str
    policy: str
    policy_digest: str
    device: str
    device_from: str
    weights: str
    weights_digest: str
    inputs: str
    batches: int
    parameters: int
    command: str = ""
    emulated: tuple[str, ...] = ()
    calibration_digest: str = ""
    notes: tuple[str, ...] = ()  # what the evidence lacks, one sentence each
    machine: str = ""  # what device `local` is, "" for a row of the table


@dataclass(frozen=True, slots=True)
class Report:
    schema: int
    meta: Meta
    verdict: Verdict
    summary: str
    graph: Graph
    decisions: tuple[Decision, ...]
    findings: tuple[Finding, ...]
    plan: Plan
    verification: Verification | None
    autocast_casts: int = 0  # casts torch.autocast would make on the same graph
    next_steps: tuple[str, ...] = field(default=())
    training: Training | None = None
    cost: Cost | None = None
    quantised: tuple[Quantised, ...] = ()  # linears under every quantisation, where that was measured
    search: Search | None = None
    facts: Facts = field(default=NO_FACTS, metadata={"written": False})  # what the findings rest on; in no file


@dataclass(frozen=True, slots=True)
class Lint:
    """What a lint of training scripts found. `loops`: training loops in all files."""

    schema: int
    tool: str
    files: tuple[str, ...]
    loops: int
    summary: str
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()  # files in a folder that could not be read, one sentence each
