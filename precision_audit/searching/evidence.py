"""Everything that a search knows before it runs a plan; measured once, and enough for every budget.

Takes a model, its inputs and what may be chosen; gives `Evidence`: the captured model, the reference's outputs and, per
low format, a `Base`: the facts, what was decided, the error share of every source and of every way to swap a linear,
and the time each would take. Nothing here depends on a budget, so that another one needs no new evidence. The user's
module is never changed.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from precision_audit import pipeline, recipes
from precision_audit.analyse import analyse
from precision_audit.analyse.deltas import LIMIT, SWAP, Deltas, swap_source
from precision_audit.analyse.sensitivity import sensitivities
from precision_audit.capture import Captured, private_copy
from precision_audit.capture.accepts import check_model
from precision_audit.capture.origins import has_weights
from precision_audit.capturing import captures as captures_of
from precision_audit.cost import swapped
from precision_audit.decide import Decided
from precision_audit.loader.checkpoint import check_parameters
from precision_audit.loader.sample_inputs import check_call
from precision_audit.plan.choosing import HIGH, Choices, Source
from precision_audit.planning import judged
from precision_audit.records import Facts, Graph, Hardware, InputError, Mode, Policy, Share, Swap
from precision_audit.report.provenance import started_digest
from precision_audit.rewrite import unchanged
from precision_audit.searching import running, space
from precision_audit.searching.alternatives import alternatives, lacks, scheme_of, together, unbuilt
from precision_audit.suppressions import read as read_suppressions
from precision_audit.verify.comparing import eager
from precision_audit.verify.runs import Batch


@dataclass(frozen=True)
class Base:
    """One low format: what is free in it and what it costs. `unknown` are free ops whose error no gradient tells,
    `lost` those that lose elements in the low format; both by key with the reason."""

    policy: Policy
    facts: Facts
    decided: Decided
    shares: Mapping[Source, float]
    choices: Choices
    free: tuple[str, ...]
    unknown: Mapping[str, str]
    lost: Mapping[str, str]


@dataclass
class Evidence:
    """What every search on one model and device shares; `passes` counts how often evidence was taken."""

    original: Any
    captures: Mapping[Mode, Captured]
    hardware: Hardware
    device_from: str
    reference: running.Reference
    bases: tuple[Base, ...]
    signature: inspect.Signature | None
    missing: str
    eager: str
    weights_digest: str
    said: Mapping[str, str]
    notes: tuple[str, ...]
    lacking: tuple[str, ...] = ()  # recipes that the policy names and the device has not, each with the reason
    left_out: tuple[str, ...] = ()  # recipes that were not considered, because they cannot be built here
    passes: int = 1
    known: dict[tuple[str, str], Any] = field(default_factory=dict)  # planners, by base: see `frontier`

    @property
    def mode(self) -> Mode:
        return self.bases[0].policy.mode

    @property
    def graph(self) -> Graph:
        return self.captures[self.mode].graph

    @property
    def batches(self) -> Sequence[Batch]:
        return self.reference.batches


def gather(request: pipeline.Request, policies: Sequence[Policy], built_only: bool = False) -> Evidence:
    """Capture, analyse and run the reference. `policies` are as written; `built_only` leaves out swaps whose module
    cannot be built here."""
    pipeline.check_arguments(request.args, request.kwargs)
    model, (args, kwargs) = request.model, pipeline.usable((tuple(request.args), dict(request.kwargs or {})))
    hardware, device_from = pipeline.device_of(request.device, policies[0])
    batches = pipeline.batches_of(args, kwargs, request.calibration)
    check_model(model)
    if isinstance(model, nn.Module):
        for index, batch in enumerate(batches):
            which = f"calibration batch {index - 1}" if index else "example inputs"
            check_call(model, *batch, f"{type(model).__name__}, {which}")
    check_parameters(model)
    if not has_weights(model):
        raise InputError(
            f"{type(model).__name__} has no weights (it is on the meta device): a search runs plans; load its weights"
        )
    original = private_copy(model) if isinstance(model, nn.Module) else model
    digest = started_digest(original)()
    found = captures_of(original, (args, kwargs), policies[0], request.dynamic_shapes, request.loss)
    captured = found.modes[policies[0].mode]
    suppressed = read_suppressions(captured.graph, model)
    known = [
        replace(each, suppressions=suppressed, functions=found.functions)
        for each in _facts(captured, policies, hardware, batches, request.loss, built_only)
    ]
    bases = [
        _base(captured.graph, policy, hardware, facts, built_only)
        for policy, facts in zip(policies, known, strict=True)
    ]
    signature = inspect.signature(original.forward) if isinstance(original, nn.Module) else None
    kept = {policies[0].mode: captured}
    reference = running.reference(unchanged(kept, signature=signature), batches)
    against = eager(original, reference.model, captured, batches[0], policies[0].mode, False)
    said = dict(request.provenance or {})
    evidence = Evidence(
        original, kept, hardware, device_from, reference, tuple(bases), signature, found.missing, against, digest, said,
        tuple(dict.fromkeys(note for base in bases for note in base.facts.notes)),
        tuple(dict.fromkeys(text for each in policies for text in lacks(each, hardware))),
        _left_out(captured.graph, policies, hardware) if built_only else (),
    )  # fmt: skip
    _check_free(evidence)
    return evidence


def _facts(
    captured: Captured,
    policies: Sequence[Policy],
    hardware: Hardware,
    batches: Sequence[Batch],
    loss: Callable[[Any], torch.Tensor] | None,
    built_only: bool,
) -> list[Facts]:
    """Of every low format. What does not depend on one is measured once: ranges, the gradients of the probes, and what
    quantising a linear adds, whose input is rounded sixteen times more finely than fp8 does in either format."""
    graph, freed = captured.graph, [space.freed(policy) for policy in policies]
    kept: list[tuple[Policy, Deltas]] = []
    found: list[Facts] = []
    for policy, free in zip(policies, freed, strict=True):
        schemes = {} if found else _schemes(alternatives(graph, policy, hardware, built_only))
        deltas = Deltas(graph, (), LIMIT // len(policies), schemes)
        like = found[0] if found else None
        found.append(analyse(captured, free, hardware, batches, None, loss, quantise=False, kept=deltas, like=like))
        kept.append((free, deltas))
    probed = sensitivities(captured, hardware, batches[0], kept)
    swaps = [share for share in probed[0][0] if share.source.startswith(SWAP)]
    for index, (shares, notes) in enumerate(probed):
        own = shares if not index else (*shares, *swaps)
        found[index] = replace(found[index], shares=own, notes=(*found[index].notes, *notes))
    return found


def _schemes(swaps: Mapping[str, tuple[Swap, ...]]) -> dict[str, tuple[str, ...]]:
    return {key: tuple(scheme_of(swap) for swap in offered) for key, offered in swaps.items()}


def _base(graph: Graph, policy: Policy, hardware: Hardware, facts: Facts, built_only: bool) -> Base:
    freed = space.freed(policy)
    decided = judged(graph, freed, hardware, facts)
    decided = replace(decided, findings=tuple(each for each in decided.findings if each.rule != space.WEIGHED))
    free = tuple(each.op for each in decided.decisions if not each.chosen)
    choices = _choices(graph, alternatives(graph, policy, hardware, built_only), facts, freed, hardware, set(free))
    unknown, lost = _doubtful(facts.shares, set(free))
    return Base(freed, facts, decided, _by_source(facts.shares), choices, free, unknown, lost)


def _choices(
    graph: Graph,
    swaps: Mapping[str, tuple[Swap, ...]],
    facts: Facts,
    policy: Policy,
    hardware: Hardware,
    free: set[str],
) -> Choices:
    """Swaps of free linears whose error is known, with their seconds and shares."""
    tensors = {value: tensor for op in graph.ops for value, tensor in zip(op.values, op.outputs, strict=True)}
    by_key = {op.key: op for op in graph.ops}
    known = {each.source: each.share for each in facts.shares if each.known and math.isfinite(each.share)}
    offered: dict[str, tuple[Swap, ...]] = {}
    seconds: dict[tuple[str, str], float] = {}
    shares: dict[tuple[str, str], float] = {}
    for key, listed in swaps.items():
        fitting = [swap for swap in listed if key in free and swap_source(key, scheme_of(swap)) in known]
        inputs = [tensors[operand.value] for operand in by_key[key].operands if operand.value in tensors]
        for swap in fitting:
            row = recipes.recipe(swap.backend, swap.recipe)
            seconds[key, swap.recipe] = swapped.seconds(by_key[key], inputs, row, policy.low, hardware, graph.mode)
            shares[key, swap.recipe] = max(known[swap_source(key, row.scheme)], 0.0)
        if fitting:
            offered[key] = tuple(fitting)
    return Choices(offered, seconds, shares, together(graph))


def _by_source(shares: Sequence[Share]) -> dict[Source, float]:
    """What the planner charges: of an op by its key; of a cast by value and reader, scaled so that all readers together
    pay what they do together, cross terms included. What is not finite is charged nothing: it is never chosen."""
    own: dict[Source, float] = {}
    whole: dict[str, float] = {}
    apart: dict[str, float] = {}
    for share in shares:
        if not math.isfinite(share.share):
            continue
        if not share.reader:
            own[share.source] = max(share.share, 0.0)
            continue
        whole[share.source] = whole.get(share.source, 0.0) + share.share
        if not share.pair:
            apart[share.source] = apart.get(share.source, 0.0) + share.share
    for share in shares:
        if share.reader and not share.pair and math.isfinite(share.share) and apart[share.source] > 0:
            own[share.source, share.reader] = share.share * max(whole[share.source] / apart[share.source], 0.0)
    return own


def _doubtful(shares: Sequence[Share], free: set[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Free ops whose error in the low format nobody can tell, and those that lose elements in it."""
    unknown: dict[str, str] = {}
    lost: dict[str, str] = {}
    for share in shares:
        key = share.reader or share.source
        if key not in free:
            continue
        if not math.isfinite(share.share):
            lost[key] = "loses elements of the example in the low format"
        elif not share.known:
            unknown[key] = "its error is unknown: no gradient leads from it to an output"
    return unknown, lost


def _left_out(graph: Graph, policies: Sequence[Policy], hardware: Hardware) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for each in policies for name in unbuilt(graph, space.freed(each), hardware)))


def _check_free(evidence: Evidence) -> None:
    lowered = any(
        each.classification != "fixed" and each.chosen not in ("", base.policy.high)
        for base in evidence.bases for each in base.decided.decisions
    )  # fmt: skip
    if not lowered and not any(base.free for base in evidence.bases):
        floats = any(op.kind not in ("input", "parameter", "buffer", "constant") for op in evidence.graph.ops)
        what = "no op of this model is free to run in another format" if floats else "this model computes nothing"
        first = next((each for each in evidence.bases[0].decided.decisions), None)
        why = f" ({first.op}: {first.reason})" if first is not None else ""
        raise InputError(f"{what}{why}; there is nothing to search, audit it instead")


def held(base: Base, hopeful: bool) -> dict[str, str]:
    """What is forced high before anything is weighed."""
    return dict.fromkeys((*base.lost, *(() if hopeful else base.unknown)), HIGH)
