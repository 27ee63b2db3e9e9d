"""What the tests of analysis have in common: capture a model and look at it as analysis does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from precision_audit.analyse.beside import beside
from precision_audit.analyse.deltas import Deltas
from precision_audit.analyse.sensitivity import sensitivity
from precision_audit.capture import Captured, capture, private_copy
from precision_audit.decide import Decided, decide
from precision_audit.hardware import device
from precision_audit.plain import everything_low
from precision_audit.plan import plan as cheapest
from precision_audit.records import Beside, Decision, Mode, Plan, Policy, Rule, Share, Swap
from precision_audit.rewrite import rewrite, unchanged

LOCAL = device("local")


def policy(low: str = "bf16", mode: Mode = "inference") -> Policy:
    return Policy("test", "", "", mode, "fp32", low, (Rule("everything", "test", f"safe-in-{low}"),))


@dataclass(frozen=True)
class Seen:
    """A model as analysis saw it."""

    captured: Captured
    policy: Policy
    args: tuple[Any, ...]
    beside: tuple[Beside, ...]
    deltas: Deltas
    shares: tuple[Share, ...]
    notes: tuple[str, ...]

    def share(self, source: str, reader: str = "", pair: str = "") -> Share:
        (found,) = [s for s in self.shares if (s.source, s.reader, s.pair) == (source, reader, pair)]
        return found

    def by_value(self, value: str) -> Beside:
        (found,) = [each for each in self.beside if each.value == value]
        return found

    def all_low(self) -> Plan:
        plan = everything_low(self.captured.graph, self.policy, LOCAL)
        assert plan is not None
        return plan

    def without(self, keys: tuple[str, ...]) -> Plan:
        """Everything low but the ops `keys`."""
        plain = decide(self.captured.graph, self.policy, LOCAL, {}).decisions
        kept = tuple(Decision(d.op, "keep-fp32", "fp32", "test") if d.op in keys else d for d in plain)
        return cheapest(self.captured.graph, Decided(kept, (), (), ()), self.policy, LOCAL)

    def error(self, plan: Plan) -> float:
        """What the plan is off by when it is run: relative L2 of the one output."""
        mode = self.captured.graph.mode
        with torch.no_grad():
            expected = unchanged({mode: self.captured})(*self.args).detach().double()
            made = rewrite({mode: self.captured}, {mode: plan})(*self.args).detach().double()
        return float((made - expected).norm() / expected.norm())


def seen(
    model: nn.Module,
    *args: Any,
    low: str = "bf16",
    mode: Mode = "inference",
    swaps: tuple[Swap, ...] = (),
    limit: int | None = None,
) -> Seen:
    made = policy(low, mode)
    captured = capture(private_copy(model), args, mode=mode)
    deltas = Deltas(captured.graph, swaps) if limit is None else Deltas(captured.graph, swaps, limit)
    rows = beside(captured, made, LOCAL, (args, {}), deltas)
    shares, notes = sensitivity(captured, made, LOCAL, (args, {}), deltas)
    return Seen(captured, made, args, rows, deltas, shares, notes)
