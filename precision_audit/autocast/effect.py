"""What torch.autocast does to one op: its own table, or the rule of a policy refined by it.

Takes an op record, a device and perhaps a policy's rule; gives an `Effect`. A rule classifies by names; the table knows
the rest: which overloads are registered, that in-place forms are not, which composite ops are another op by a longer
name, and what autocast reaches inside the others. Knows no formats of values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from precision_audit import ops
from precision_audit.formats import is_float
from precision_audit.records import Op, Rule


@dataclass(frozen=True, slots=True)
class Effect:
    """`policy` is low, fp32, fp32-out, promote, banned, the name of a format to cast to, captured (cast back to what
    was captured), or "" for none. `registered`: torch does just this when it meets the op in an autocast region.
    `inner` are the policies of what autocast reaches inside the op, `result` the format that makes of its result where
    the table says it (low or fp32)."""

    policy: str
    reason: str
    registered: bool = False
    inner: frozenset[str] = frozenset()
    result: str = ""
    untouched: bool = False  # not autocast's business: the user's own region, a higher-order op


def table_effect(op: Op, device: str) -> Effect:
    """What torch.autocast on `device` does to `op`, policies aside."""
    row = ops.row(op.op)
    if in_region_of(op, device):
        return Effect("", f"fact: inside the model's own region ({op.region})", untouched=True)
    if op.fixed == "hand-written":
        return Effect("captured", "fact: hand-written gradient, kept as written", untouched=True)
    if row is None:
        return Effect("", "not in the op table: run as autocast finds it", inner=frozenset({"low"}))
    if row.subclass == "higher_order":
        return Effect("captured", "fact: a higher-order op keeps its captured formats", untouched=True)
    base, overload = _names(op)
    if base != row.name:
        return Effect("", "torch.autocast leaves in-place forms alone")
    policy = row.autocast(device, overload)
    if policy:
        return Effect(policy, f"torch.autocast {device}: {policy}", registered=True)
    whole = ops.row(row.whole(device))
    if whole is not None:
        policy = _policy_of(whole.name, device)
        return Effect(
            policy, f"all of it is {whole.name}, which torch.autocast {device} runs {policy}", registered=True
        )
    inner = row.inner(device)
    if inner:
        policies = frozenset(_policy_of(name, device) for name in inner) - {""}
        return Effect(
            "", f"torch.autocast acts inside: {', '.join(inner)}", inner=policies, result=row.inner_result(device)
        )
    return Effect("", f"torch.autocast {device} passes it through")


def in_region_of(op: Op, device: str) -> bool:
    """Whether the model itself sets autocast on `device` around `op`. A region of another device changes nothing."""
    return op.region.startswith(f"autocast {device} ")


def ruled_effect(op: Op, device: str, low: str, rule: Rule) -> Effect:
    """What the rule that matched `op` asks for, done in autocast's way."""
    table, origin = table_effect(op, device), f"policy {rule.origin} {rule.name}"
    given = rule.classification
    if table.untouched or table.policy == "banned":
        return table
    base, _ = _names(op)
    if ops.row(base) is not None and ops.OPS.get(base) is None:
        return Effect("", origin if given == "inherit" else f"fact: {table.reason}, over {origin}")
    if given == f"safe-in-{low}":
        return Effect("low", origin, registered=table.policy == "low")
    if given == "inherit":
        if rule.promote:
            return Effect("promote", origin, registered=table.policy == "promote")
        through = table.policy and not ops.OPS[op.op].autocast(device, _names(op)[1])
        reason = f"{origin}: {table.reason}"
        if through:
            return Effect(table.policy, reason, registered=True)
        return Effect("", reason if table.inner else origin, inner=table.inner, result=table.result)
    kept = given.removeprefix("keep-").removeprefix("pin:")
    if kept == "fp32" and table.policy == "fp32-out":
        return Effect("fp32-out", origin, registered=True)
    return Effect(kept if is_float(kept) else "", origin, registered=table.policy == kept)


def policy_rows(device: str, low: str) -> Mapping[str, tuple[str, ...]]:
    """The names that a policy file lists to reproduce torch.autocast, by class; `op.overload` where not every overload
    is registered. Ops that promote are of class `inherit` with `promote: true`; banned ones are kept high."""
    found: dict[str, list[str]] = {f"safe-in-{low}": [], "keep-fp32": [], "promote": [], "banned": []}
    classes = {"low": f"safe-in-{low}", "fp32": "keep-fp32", "fp32-out": "keep-fp32"}
    for row in ops.OPS.values():
        policy, _, overloads = (row.cuda if device == "cuda" else row.cpu).partition(":")
        if policy:
            names = [f"{row.name}.{each}" for each in overloads.split("|")] if overloads else [row.name]
            found[classes.get(policy, policy)].extend(names)
    return {name: tuple(sorted(names)) for name, names in found.items()}


def _policy_of(name: str, device: str) -> str:
    row = ops.OPS[name]
    return (row.cuda if device == "cuda" else row.cpu).partition(":")[0]


def _names(op: Op) -> tuple[str, str]:
    """Base name and overload as dispatched: `aten.add_.Tensor` → add_, Tensor."""
    _, _, rest = op.target.partition(".")
    base, _, overload = rest.partition(".")
    return base or op.op, overload or "default"
