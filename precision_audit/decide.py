"""Decide: one `Decision` per computed op, each with the reason it was taken.

Takes the graph, a policy, the device and the swap backends; gives decisions, swaps, refusals and the findings of the
hazard rules. Pure: the same input gives the same output, and no op is left without a decision.

Whose word counts, strongest first:
  facts    the op's format is not free (integers, the user's own cast or region, a model captured in another format),
           the device has no low kernel for it, or the op table does not know it
  pin      `class: pin:<format>` of the policy
  remedy   what a hazard rule asks for (`remedies`: the high format, `refused`: no swap), unless the policy turns that
           rule off
  class    of the first policy rule that matches
A `follow` op gets no format here: the plan finds the cheapest. An fp8-eligible linear is offered to its backend, and
where that refuses, the op runs in the low format and the reason is kept; so it is where the policy swaps only what is
worth it and the cost model says that a swap is not. The experts' grouped product has no module that could be swapped:
it is judged where linears are, and refused with what stands against it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from precision_audit import ops, recipes, rules
from precision_audit.backends import Backend
from precision_audit.cost import experts
from precision_audit.cost.worth import worth
from precision_audit.formats import is_float
from precision_audit.fusing import fused
from precision_audit.hardware.recipes import chosen, conditions, lacking
from precision_audit.policy.match import STATE, Match, Matcher
from precision_audit.records import (
    NO_FACTS,
    Decision,
    Evidence,
    Facts,
    Finding,
    Graph,
    Hardware,
    Op,
    Policy,
    Refusal,
    Rule,
    Swap,
    Tensor,
)

# what a pin to fp8 asks for; torch multiplies fp8 with scales only, and the modules that are swapped in do
_NO_FP8 = "nothing computes in fp8 without scales (class fp8-eligible swaps linears)"

_FIXED: Mapping[str, str] = {
    "explicit cast": "the model itself sets this format",
    "state": "writes or reads a buffer that is updated in place",
    "integer": "no float output",
    "hand-written": "hand-written gradient, kept as written",
}


@dataclass(frozen=True, slots=True)
class Decided:
    """What was decided of one graph, in graph order."""

    decisions: tuple[Decision, ...]
    swaps: tuple[Swap, ...]
    refusals: tuple[Refusal, ...]
    findings: tuple[Finding, ...]


def decide(
    graph: Graph,
    policy: Policy,
    hardware: Hardware,
    backends: Mapping[str, Backend],
    remedies: Mapping[str, Finding] = MappingProxyType({}),
    facts: Facts = NO_FACTS,
    refused: Mapping[str, Finding] = MappingProxyType({}),
    *,
    fuse: bool = True,
) -> Decided:
    """Decide every computed op of `graph`; `remedies` are findings by op key that ask for the high format, `refused`
    those that ask for no swap. `facts` is what the rules judge by. Without `fuse` every linear is swapped by itself."""
    judge = _Judge(graph, policy, hardware, backends, remedies, refused)
    decisions = tuple(judge.decision(op) for op in computed(graph))
    swaps = tuple(judge.swaps)
    if fuse:
        decisions, swaps = fused(decisions, swaps, graph, policy.low, judge.matches, judge.is_remedied)
    context = rules.Context(
        graph=graph,
        policy=policy,
        hardware=hardware,
        decisions=MappingProxyType({decision.op: decision for decision in decisions}),
        swaps=swaps,
        refusals=tuple(judge.refusals),
        matcher=judge.matcher,
        matches=MappingProxyType(judge.matches),
        facts=facts,
    )
    return Decided(decisions, context.swaps, context.refusals, rules.findings(context))


def decisions_alone(graph: Graph, policy: Policy, hardware: Hardware) -> tuple[Decision, ...]:
    """Decisions without swaps and without looking for hazards."""
    judge = _Judge(graph, policy, hardware, {}, {}, {})
    return tuple(judge.decision(op) for op in computed(graph))


def computed(graph: Graph) -> Iterator[Op]:
    """The ops that compute something: all but inputs, parameters, buffers and constants."""
    return (op for op in graph.ops if op.kind not in STATE)


class _Judge:
    def __init__(
        self,
        graph: Graph,
        policy: Policy,
        hardware: Hardware,
        backends: Mapping[str, Backend],
        remedies: Mapping[str, Finding],
        refused: Mapping[str, Finding],
    ) -> None:
        self.graph, self.policy, self.hardware = graph, policy, hardware
        self.backends, self.remedies, self.refused = backends, remedies, refused
        self.matcher = Matcher(policy, graph)
        self.matches: dict[str, Match] = {}
        self.swaps: list[Swap] = []
        self.refusals: list[Refusal] = []
        self._kernels: dict[tuple[str, str], str] = {}
        self._asks_for_swaps = any(rule.backend in backends for rule in policy.rules if rule.backend)

    def decision(self, op: Op) -> Decision:
        match = self.matches[op.key] = self.matcher.first(op)
        if op.op in experts.OPS and self._asks_for_swaps:
            why = experts.refusal(self.matcher.inputs(op), self.policy.mode, self.hardware)
            self.refusals.append(Refusal(op.key, op.module, experts.BACKEND, why))
        fact = _fact(op, self.policy.high, self.matcher.inputs(op))
        if fact and self._swaps_low(op, match):
            swap = self.swaps[-1]
            reason = f"{_stated(match)}: swapped by {swap.backend}, in the {self.policy.low} it was captured in"
            return self._made(op, "fp8-eligible", _swapped(swap), reason, match)
        if fact == _FIXED["integer"] and self._heeded(self.remedies.get(op.key)) and _reads_floats(op, self.matcher):
            return self._high(op, f"rule {self.remedies[op.key].rule}: decides by what it reads")
        if fact:
            return Decision(op.key, "fixed", _captured(op), f"fact: {fact}", self._accumulates(op, _captured(op)))
        rule = match.rule
        if _unknown(op, rule, self.policy):
            return self._high(
                op, f"rule PA504: {op.op} is not in the op table; {_origin(rule)} would have it {rule.classification}"
            )
        if rule.classification.startswith("pin:"):
            return self._pinned(op, match, rule.classification[4:])
        remedy = self._heeded(self.remedies.get(op.key))
        if remedy is not None and rule.classification != f"keep-{self.policy.high}":
            return self._high(op, f"rule {remedy.rule} over {_origin(rule)}")
        return self._by_class(op, match)

    def _by_class(self, op: Op, match: Match) -> Decision:
        rule, low = match.rule, self.policy.low
        if rule.classification == f"keep-{self.policy.high}":
            return self._high(op, _stated(match))
        if rule.classification == "inherit":
            return Decision(op.key, "inherit", "", _stated(match), promote=rule.promote)
        refused = ""
        if rule.classification == "fp8-eligible":
            found = self._worthwhile(op, match)
            if isinstance(found, Swap):
                self.swaps.append(found)
                reason = f"{_stated(match)}: swapped by {found.backend}"
                return self._made(op, "fp8-eligible", _swapped(found), reason, match)
            refused = self._refuse(found)
        elif match.missed and op.op == "linear":
            missed, why = match.missed[0]
            refused = self._refuse(Refusal(op.key, op.module, missed.backend, why))
        lacking = self._no_kernel(op, low)
        if lacking:
            return self._high(op, f"fact: {lacking}, over {_origin(rule)}")
        if rule.classification == "follow":
            return self._made(op, "follow", "", refused + _stated(match), match)
        return self._made(op, f"safe-in-{low}", low, refused + _stated(match), match)

    def _swaps_low(self, op: Op, match: Match) -> bool:
        """Whether a linear that was captured in the low format is swapped where it stands: nothing is cast for it."""
        floats = {tensor.format for tensor in (*op.outputs, *self.matcher.inputs(op)) if is_float(tensor.format)}
        if op.fixed or floats != {self.policy.low}:
            return False
        if match.rule.classification != "fp8-eligible":
            if match.missed and op.op == "linear":
                self._refuse(Refusal(op.key, op.module, match.missed[0][0].backend, match.missed[0][1]))
            return False
        found = self._worthwhile(op, match)
        if isinstance(found, Swap):
            self.swaps.append(found)
            return True
        self.refusals.append(found)
        return False

    def _pinned(self, op: Op, match: Match, to: str) -> Decision:
        low = self.policy.low if to.startswith("fp8") else to
        lacking = self._no_kernel(op, low) if low != self.policy.high else ""
        if lacking:
            return self._high(op, f"fact: {lacking}, over {_origin(match.rule)}")
        if low != to:
            return self._made(op, f"safe-in-{low}", low, f"fact: {_NO_FP8}, over {_origin(match.rule)}", match)
        return self._made(op, match.rule.classification, to, _stated(match), match)

    def _worthwhile(self, op: Op, match: Match) -> Swap | Refusal:
        """The offer, but for one that gains nothing under a policy that asks for a gain. As the offer, it is judged for
        the policy's mode."""
        found, policy = self._offer(op, match), self.policy
        if isinstance(found, Refusal) or policy.swap == "eligible":
            return found
        inputs = self.matcher.inputs(op)
        judged = worth(op, inputs, found.backend, found.recipe, policy.low, self.hardware, policy.mode)
        return Refusal(op.key, op.module, found.backend, judged.reason, not_worth=True) if judged.reason else found

    def _offer(self, op: Op, match: Match) -> Swap | Refusal:
        rule = match.rule
        remedy = self._heeded(self.refused.get(op.key))
        if remedy is not None:
            return Refusal(op.key, op.module, rule.backend, f"rule {remedy.rule}: no swap")
        backend = self.backends.get(rule.backend)
        if backend is None:
            return Refusal(op.key, op.module, rule.backend, f"backend {rule.backend} is not installed")
        recipe = chosen(rule.backend, rule.recipe, self.hardware)
        lacks = lacking(recipe, self.hardware)
        if lacks:
            return Refusal(op.key, op.module, rule.backend, lacks)
        # judged for the policy's mode also where the graph is the other one, so that both get the same modules
        found = backend.offer(op, self.graph, recipe.name, self.policy.mode, self.hardware)
        if isinstance(found, Refusal):
            return found
        news = [text for text in match.constraints if not any(known.startswith(text) for known in found.constraints)]
        notes = (*found.notes, *conditions(recipe, self.hardware))
        constraints = (*found.constraints, *news)
        return replace(found, constraints=constraints, notes=notes, recipe_options=rule.recipe_options)

    def _refuse(self, refusal: Refusal) -> str:
        self.refusals.append(refusal)
        by = "" if refusal.reason.startswith("rule ") else f"backend {refusal.backend}: "
        return f"{by}{refusal.reason}; "

    def is_remedied(self, key: str) -> bool:
        return self._heeded(self.remedies.get(key)) is not None

    def _heeded(self, found: Finding | None) -> Finding | None:
        """A finding whose remedy counts: the policy has not turned its rule off."""
        if found is None or dict(self.policy.hazards).get(found.rule) == "off":
            return None
        return found

    def _no_kernel(self, op: Op, low: str) -> str:
        """Why `op` cannot run in `low` on the device, or nothing."""
        if self.graph.mode == "training" and dict(op.attributes).get("sparse") is True:
            return "its gradient is sparse, which no cast hands back"
        key = (op.op, low)
        if key not in self._kernels:
            device = self.hardware.kernels
            backward = self.graph.mode == "training"
            lacking = ""
            if ops.has_kernel(op.op, low, device, backward=False) is False:
                lacking = f"no {low} kernel of {op.op} on {device}"
            elif backward and ops.has_kernel(op.op, low, device, backward=True) is False:
                lacking = f"no {low} backward kernel of {op.op} on {device}"
            self._kernels[key] = lacking
        return self._kernels[key]

    def _high(self, op: Op, reason: str) -> Decision:
        high = self.policy.high
        return Decision(op.key, f"keep-{high}", high, reason, self._accumulates(op, high))

    def _made(self, op: Op, classification: str, chosen: str, reason: str, match: Match) -> Decision:
        evidence = tuple(Evidence("PROVED", f"holds if {text}") for text in match.constraints)
        accumulates = self._accumulates(op, chosen if is_float(chosen) else self.policy.low)
        return Decision(op.key, classification, chosen, reason, accumulates, evidence)

    def _accumulates(self, op: Op, chosen: str) -> str:
        return ops.accumulates_in(op.op, chosen, self.hardware.kernels) if is_float(chosen) else ""


def _fact(op: Op, high: str, inputs: tuple[Tensor, ...]) -> str:
    """Why nobody may choose the op's format, or nothing."""
    if op.fixed in _FIXED:
        return _FIXED[op.fixed]
    if op.fixed == "region":
        return f"inside the model's own region ({op.region or 'torch.func'})"
    floats = [tensor.format for tensor in op.outputs if is_float(tensor.format)]
    if not floats:
        return _FIXED["integer"]
    others = sorted({name for name in floats if name != high})
    if others or op.fixed == "format":
        return f"captured in {', '.join(others) or floats[0]}, not the policy's {high}: left alone"
    if any(tensor.format.startswith("complex") for tensor in inputs):
        return "reads complex numbers, which have no low format"
    return ""


def _reads_floats(op: Op, matcher: Matcher) -> bool:
    return any(is_float(tensor.format) for tensor in matcher.inputs(op))


def _swapped(swap: Swap) -> str:
    """`fp8 rowwise`: what its products are made of, and the recipe."""
    return f"{recipes.arithmetic(swap.backend, swap.recipe)} {swap.recipe}"


def _captured(op: Op) -> str:
    floats = [tensor.format for tensor in op.outputs if is_float(tensor.format)]
    return (floats or [tensor.format for tensor in op.outputs] or [""])[0]


def _unknown(op: Op, rule: Rule, policy: Policy) -> bool:
    """Nothing is known of the op, and no rule says by its very name what to do, or keeps it high anyway."""
    keeps = (f"keep-{policy.high}", f"pin:{policy.high}", "inherit")
    return op.kind == "unknown" and op.op not in rule.op and rule.classification not in keeps


def _origin(rule: Rule) -> str:
    return f"policy {rule.origin} {rule.name}"


def _stated(match: Match) -> str:
    return _origin(match.rule) + (f" if {' and '.join(match.constraints)}" if match.constraints else "")
