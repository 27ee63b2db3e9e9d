"""Every linear under the policy's recipe: may it be swapped, is it worth it, what would padding make of it.

Takes the graph, the plan that was made, the policy and the device; gives a `Layer` per linear and per grouped product
of experts, in graph order; none where the policy has no rule that swaps. Whether a linear may is the backend's and the
planner's word, which the plan holds; one that a rule of the policy keeps out is offered here, so that the table tells
what the rule costs. Decides nothing and changes no plan.

Padding is offered where K, N or a fixed M alone stand against a swap: sizes rounded up to what the recipe wants, the
bytes of the weight so enlarged, and whether the enlarged layer, its zeros included, still beats the layer as it is in
the low format.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from precision_audit import backends, recipes
from precision_audit.backends._linear import describe
from precision_audit.cost import experts
from precision_audit.cost.worth import Worth, resized, worth
from precision_audit.formats import bytes_of
from precision_audit.hardware.recipes import lacking
from precision_audit.policy.match import Match, Matcher
from precision_audit.records import Graph, Hardware, Layer, Op, Padding, Plan, Policy, Refusal, Rule, Swap, Tensor


def layers(graph: Graph, plan: Plan, policy: Policy, hardware: Hardware) -> tuple[Layer, ...]:
    """One `Layer` per linear or grouped product of experts."""
    asking = next((rule for rule in policy.rules if rule.classification == "fp8-eligible"), None)
    if asking is None or policy.autocast:
        return ()
    return tuple(_Layers(graph, plan, policy, hardware, asking).each())


class _Layers:
    def __init__(self, graph: Graph, plan: Plan, policy: Policy, hardware: Hardware, asking: Rule) -> None:
        self._graph, self._policy, self._hardware, self._asking = graph, policy, hardware, asking
        self._matcher = Matcher(policy, graph)
        self._swaps: Mapping[str, Swap] = {swap.op: swap for swap in plan.swaps}
        self._covered = {key: swap for swap in plan.swaps for key in swap.covers}
        self._refusals: Mapping[str, Refusal] = {refusal.op: refusal for refusal in plan.refusals}

    def each(self) -> Iterator[Layer]:
        for op in self._graph.ops:
            if op.op == "linear":
                yield self._linear(op)
            elif op.op in experts.OPS and (found := experts.experts(self._matcher.inputs(op))) is not None:
                yield self._experts(op, found)

    def _linear(self, op: Op) -> Layer:
        match = self._matcher.first(op)
        made = self._swaps.get(op.key) or self._covered.get(op.key)
        refusal = self._refusals.get(op.key)
        backend, recipe = self._recipe(match)
        if made is not None:
            backend, recipe = made.backend, made.recipe
        kept = ""
        reason = "" if refusal is None or refusal.not_worth else refusal.reason
        constraints = made.constraints if made else ()
        if made is None and refusal is None:
            reason, constraints = self._offered(op, backend, recipe)
            kept = "" if reason else f"{match.rule.origin} {match.rule.name}: {match.rule.classification}"
        inputs = self._operands(op)
        judged = self._worth(op, inputs, backend, recipe)
        n, k = inputs[1].hint
        return Layer(
            op=op.key,
            module=op.module,
            backend=backend,
            recipe=recipe,
            k=k,
            n=n,
            m=math.prod(inputs[0].hint[:-1]),
            eligible=not reason,
            reason=reason,
            seconds=0.0 if reason else judged.seconds,
            seconds_low=judged.seconds_low,
            swapped=made is not None,
            padding=self._padding(op, inputs, backend, recipe) if reason else None,
            auto_filter=judged.auto_filter,
            not_worth="" if reason else judged.reason,
            constraints=constraints,
            kept=kept,
        )

    def _experts(self, op: Op, found: experts.Experts) -> Layer:
        inputs, mode = self._matcher.inputs(op), self._policy.mode
        reason, conditions = experts.obstacles(found, mode, self._hardware)
        judged = experts.worth(op, inputs, found, self._policy.low, self._hardware, mode)
        return Layer(
            op=op.key,
            module=op.module,
            backend=experts.BACKEND,
            recipe=experts.RECIPE,
            k=found.k_example,
            n=found.n_example,
            m=found.m_example,
            eligible=not reason,
            reason=reason,
            seconds=0.0 if reason else judged.seconds,
            seconds_low=judged.seconds_low,
            swapped=False,
            not_worth="" if reason else judged.reason,
            constraints=() if reason else conditions,
            kept="" if reason else experts.NO_MODULE,
        )

    def _recipe(self, match: Match) -> tuple[str, str]:
        """Of the rule that made it eligible, of one that would have but for its sizes, else of the policy's first."""
        missed = [rule for rule, _ in match.missed]
        rule = next((each for each in (match.rule, *missed) if each.classification == "fp8-eligible"), self._asking)
        known = recipes.of_backend(rule.backend)
        return rule.backend, rule.recipe or ("rowwise" if "rowwise" in known else next(iter(known), ""))

    def _offered(self, op: Op, backend: str, recipe: str) -> tuple[str, tuple[str, ...]]:
        """What the backend says of a linear that nobody offered to it."""
        lacks = lacking(recipes.recipe(backend, recipe), self._hardware)
        if lacks:
            return lacks, ()
        found = backends.get(backend).offer(op, self._graph, recipe, self._policy.mode, self._hardware)
        return (found.reason, ()) if isinstance(found, Refusal) else ("", found.constraints)

    def _operands(self, op: Op) -> list[Tensor]:
        """Input, weight, bias."""
        named = dict(zip((each.argument for each in op.operands), self._matcher.inputs(op), strict=True))
        return [named[name] for name in ("input", "weight", "bias") if name in named]

    def _worth(self, op: Op, inputs: Sequence[Tensor], backend: str, recipe: str) -> Worth:
        return worth(op, inputs, backend, recipe, self._policy.low, self._hardware, self._policy.mode)

    def _padding(self, op: Op, inputs: Sequence[Tensor], backend: str, recipe: str) -> Padding | None:
        row = recipes.RECIPES.get((backend, recipe))
        if row is None or lacking(row, self._hardware) or isinstance(describe(op, self._graph), str):
            return None
        (n, k), m = inputs[1].hint, math.prod(inputs[0].hint[:-1])
        fixed = all(isinstance(size, int) for size in inputs[0].shape[:-1])
        wanted = row.multiple_training if self._policy.mode == "training" else row.multiple
        padded = (_up(k, wanted[0]), _up(n, wanted[1]), _up(m, wanted[2]) if fixed else m)
        if padded == (k, n, m):
            return None
        sized = resized(op, inputs, *padded)
        judged, plain = self._worth(*sized, backend, recipe), self._worth(op, inputs, backend, recipe)
        skipped = judged.auto_filter == "skip"
        weight = int(padded[0] * padded[1] * bytes_of(inputs[1].format))
        return Padding(
            k=padded[0],
            n=padded[1],
            m=padded[2],
            bytes=weight,
            seconds=judged.seconds,
            worth=judged.seconds < plain.seconds_low and not skipped,
        )


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
