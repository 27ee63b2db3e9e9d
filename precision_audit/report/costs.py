"""The part of a report that says what a plan is predicted to cost; never shown among what was measured.

Takes a `Report` with a `Cost`; gives lines for the screen, rows by module, a paragraph for Markdown. Words say
"predicted" wherever a number is.
"""

from __future__ import annotations

from collections.abc import Iterator

from precision_audit.records import Cost, ModuleCost, Report
from precision_audit.report import phrases

_TOP = 12  # modules shown, dearest first


def lines(report: Report, verbose: bool = False) -> Iterator[str]:
    """Time and memory in a few lines; verbose: what else is known of them."""
    cost, plan = report.cost, report.plan
    if cost is None or not cost.seconds_high:
        return
    yield f"{said(report)}: {time(report)}"
    whose = f"the time of {beside}" if (beside := _beside(report)) != plan.high else f"{plan.high}'s time"
    touched = f"{_percent(cost.touchable)} of {whose} is in ops whose format can be chosen"
    yield f"  {touched}; memory at the peak {memory(report)}"
    if batch := largest(report):
        yield f"  {batch}"
    if verbose:
        yield f"  casts {phrases.duration(cost.cast_seconds)}" + _update(cost) + _bounds(cost)
        yield f"  memory of this plan: {_parts(cost)}"


def said(report: Report) -> str:
    """Predicted for what, on what grounds."""
    assert report.cost is not None
    step = "one training step" if report.plan.mode == "training" else "one forward"
    grounds = "from kernels measured here" if report.cost.measured else "from the device's figures"
    return f"predicted, not measured: {step} on {report.cost.device}, {grounds}"


def time(report: Report) -> str:
    """`all fp32 1.2 ms, plain bf16 0.61 ms, this plan 0.64 ms: 1.88x as fast as fp32, 1.05x as slow as plain bf16`."""
    cost, plan = report.cost, report.plan
    assert cost is not None
    named = _baseline(report)
    products = {"fp32": " (without TF32)", "tf32": " (products in TF32)"}.get(cost.fp32_products, "")
    parts = [f"{named} {phrases.duration(cost.seconds_high)}{products if 'fp32' in named else ''}"]
    ratios = [_ratio(cost.speed_up_over_high, _beside(report))]
    if plan.low != plan.high and cost.touchable:
        parts.append(f"plain {plan.low} {phrases.duration(cost.seconds_low)}")
        ratios.append(_ratio(cost.speed_up_over_low, f"plain {plan.low}"))
    parts.append(f"this plan {phrases.duration(cost.seconds)}")
    return ", ".join(parts) + ": " + ", ".join(ratios)


def memory(report: Report) -> str:
    """`1.20 GiB all fp32, 0.60 GiB plain bf16, 0.70 GiB this plan`."""
    cost, plan = report.cost, report.plan
    assert cost is not None
    parts = [f"{phrases.size(cost.memory_high.total)} {_baseline(report)}"]
    if plan.low != plan.high and cost.touchable:
        parts.append(f"{phrases.size(cost.memory_low.total)} plain {plan.low}")
    return ", ".join([*parts, f"{phrases.size(cost.memory.total)} this plan"])


def largest(report: Report) -> str:
    """The batch that fits the device, "" where it is not known."""
    cost = report.cost
    if cost is None or not cost.largest_batch:
        return ""
    room, beside = phrases.size(cost.capacity), f"; {cost.largest_batch_high} {_baseline(report)}"
    return f"largest batch in {room}: about {cost.largest_batch}{beside} (example {cost.batch})"


def module_header(report: Report) -> list[str]:
    return ["predicted by module", _baseline(report), f"plain {report.plan.low}", "this plan", "share"]


def module_rows(report: Report) -> list[list[str]]:
    """The dearest modules that lie in no dearer one of the same time."""
    cost = report.cost
    if cost is None or not cost.seconds:
        return []
    ranked = sorted(cost.modules, key=lambda each: -each.seconds)
    names = {each.module: each for each in cost.modules}
    shown = [each for each in ranked if each.module and not _only_part(each, names)][:_TOP]
    return [
        [
            each.module,
            *(phrases.duration(value) for value in (each.seconds_high, each.seconds_low, each.seconds)),
            _percent(each.seconds / cost.seconds),
        ]
        for each in shown
    ]


def _baseline(report: Report) -> str:
    return phrases.baseline(report.graph, report.plan.high)


def _beside(report: Report) -> str:
    return phrases.beside(report.graph, report.plan.high)


def _ratio(ratio: float, other: str) -> str:
    """Never less than one: what is not faster is slower."""
    if not ratio:
        return f"no time against {other}"
    return f"{ratio:.2f}x as fast as {other}" if ratio >= 1 else f"{1 / ratio:.2f}x as slow as {other}"


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")


def _only_part(each: ModuleCost, names: dict[str, ModuleCost]) -> bool:
    """Whether the module around it spends its time in this one alone, and so says the same."""
    around = names.get(each.module.rpartition(".")[0])
    return around is not None and bool(around.module) and around.seconds == each.seconds


def _update(cost: Cost) -> str:
    return f", optimizer's update {phrases.duration(cost.update_seconds)}" if cost.update_seconds else ""


def _bounds(cost: Cost) -> str:
    """What the plan's time is bound by."""
    spent: dict[str, float] = {}
    for op in cost.ops:
        spent[op.bound] = spent.get(op.bound, 0.0) + op.seconds
    whole = sum(spent.values())
    ranked = sorted((name for name in spent if name and spent[name]), key=lambda name: -spent[name])
    return "; bound by " + ", ".join(f"{name} {_percent(spent[name] / whole)}" for name in ranked) if whole else ""


def _parts(cost: Cost) -> str:
    held = cost.memory
    parts = (("weights", held.weights), ("activations", held.activations), ("gradients", held.gradients),
             ("optimizer", held.optimizer), ("second copies of weights", held.copies))  # fmt: skip
    return ", ".join(f"{name} {phrases.size(count)}" for name, count in parts if count) or "none"
