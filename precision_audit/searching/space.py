"""What a search may choose from: policies in which every op is free but what must stay.

Takes what the user gave as `policy`, or nothing; gives one `Policy` per low format. Nothing given means the shipped
`search-bf16` and `search-fp16`, in which everything is free; a policy that is given restricts: its `keep-` and `pin:`
rules hold, what it calls safe in the low format or eligible for fp8 becomes free, since a budget may ask for it high.
Facts and the remedies of hazards hold in both. PA210 is left to the search: it weighs the same shares against a
tolerance that a search has no use for.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from precision_audit import policy as policies
from precision_audit.records import InputError, Policy, Rule

DEFAULT = ("search-bf16", "search-fp16")
WEIGHED = "PA210"  # the hazard that the search itself weighs


def given(policy: str | Path | Policy | None) -> tuple[Policy, ...]:
    """The policies as written, one per low format."""
    found = tuple(map(policies.load, DEFAULT)) if policy is None else (policies.load(policy),)
    for each in found:
        if each.autocast or any(rule.classification == "inherit" for rule in each.rules):
            raise InputError(
                f"policy {each.name} reproduces torch.autocast and leaves nothing to search; "
                f"give one with classes, such as {each.low}-{each.mode}, or none"
            )
        if not each.lowers:
            raise InputError(
                f"policy {each.name} keeps every op in {each.high} and leaves nothing to search; "
                "give one with a low format, such as bf16-inference, or none"
            )
    return found


def freed(policy: Policy) -> Policy:
    """The policy with everything free that it lets run low."""
    rules = tuple(_freed(rule, policy) for rule in policy.rules)
    hazards = tuple(sorted({**dict(policy.hazards), WEIGHED: "off"}.items()))
    return replace(policy, rules=rules, hazards=hazards, swap="eligible")


def _freed(rule: Rule, policy: Policy) -> Rule:
    if rule.classification in (f"safe-in-{policy.low}", "fp8-eligible"):
        return replace(rule, classification="follow", backend="", recipe="")
    return rule
