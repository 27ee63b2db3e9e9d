"""The pictures of one report, written to a folder: what `--pictures FOLDER` does.

Takes a `Report` with the evidence of its run; writes each picture as SVG and as PNG, under fixed names, replacing those
of an earlier run and touching nothing else in the folder. Gives the files written, and why there are none where there
are none. The scaled histogram is that of the recommended loss scale, where one is recommended.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from precision_audit.pictures.drawing import SUFFIXES
from precision_audit.pictures.frontier import frontier
from precision_audit.pictures.gradient_histogram import gradient_histogram
from precision_audit.pictures.training_curves import training_curves
from precision_audit.pictures.underflow_and_scale import underflow_and_scale
from precision_audit.records import Report, Training

NAMES = ("frontier", "gradient_histogram", "underflow_and_scale", "training_curves")


def draw(report: Report, folder: Path) -> tuple[list[Path], str]:
    """Write what can be drawn of the report into `folder`, which is made if need be; its parent must exist."""
    drawn: dict[str, Callable[[Path], Path]] = {}
    search, training = report.search, report.facts.training
    if search is not None:
        drawn["frontier"] = lambda path: frontier(search, path)
    if training is not None:
        drawn["gradient_histogram"] = lambda path: _histogram(training, report.plan.low, path)
    taken = report.verification.steps if report.verification else None
    if training is not None and taken is not None and len(taken.steps) > 1:
        count = min(len(training.below), len(taken.steps))
        below, scales = training.below[:count], [step.scale for step in taken.steps[:count]]
        drawn["underflow_and_scale"] = lambda path: underflow_and_scale(below, scales, path)
    curves = _curves(report)
    if curves:
        drawn["training_curves"] = lambda path: training_curves(curves, path, title="Loss, converted and as captured")
    if not drawn:
        return [], _why(report)
    folder.mkdir(exist_ok=True)
    return [draw(folder / f"{name}{suffix}") for name, draw in drawn.items() for suffix in SUFFIXES], ""


def _histogram(training: Training, low: str, path: Path) -> Path:
    scale = training.scale
    recommended = scale.recommended if scale is not None and scale.format == low and scale.fits else None
    return gradient_histogram(training, path, low, ("weight_gradients", "activation_gradients"), scale=recommended)


def _curves(report: Report) -> dict[str, list[float]]:
    """Losses of the steps that verification trained side by side; none where it took none."""
    taken = report.verification.steps if report.verification else None
    if taken is None or taken.objective != "loss" or len(taken.steps) < 2:
        return {}
    curves = {
        report.plan.high: [step.loss for step in taken.steps],
        report.plan.policy: [step.converted_loss for step in taken.steps],
    }
    plain = [step.plain_loss for step in taken.steps if step.plain_loss is not None]
    return curves | ({f"plain {report.plan.low}": plain} if len(plain) == len(taken.steps) else {})


def _why(report: Report) -> str:
    if report.plan.mode != "training":
        return (
            f"no pictures: policy {report.plan.policy} is for inference, so there are no gradients; "
            f"expected a policy for training, such as --policy {report.plan.low}-training"
        )
    notes = [note for note in report.facts.notes if "train" in note or "gradient" in note]
    why = notes[0] if notes else "no step was trained; define loss (and make_optimizer) in the model's file"
    return f"no pictures: {why}"
