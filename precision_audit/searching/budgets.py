"""What a found plan must keep to: each budget one `Limit` with a measure and a bound.

Takes what the user wrote (`relative_l2=1e-2`, `{"sqnr": 30}`, a function and a number) and the outputs of the model;
gives `Limit`s, and of a run their measured numbers. `usage` puts them on one scale: 1 is the whole budget, less is
better, so that the search need not know what it is judged by. Never runs a model; a wrong budget is refused before
anything is run where no output is needed to see it.

    relative_l2   largest ‖difference‖ / ‖reference‖ of any float output, over all batches
    sqnr          smallest signal-to-noise ratio of any float output, in dB: at least this
    argmax_flip   largest share of rows whose largest element is another one
    metric, metric_drop, metric_rise
                  how far the user's own number may move either way, fall, or rise; `1%` is of the reference's number
    a function    of the reference's output and the converted model's, whose number may be at most the bound
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from precision_audit.records import InputError, kind_of

NAMES = ("relative_l2", "sqnr", "argmax_flip", "metric", "metric_drop", "metric_rise")
OF_METRIC = ("metric", "metric_drop", "metric_rise")
_MOVES = {"metric": "moves", "metric_drop": "falls", "metric_rise": "rises"}
_EXAMPLE = "such as relative_l2=1e-2"
_EXAMPLES = {"sqnr": "30", "argmax_flip": "0.001", "metric": "1%", "metric_drop": "1%", "metric_rise": "1%"}
# Of the others zero may be met: no choice changed, no metric fell.
_NEVER_ZERO = {
    "relative_l2": "nothing that is rounded meets it",
    "sqnr": "an error as large as the output meets it",
}
_MOST_DB = 320.0  # fp64 has about that
_OVERFLOWS = 6000.0  # dB; as an amplitude 1e300

Key = str | Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Limit:
    """`bound` as the user gave it; `function` where the measure is the user's; `relative` to the reference's metric."""

    name: str
    bound: float
    function: Callable[..., Any] | None = None
    relative: bool = False

    @property
    def measure(self) -> str:
        """One of `NAMES`; "" where it is the user's function, whatever that is called."""
        return "" if self.function is not None else self.name

    @property
    def of_metric(self) -> bool:
        return self.measure in OF_METRIC

    def usage(self, measured: float, reference: float = 0.0) -> float:
        """The part of the budget that is used up; `reference` is the reference model's own metric."""
        if math.isnan(measured):
            return math.inf
        if self.measure == "sqnr":  # as amplitudes, like the other errors
            lacking = self.bound - measured
            return float(10.0 ** (lacking / 20.0)) if lacking < _OVERFLOWS else math.inf
        used, allowed = max(self.excess(measured, reference), 0.0), self.allowed(reference)
        if not allowed:  # of zero, or a percentage of a metric that is zero
            return math.inf if used else 0.0
        return used / allowed

    def excess(self, measured: float, reference: float) -> float:
        """What is compared with `allowed`."""
        if self.measure == "metric":
            return abs(measured - reference)
        if self.of_metric:
            return measured - reference if self.measure == "metric_rise" else reference - measured
        return measured

    def allowed(self, reference: float = 0.0) -> float:
        return self.bound * abs(reference) if self.relative else self.bound

    @property
    def error(self) -> float:
        """The relative L2 that uses the whole budget, 0.0 where none can be told."""
        if self.measure == "relative_l2":
            return self.bound
        return 10.0 ** (-self.bound / 20.0) if self.measure == "sqnr" else 0.0

    @property
    def stated(self) -> str:
        bound = f"{self.bound:.4g}" if not self.relative else f"{self.bound * 100:.4g} % of the model's own"
        if self.of_metric:
            return f"metric {_MOVES[self.name]} by at most {bound}"
        return f"{self.name} >= {bound} dB" if self.measure == "sqnr" else f"{self.name} <= {bound}"


def limits(budget: Any, metric: Callable[..., Any] | None = None) -> tuple[Limit, ...]:
    """Every budget, validated."""
    if not isinstance(budget, Mapping):
        raise InputError(f"budget is {kind_of(budget)}; expected a dict {_EXAMPLE.replace('=', ': ')}")
    found = tuple(_limit(key, value) for key, value in budget.items())
    if not found:
        raise InputError(f"budget is empty; expected at least one of {', '.join(NAMES)}, {_EXAMPLE}")
    asked = [limit.name for limit in found if limit.of_metric]
    if asked and metric is None:
        raise InputError(
            f"budget {asked[0]}: there is no metric; give metric= (--metric mod:fn), or define metric in the model file"
        )
    if metric is not None and not callable(metric):
        raise InputError(f"metric is {kind_of(metric)}; expected a function of the model that returns a number")
    return found


def parse(texts: tuple[str, ...], resolve: Callable[[str], Callable[..., Any]]) -> dict[Key, Any]:
    """Budgets as typed: `name=number`, or `mod:fn=number` with a function that `resolve` finds."""
    found: dict[Key, Any] = {}
    for text in (part for each in texts for part in each.split(",")):
        name, equals, value = text.rpartition("=")
        name = name.strip().removesuffix("<").removesuffix(">").strip()
        if not equals or not name or not value.strip():
            raise InputError(f"--budget {text}: expected NAME=NUMBER, {_EXAMPLE}")
        key: Key = name
        if ":" in name:
            key = resolve(name)
        if key in found:
            raise InputError(f"--budget {text}: {name} is given twice; keep one of them")
        found[key] = value.strip()
    return found


def _limit(key: Any, value: Any) -> Limit:
    if callable(key):
        name = getattr(key, "__name__", type(key).__name__)
        return Limit(name, _number(name, value, own=True)[0], key)
    if not isinstance(key, str):
        raise InputError(f"budget {key!r}: expected a name or a function; names are {', '.join(NAMES)}")
    if key not in NAMES:
        near = difflib.get_close_matches(key, NAMES, 1)
        mend = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(NAMES)}, or a function mod:fn"
        raise InputError(f"budget {key}: no such measure; {mend}")
    bound, relative = _number(key, value)
    if relative and key not in OF_METRIC:
        raise InputError(f"budget {key}={value}: a percentage is of the user's metric only; write {bound:g}")
    if key == "argmax_flip" and bound >= 1:
        raise InputError(f"budget argmax_flip={bound:g}: is a share of rows; expected a number between 0 and 1")
    if key == "sqnr" and bound > _MOST_DB:
        raise InputError(f"budget sqnr={bound:g}: no format has so many dB; expected at most {_MOST_DB:g}, such as 30")
    return Limit(key, bound, relative=relative)


def _number(name: str, value: Any, own: bool = False) -> tuple[float, bool]:
    """A finite number, not below zero, and whether it was a percentage. `own`: of the user's function, so called."""
    never_zero = "" if own else _NEVER_ZERO.get(name, "")
    example = f"such as {name}={_EXAMPLES.get(name, '1e-2')}"
    text = value.strip() if isinstance(value, str) else value
    relative = isinstance(text, str) and text.endswith("%")
    try:
        if isinstance(value, bool):
            raise TypeError
        bound = float(text[:-1]) / 100 if relative else float(text)
    except (TypeError, ValueError) as error:
        raise InputError(f"budget {name}={value}: is no number; expected {example}") from error
    except OverflowError as error:
        raise InputError(f"budget {name}: is larger than any float; expected {example}") from error
    if not math.isfinite(bound):
        raise InputError(f"budget {name}={value}: expected a finite number; {example}")
    if bound < 0 or (bound == 0 and never_zero):
        what = never_zero if bound == 0 else "no error is below zero"
        expected = "a number above zero" if never_zero else "zero or more"
        raise InputError(f"budget {name}={value}: {what}; expected {expected}, {example}")
    return bound, relative
