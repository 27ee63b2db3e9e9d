"""The training steps of a verification, in a few lines.

Takes a `Report`; gives lines of text: the loss curves, the worst errors beside the noise of dropout, updates that were
left out, what failed. Verbose: every step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from precision_audit.records import Report, Step, Steps
from precision_audit.report import phrases


def lines(report: Report, verbose: bool = False) -> Iterator[str]:
    """Nothing where no training step was verified."""
    found = report.verification.steps if report.verification else None
    if found is None or not (found.steps or found.notes):
        return
    if found.steps:
        yield _curves(found, report)
        yield _errors(found.steps, phrases.beside(report.graph, report.plan.high))
        if found.skipped:
            yield (
                f"  {phrases.count(found.skipped, 'update')} left out, gradients not finite; "
                f"loss scale {found.steps[0].scale:g} → {found.steps[-1].scale:g}"
            )
    yield from (f"  {'' if found.passed else 'FAIL  '}{note}" for note in found.notes)
    if verbose:
        beside = phrases.beside(report.graph, report.plan.high)
        yield from (_step(number, step, report.plan.low, beside) for number, step in enumerate(found.steps, 1))


def _curves(found: Steps, report: Report) -> str:
    steps, low = found.steps, report.plan.low
    how = f" with {found.optimizer}" if found.optimizer else ", weights unchanged"
    plain = [step.plain_loss for step in steps]
    curves = [
        f"{phrases.beside(report.graph, report.plan.high)} {_curve([step.loss for step in steps])}",
        f"this plan {_curve([step.converted_loss for step in steps])}",
    ]
    if plain and all(each is not None for each in plain):
        curves.append(f"plain {low} {_curve(plain)}")
    return f"{phrases.count(len(steps), 'training step')}{how}, {found.objective}: {'; '.join(curves)}"


def _curve(losses: Sequence[float | None]) -> str:
    """The first and the last."""
    ends = [losses[0], losses[-1]] if len(losses) > 1 else losses
    return " → ".join(f"{each:.5g}" for each in ends if each is not None)


def _errors(steps: Sequence[Step], beside: str) -> str:
    taken = [step for step in steps if not step.skipped] or list(steps)
    worst = max(taken, key=lambda step: step.gradient_error)
    at = f" ({worst.gradient}, step {steps.index(worst) + 1})" if worst.gradient else ""
    loss, gradient = (phrases.figure(max(step.loss_error for step in taken)), phrases.figure(worst.gradient_error))
    line = f"  worst error of the loss {loss}, of a gradient {gradient}{at}"
    noise = max(step.gradient_noise for step in steps)
    if not noise:
        return line
    losses = phrases.figure(max(step.loss_noise for step in steps))
    return f"{line}; {beside}, other dropout seed: {losses} and {phrases.figure(noise)}"


def _step(number: int, step: Step, low: str, beside: str) -> str:
    plain = f", plain {low} {step.plain_loss:.6g}" if step.plain_loss is not None else ""
    errors = f"{phrases.figure(step.loss_error)} and {phrases.figure(step.gradient_error)}"
    noise = (
        f"; other seed {phrases.figure(step.loss_noise)} and {phrases.figure(step.gradient_noise)}"
        if step.gradient_noise
        else ""
    )
    at = f" at {step.gradient}" if step.gradient else ""
    skipped = ", update left out" if step.skipped else ""
    return (
        f"  step {number}: {beside} {step.loss:.6g}, this plan {step.converted_loss:.6g}{plain}; "
        f"errors {errors}{at}{noise}{skipped}"
    )
