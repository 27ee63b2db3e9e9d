"""How large an error may be.

Takes a policy and the name of a figure; gives its limit, or None where any value passes. The policy's `tolerances`
come first:
    relative_l2, gradient_relative_l2              every float output, every parameter
    relative_l2:NAME, gradient_relative_l2:NAME    one output (`output['logits']`) or parameter, before the general one
    flip_rate, flip_rate:NAME                      share of changed elements of an integer or bool output
and where they are silent `DEFAULT_TOLERANCES` by the lowest format that the policy asks for, and `FLIPS` for an integer
output: a decision flips where two scores are close, and `verify` always says so, but not many may.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator

from precision_audit.records import Policy

# format → limits for outputs and for gradients: about 8 and 80 unit roundoffs (2^-8 for bf16, 2^-11 for fp16, 2^-4 for
# fp8_e4m3, there 2 and 8), room for the errors of a deep model to add up; fp16's gradients have range to lose as well,
# and plain convolutional nets with batch statistics were seen at 0.12. The fp32 identity must be bitwise.
DEFAULT_TOLERANCES = {
    "fp32": (0.0, 0.0),
    "fp64": (0.0, 0.0),
    "bf16": (3e-2, 3e-1),
    "fp16": (5e-3, 1.5e-1),
    "fp8": (1e-1, 5e-1),
}

_LISTED = 8  # names listed where none is near

FLIPS = 0.05  # share of an integer output's elements that may change in a low format


def limit(policy: Policy, key: str, name: str) -> float | None:
    """The limit for one figure of one output or parameter: `key` is relative_l2, gradient_relative_l2 or flip_rate."""
    given = dict(policy.tolerances)
    for wanted in (f"{key}:{name}", key):
        if wanted in given:
            return given[wanted]
    output, gradient = DEFAULT_TOLERANCES[_lowest(policy)]
    if key == "flip_rate":
        return 0.0 if output == 0 else FLIPS
    return gradient if key == "gradient_relative_l2" else output


def unused(policy: Policy, outputs: Iterable[str], parameters: Iterable[str]) -> Iterator[str]:
    """Limits of single outputs and parameters that there are not: a typo would leave them without."""
    known = {"output": list(outputs), "parameter": list(parameters)}
    for key, _ in policy.tolerances:
        figure, _, name = key.partition(":")
        kind = "parameter" if figure == "gradient_relative_l2" else "output"
        if name and name not in known[kind] and (kind == "output" or policy.mode == "training"):
            yield f"tolerance {key} limits nothing: there is no {kind} {name}{_instead(name, known[kind])}"


def _instead(name: str, known: list[str]) -> str:
    """The nearest name; an output is often written without the `output[...]` around its key."""
    inside = [each for each in known if f"'{name}'" in each]
    near = inside or difflib.get_close_matches(name, known, 1, 0.4)
    if not near and len(known) > _LISTED:
        return ""
    return f" (did you mean {near[0]}?)" if near else f"; there are {', '.join(known) or 'none'}"


def _lowest(policy: Policy) -> str:
    if any(rule.backend for rule in policy.rules):
        return "fp8"
    return policy.low if policy.low in DEFAULT_TOLERANCES else "fp8"
