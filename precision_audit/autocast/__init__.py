"""torch.autocast, op by op: what it runs in which format, and the casts it makes.

Takes a graph and an `amp-*` policy; gives a decision for every computed op and a `Plan`, propagated in graph order and
never cut. The policy's rules classify; how autocast acts on a class is known here and in `autocast_effect`:

- float tensors other than fp64 are cast, in lists and optional arguments too; nothing else is
- `promote` casts to fp32 if any input has it. `fp32-out` ops compute their first operand into fp32 unless a dtype is
  given: here that is a cast of the operand, the same numbers on every device
- a cast to the low format of an fp32 leaf that requires a gradient is made once and kept, every other cast is made by
  each consumer for itself
- a composite op inside which autocast acts is run in an autocast region as it stands (`Decision.autocast`). So is an op
  that reads one value twice, or in a role that the rewriter gives no cast: in a region each read has its own

What an op makes of the formats it is given comes from running it without data (`dry_run`), not from rules. Ops in the
user's own autocast regions get no casts from here. Never looks at numbers.
Where autocast leaves an op alone that refuses high and low side by side (bf16 rows written into an fp32 tensor), it
raises; here operands are cast: to the format of what is written to, else to the widest one's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from precision_audit import ops
from precision_audit.autocast.dry_run import formats_made
from precision_audit.autocast.effect import Effect, policy_rows, ruled_effect, table_effect
from precision_audit.autocast.probing import refuses
from precision_audit.cost import roofline
from precision_audit.formats import is_float
from precision_audit.plan.digest import digest
from precision_audit.plan.promotion import promoted
from precision_audit.policy.match import Matcher
from precision_audit.records import Cast, Decision, Graph, InputError, Op, Operand, Plan, Policy, Rule, Tensor

__all__ = ["autocast_cast_count", "policy_rows", "propagate"]

_STATE = ("input", "parameter", "buffer", "constant")
_TOLERANT = frozenset({"view_layout", "concat", "cast", "control", "factory"})  # take formats as they come

# Kinds whose single float output has the format of their float operands when these all have one.
_FORMAT_PRESERVING = frozenset(
    {"view_layout", "pointwise_arith", "transcendental_expanding", "transcendental_contracting", "concat"}
)


def propagate(graph: Graph, policy: Policy) -> tuple[tuple[Decision, ...], Plan]:
    """Decisions of all computed ops in graph order, and the plan that makes autocast's casts.

    Raises InputError for an op that torch.autocast refuses.
    """
    matcher = Matcher(policy, graph)
    walk = _Walk(graph, policy.autocast, policy.low, policy.high)
    decisions = []
    for op in graph.ops:
        if op.kind not in _STATE:
            rule = matcher.first(op).rule
            decisions.append(walk.step(op, ruled_effect(op, policy.autocast, policy.low, rule), rule))
    return tuple(decisions), Plan(
        policy=policy.name,
        mode=graph.mode,
        high=policy.high,
        low=policy.low,
        formats=walk.plan_formats(),
        casts=walk.casts(),
        autocast=tuple(decision.op for decision in decisions if decision.autocast),
        autocast_device=policy.autocast,
        environment=policy.environment,
        graph_digest=digest(graph),
    )


def autocast_cast_count(graph: Graph, device: str = "cuda", low: str = "bf16") -> int:
    """How many casts torch.autocast makes in one forward pass of `graph`: one per use, one per leaf that requires a
    gradient; of a composite op those of its operands. An op that autocast refuses counts none."""
    walk = _Walk(graph, device, low, "fp32")
    for op in graph.ops:
        if op.kind not in _STATE:
            effect = table_effect(op, device)
            refused = effect.policy == "banned" or walk.beyond_promotion(op, effect)
            walk.step(op, replace(effect, policy="") if refused else effect, None)
    return walk.counted


class _Walk:
    """The formats of all values so far, and the casts made for them."""

    def __init__(self, graph: Graph, device: str, low: str, high: str) -> None:
        self._graph, self._device, self._low, self._high = graph, device, low, high
        self._captured: dict[str, Tensor] = {}
        self._now: dict[str, str] = {}  # format at run time, by value
        self._leaves: set[str] = set()
        self._casts: dict[tuple[str, str, str], list[str]] = {}  # (value, to, consumer; "" if shared) → consumers
        self._kept: set[str] = set()  # leaves whose cast has been counted
        self.counted = 0
        for op in graph.ops:
            for value, tensor in zip(op.values, op.outputs, strict=True):
                self._captured[value] = tensor
                self._now[value] = tensor.format
                if op.kind in _STATE and tensor.requires_grad and tensor.format == "fp32":
                    self._leaves.add(value)

    def step(self, op: Op, effect: Effect, rule: Rule | None) -> Decision:
        """Decide one op, all of whose operands were decided before."""
        if effect.policy == "banned":
            raise InputError(
                f"{_place(op)}: torch.autocast refuses {op.op} on {self._device}, unsafe in low formats; expected "
                "binary_cross_entropy_with_logits on the values before the sigmoid; use it, or another policy"
            )
        wanted = self._wanted(op, effect)
        reads = [
            operand for operand in op.operands if wanted.get(operand.value, "") not in ("", self._now[operand.value])
        ]
        region = self._acts_inside(op, effect) or self._needs_region(op, effect, reads)
        self._count(op, effect, reads)
        casts = {} if region else {operand.value: wanted[operand.value] for operand in reads}
        for value, to in casts.items():
            shared = value in self._leaves and to == self._low
            self._casts.setdefault((value, to, "" if shared else op.key), []).append(op.key)
        if region:
            outputs = self._made_in_region(op, effect)
        elif effect.untouched:
            outputs = self._made_in_users_region(op, effect)
        else:
            outputs = self._made(op, casts)
        self._now.update(zip(op.values, outputs, strict=True))
        return self._decision(op, effect, rule, region, touched=bool(casts) or region)

    def casts(self) -> tuple[Cast, ...]:
        """All casts, in the order of their first consumers."""
        return tuple(
            Cast(value, to, tuple(consumers), roofline.cast_bytes(self._captured[value], self._now[value], to))
            for (value, to, _), consumers in self._casts.items()
        )

    def plan_formats(self) -> tuple[tuple[str, str], ...]:
        """The format of every op's float output: of the first captured high, where it has several."""
        return tuple((op.key, found) for op in self._graph.ops if (found := self._format_of(op)))

    def _format_of(self, op: Op) -> str:
        floats = [(t.format != self._high, i) for i, t in enumerate(op.outputs) if is_float(t.format)]
        return self._now[op.values[min(floats)[1]]] if floats else ""

    # casts -----------------------------------------------------------------------------------------------------------

    def _wanted(self, op: Op, effect: Effect) -> dict[str, str]:
        """Values that `op` reads, and the format that it is to read them in."""
        if effect.policy == "captured":
            return {operand.value: self._captured[operand.value].format for operand in op.operands}
        if not effect.policy:
            return self._mended(op, effect)
        return dict.fromkeys((operand.value for operand in self._eligible(op, effect)), self._target(op, effect))

    def _mended(self, op: Op, effect: Effect) -> dict[str, str]:
        """The casts without which an op that autocast leaves alone would raise; none for one that runs."""
        floats = [operand for operand in op.operands if is_float(self._now[operand.value])]
        mixed = {self._now[operand.value] for operand in floats} == {self._high, self._low}
        if not mixed or effect.untouched or effect.inner or op.kind in _TOLERANT:
            return {}
        given = self._given(op, {})
        if not refuses(op, given, [self._captured[operand.value] for operand in op.operands]):
            return {}
        if op.mutates or op.kind == "scatter_write":
            return dict.fromkeys((operand.value for operand in floats[1:]), self._now[floats[0].value])
        return dict.fromkeys((operand.value for operand in floats), self._promoted(given))

    def _target(self, op: Op, effect: Effect) -> str:
        """The format that autocast casts the operands to, "" for none."""
        if effect.policy == "low":
            return self._low
        if effect.policy == "fp32-out":
            return "" if any(name == "dtype" and value is not None for name, value in op.attributes) else "fp32"
        if effect.policy != "promote":
            return effect.policy
        if strange := self.beyond_promotion(op, effect):
            raise InputError(
                f"{_place(op)}: torch.autocast to {self._low} cannot widen the {strange[0]} input of {op.op}; expected "
                f"fp32 or {self._low}; cast it before, or use another policy"
            )
        return "fp32" if any(self._now[o.value] == "fp32" for o in self._eligible(op, effect)) else self._low

    def beyond_promotion(self, op: Op, effect: Effect) -> list[str]:
        """Formats among the inputs of a `promote` op that autocast cannot promote, and refuses."""
        if effect.policy != "promote":
            return []
        return sorted({self._now[o.value] for o in self._eligible(op, effect)} - {"fp32", self._low})

    def _eligible(self, op: Op, effect: Effect) -> list[Operand]:
        operands = op.operands[:1] if effect.policy == "fp32-out" else op.operands
        return [o for o in operands if is_float(self._now[o.value]) and self._now[o.value] != "fp64"]

    def _acts_inside(self, op: Op, effect: Effect) -> bool:
        """Whether autocast changes anything inside: promotion of equal formats does not."""
        return bool(effect.inner - {"promote"}) or (
            bool(effect.inner) and len({self._now[operand.value] for operand in self._eligible(op, effect)}) > 1
        )

    def _needs_region(self, op: Op, effect: Effect, reads: Sequence[Operand]) -> bool:
        """Casts that one cast per consumer cannot stand for."""
        if not effect.registered:
            return False
        if op.fixed == "region" and reads:  # under vmap, or in a region of another device: nothing is put in there
            return True
        uses = Counter(operand.value for operand in reads if operand.value not in self._leaves)
        twice = self._device == "cpu" and any(count > 1 for count in uses.values())
        return twice or any(ops.role(op, operand.argument, "") in ("stays", "any") for operand in reads)

    def _count(self, op: Op, effect: Effect, reads: Sequence[Operand]) -> None:
        if effect.policy == "fp32-out":  # the kernel widens what it reads
            return
        if "low" in effect.inner:
            reads = [operand for operand in self._eligible(op, effect) if self._now[operand.value] != self._low]
        for operand in reads:
            to_low = effect.policy == "low" or "low" in effect.inner
            if operand.value in self._leaves and to_low:
                self.counted += operand.value not in self._kept
                self._kept.add(operand.value)
            else:
                self.counted += 1

    # what ops make of what they are given ----------------------------------------------------------------------------

    def _made(self, op: Op, casts: Mapping[str, str]) -> list[str]:
        """Formats of the outputs without autocast, on operands after their casts."""
        captured = [tensor.format for tensor in op.outputs]
        given = self._given(op, casts)
        before = [self._captured[operand.value] for operand in op.operands]
        floats = {tensor.format for tensor in given if is_float(tensor.format)}
        explicit = any(n.endswith("dtype") and isinstance(v, str) and is_float(v) for n, v in op.attributes)
        if explicit or given == before or not any(is_float(each) for each in captured):
            return captured
        if op.mutates:
            written = next((o.value for o in op.operands if o.argument == op.mutates), "")
            return [self._now.get(written, each) if is_float(each) else each for each in captured]
        was = {tensor.format for tensor in before if is_float(tensor.format)}
        if op.kind in _FORMAT_PRESERVING and len(captured) == len(floats) == len(was) == 1 and was == set(captured):
            return list(floats)
        found = formats_made(op, given) or (self._promoted(given),) * len(captured)
        return _merged(captured, found)

    def _made_in_region(self, op: Op, effect: Effect) -> list[str]:
        captured = [tensor.format for tensor in op.outputs]
        if effect.result:
            to = self._low if effect.result == "low" else "fp32"
            return [to if each == self._high else each for each in captured]
        given = self._given(op, {})
        found = formats_made(op, given, self._device, self._low)
        if found is None:
            to = self._low if "low" in {effect.policy, *effect.inner} else "fp32"
            found = (to,) * len(captured)
        return _merged(captured, found)

    def _made_in_users_region(self, op: Op, effect: Effect) -> list[str]:
        """An op between `_enter_autocast` and `_exit_autocast` of the model's own, or a higher-order op."""
        _, device, low = op.region.split() if op.region else ("", "", "off")
        if low == "off":
            return self._made(op, self._wanted(op, effect))
        captured = [tensor.format for tensor in op.outputs]
        return _merged(captured, formats_made(op, self._given(op, {}), device, low) or captured)

    def _given(self, op: Op, casts: Mapping[str, str]) -> list[Tensor]:
        values = [operand.value for operand in op.operands]
        return [replace(self._captured[value], format=casts.get(value, self._now[value])) for value in values]

    def _promoted(self, given: Sequence[Tensor]) -> str:
        """Floats with dimensions decide, those without count among themselves."""
        floats = [tensor for tensor in given if is_float(tensor.format)]
        spatial = [tensor.format for tensor in floats if tensor.hint]
        return promoted(spatial or [tensor.format for tensor in floats]) or self._high

    # the decision ----------------------------------------------------------------------------------------------------

    def _decision(self, op: Op, effect: Effect, rule: Rule | None, region: bool, touched: bool) -> Decision:
        makes = self._format_of(op)
        chosen = makes or op.outputs[0].format
        classification, reason = rule.classification if rule else "inherit", effect.reason
        if effect.untouched:
            classification = "fixed"
        elif not makes and not touched:
            classification, reason = "fixed", "fact: no float output"
        elif op.fixed == "explicit cast":
            classification, reason = "fixed", "fact: the model itself sets this format"
        elif op.fixed == "state" and not touched:
            classification, reason = "fixed", "fact: writes or reads a buffer that is updated in place"
        accumulate = ops.accumulates_in(op.op, chosen, self._device) if is_float(chosen) else ""
        promote = effect.policy == "promote"
        return Decision(op.key, classification, chosen, reason, accumulate, promote=promote, autocast=region)


def _merged(captured: Sequence[str], found: Sequence[str]) -> list[str]:
    """Float outputs have the format found, all others the captured one."""
    if len(found) != len(captured):
        return list(captured)
    return [new if is_float(old) and is_float(new) else old for old, new in zip(captured, found, strict=True)]


def _place(op: Op) -> str:
    return f"{op.source.file}:{op.source.line}" if op.source else op.key
