"""What the derivative of an op computes, in the words of a message.

Takes an op and the ranges of what it reads; gives a phrase with a number where the ranges tell one, "" for an op of
which nothing is known. Only ops whose derivative can be infinite, or zero times infinity, where the op itself is right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from precision_audit.records import Op, Range
from precision_audit.rules import Context

DIVIDES = {  # the op's derivative divides by
    "log": "x",
    "log2": "x",
    "log10": "x",
    "log1p": "1 + x",
    "xlogy": "y",
    "special_entr": "x",
    "logit": "x(1 - x)",
    "special_logit": "x(1 - x)",
    "sqrt": "twice the root",
    "hypot": "the root",
    "atan2": "x² + y²",
    "arctan2": "x² + y²",
    "acos": "√(1 - x²)",
    "arccos": "√(1 - x²)",
    "asin": "√(1 - x²)",
    "arcsin": "√(1 - x²)",
    "atanh": "1 - x²",
    "arctanh": "1 - x²",
    "acosh": "√(x² - 1)",
    "arccosh": "√(x² - 1)",
    "div": "the square of the denominator",
    "true_divide": "the square of the denominator",
    "std": "the standard deviation",
    "std_mean": "the standard deviation",
    "cdist": "the distance",
    "_cdist_forward": "the distance",
    "pdist": "the distance",
    "dist": "the distance",
    "pairwise_distance": "the distance",
    "cosine_similarity": "the norms",
    "prod": "each factor",
    "cumprod": "each factor",
    "layer_norm": "the standard deviation",
    "group_norm": "the standard deviation",
    "instance_norm": "the standard deviation",
    "batch_norm": "the standard deviation",
    "rms_norm": "the root mean square",
}
MULTIPLIES = {  # multiplies what it receives by
    "exp": "exp(x)",
    "exp2": "2^x",
    "expm1": "exp(x)",
    "sinh": "cosh(x)",
    "cosh": "sinh(x)",
    "tan": "1 + tan²(x)",
    "rsqrt": "the cube of its result",
    "reciprocal": "the square of its result",
    "square": "2x",
    "mul": "the other factor",
    "logsumexp": "exp(x - result), NaN where a row is all -inf",
    "softmax": "its result, NaN where a row is all -inf",
    "_softmax": "its result, NaN where a row is all -inf",
    "log_softmax": "exp(result), NaN where a row is all -inf",
    "logaddexp": "exp(x - result)",
    "erfinv": "exp(y²)",
    "special_erfinv": "exp(y²)",
    "matmul": "the other factor",
    "mm": "the other factor",
    "bmm": "the other factor",
}


def says(context: Context, op: Op) -> str:
    """Such as `its derivative divides by norm^2, down to 9.1e-09`."""
    special = SPECIAL.get(op.op)
    if special is not None:
        return f"its derivative {special(context, op)}"
    if op.op in DIVIDES:
        return f"its derivative divides by {DIVIDES[op.op]}"
    if op.op in MULTIPLIES:
        return f"its derivative multiplies by {MULTIPLIES[op.op]}"
    return ""


def _norm(context: Context, op: Op) -> str:
    order = _number(op, "ord", _number(op, "p", 2.0))
    smallest = _range(context, op.values[0])
    if order <= 2:
        return "divides by the norm" + (f", down to {smallest.smallest:.2g}" if smallest else "")
    low = smallest.smallest ** (order - 1) if smallest else 0.0
    return f"divides by norm^{order - 1:g}" + (f", down to {low:.2g}" if low else "")


def _power(context: Context, op: Op) -> str:
    exponent = _number(op, "exponent", 0.0)
    seen = _range(context, context.operand(op, "self"))
    if not exponent or seen is None:
        return "multiplies by e·x^(e-1)"
    of = seen.amax if exponent > 1 else seen.smallest
    reached = f", up to {abs(exponent) * of ** (exponent - 1):.2g}" if of else ""
    return f"multiplies by {exponent:g}·x^{exponent - 1:g}{reached}"


SPECIAL: dict[str, Callable[[Context, Op], str]] = {
    "linalg_vector_norm": _norm,
    "norm": _norm,
    "linalg_norm": _norm,
    "pow": _power,
}


def _number(op: Op, name: str, default: float) -> float:
    found: Any = dict(op.attributes).get(name, default)
    return float(found) if isinstance(found, int | float) else default


def _range(context: Context, value: str) -> Range | None:
    return context.ranges.get(value)
