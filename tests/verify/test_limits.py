from __future__ import annotations

import pytest

from precision_audit.records import Policy, Rule
from precision_audit.verify.limits import limit

SWAPS = (Rule("linears", "p.yaml:1", "fp8-eligible", backend="torchao"),)


def _policy(low: str, tolerances: dict[str, float], rules: tuple[Rule, ...] = ()) -> Policy:
    return Policy("p", "p.yaml", "", "training", "fp32", low, rules, tolerances=tuple(sorted(tolerances.items())))


@pytest.mark.parametrize(
    ("low", "tolerances", "key", "name", "expected"),
    [
        ("bf16", {"relative_l2": 1e-2}, "relative_l2", "output", 1e-2),
        ("bf16", {"relative_l2": 1e-2}, "gradient_relative_l2", "w", 3e-1),
        ("bf16", {"relative_l2": 1e-2, "relative_l2:output[1]": 0.5}, "relative_l2", "output[1]", 0.5),
        ("bf16", {"relative_l2": 1e-2, "relative_l2:output[1]": 0.5}, "relative_l2", "output[0]", 1e-2),
        ("bf16", {}, "relative_l2", "output", 3e-2),
        ("fp16", {}, "relative_l2", "output", 5e-3),
        ("fp32", {}, "relative_l2", "output", 0.0),
        ("fp32", {}, "flip_rate", "output", 0.0),
        ("bf16", {}, "flip_rate", "output", 0.05),
        ("bf16", {"flip_rate": 0.1}, "flip_rate", "output", 0.1),
    ],
)
def test_limit(low: str, tolerances: dict[str, float], key: str, name: str, expected: float | None) -> None:
    assert limit(_policy(low, tolerances), key, name) == expected


def test_a_policy_that_swaps_is_judged_as_fp8() -> None:
    assert limit(_policy("bf16", {}, SWAPS), "relative_l2", "output") == 1e-1
