"""Is the converted model right? Both models, the same inputs, the same random draws, and limits.

Takes the reference, the converted model and the same model wholly in the low format (*plain*), batches and a policy;
gives one `Verification`. Never trusts a reference that it has not run against itself, never blames the converted model
for a value that is not finite in the reference either, and never changes a model (see `runs.py`).

Every figure stands beside that of plain low precision, because 2e-2 says nothing until one knows what the format costs
anyway. Of several batches the worst counts, figure by figure. Figures: `measures.py`. Limits: `limits.py`. An integer
output has one figure, the share of elements that differ. A model that raises is a failed check with its text as a note.

What the reference differs by from itself is the noise floor: no limit can lie below it, and where the noise reaches a
limit `Verification.noise` is 1 or more, which the verdict takes for missing evidence.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from precision_audit.records import Comparison, Graph, InputError, Policy, Verification, error_line
from precision_audit.report.verdict import shapes_refused
from precision_audit.rewrite.converted import Converted
from precision_audit.verify.limits import limit, unused
from precision_audit.verify.measures import Measure, gradient_figure, is_discrete, largest_rms, measure, worst
from precision_audit.verify.runs import LOSS_SCALES, Batch, Conditions, Run, run, run_scaled

Model = Callable[..., Any]
Kind = Literal["output", "gradient"]

_FORWARD_AGREES = "no op parts by more than the limit going forward: look at the backward pass"


def verify(
    reference: Model,
    converted: Model,
    plain: Model | None,
    batches: Sequence[Batch],
    policy: Policy,
    *,
    loss: Callable[[Any], Tensor] | None = None,
    graph: Graph | None = None,
    first_parting: Callable[[int], str] | None = None,
    backward_parting: Callable[[float], str] | None = None,
    shapes_check: Callable[[], str] | None = None,
    names: Sequence[str] = (),
    captured_against_eager: str = "",
    emulated: Sequence[str] = (),
    seed: int = 0,
) -> Verification:
    """Runs all three on all batches and judges. `first_parting` is asked of the first batch that fails (or batch 0),
    only when a figure fails, `backward_parting` (with the loss scale) where that finds none; `shapes_check` gives
    "pass" or what failed; `names` are the outputs."""
    if not batches:
        raise InputError("verify: no batch to run; expected at least one, give example_inputs or --input")
    written: frozenset[str] = reference.written if isinstance(reference, Converted) else frozenset()
    conditions = Conditions(policy.mode == "training", loss, seed, False, tuple(names), written)
    session = _Session(policy, graph, conditions)
    session.check_reference(reference, batches[0])
    for index, batch in enumerate(batches):
        session.compare(index, batch, reference, converted, plain)
    return session.result(first_parting, backward_parting, shapes_check, captured_against_eager, tuple(emulated))


class _Session:
    """What has been seen so far in one verification."""

    def __init__(self, policy: Policy, graph: Graph | None, conditions: Conditions) -> None:
        self.policy, self.graph, self.conditions = policy, graph, conditions
        self.own: dict[Kind, dict[str, Measure]] = {"output": {}, "gradient": {}}
        self.parted: int | None = None  # the first batch with an output above its limit
        self.plain: dict[Kind, dict[str, Measure]] = {"output": {}, "gradient": {}}
        self.floor: dict[tuple[Kind, str], float] = {}  # what the reference differs by from itself
        self.discrete: dict[str, str] = {}  # integer and bool outputs, with their format
        self.scales: dict[str, float] = {}
        self.zero_gradients: dict[str, None] = {}
        self.notes: list[str] = []
        self.reference, self.device = "", "CPU"
        self.whole = self.judgeable = True

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def check_reference(self, reference: Model, batch: Batch) -> None:
        """Twice under the same draws: what differs is noise that no comparison can see through."""
        first = self._run_reference(reference, 0, batch)
        if first.moved:
            self.conditions = dataclasses.replace(self.conditions, draws=True)
            self.note("random draws (dropout) are made in fp32 and shared by all runs, so that masks agree")
            first = self._run_reference(reference, 0, batch)
        second = self._run_reference(reference, 0, batch, first.norms)
        largest = largest_rms(first.gradients.values())
        for kind, name, left, right in _pairs(first, second):
            if not _same_bits(left, right):
                found = measure(left, right)
                self.floor[kind, name] = found.relative_l2 if kind == "output" else gradient_figure(found, largest)[0]
        for text in unused(self.policy, first.outputs, first.gradients):
            self.note(text)
        self.reference = _against_itself(self.floor)
        self._describe_reference(first)

    def compare(self, index: int, batch: Batch, reference: Model, converted: Model, plain: Model | None) -> None:
        good = self._run_reference(reference, index, batch)
        found = self._attempt("the converted model", converted, index, batch, good)
        if found is None:
            self.whole = False
        else:
            self._check_structure(good, found)
            self._measure(good, found, self.own)
            if self.parted is None and any(seen.relative_l2 > self._allowed(*one) for one, seen in self._outputs()):
                self.parted = index
        del found  # its gradients are as large as the model
        beside = self._attempt(f"plain {self.policy.low}", plain, index, batch, good) if plain else None
        if beside is not None:
            self._measure(good, beside, self.plain)

    def result(
        self,
        first_parting: Callable[[int], str] | None,
        backward_parting: Callable[[float], str] | None,
        shapes_check: Callable[[], str] | None,
        captured_against_eager: str,
        emulated: tuple[str, ...],
    ) -> Verification:
        outputs, gradients = self._judge("output"), self._judge("gradient")
        self._note_zero_gradients()
        shapes = shapes_check() if shapes_check else ""
        agrees = self.whole and all(each.passed for each in (*outputs, *gradients))
        parting = first_parting(self.parted or 0) if first_parting and not agrees else ""
        if first_parting and not agrees and not parting and gradients:
            self.note(self._backward(backward_parting) if backward_parting else _FORWARD_AGREES)
        return Verification(
            passed=agrees and not shapes_refused(shapes),
            outputs=outputs,
            gradients=gradients,
            reference=self.reference,
            captured_against_eager=captured_against_eager,
            shapes=shapes,
            first_parting=parting,
            emulated=emulated,
            notes=tuple(self.notes),
            device=self.device,
            noise=self.noise(),
        )

    def _backward(self, find: Callable[[float], str]) -> str:
        key = find(self.scales.get("the converted model", 1.0))
        source = next((op.source for op in self.graph.ops if op.key == key), None) if self.graph else None
        where = f" ({source.file.rsplit('/', 1)[-1]}:{source.line})" if source else ""
        return f"{_FORWARD_AGREES}, where gradients part first at {key}{where}" if key else _FORWARD_AGREES

    def _judge(self, kind: Kind) -> tuple[Comparison, ...]:
        return tuple(self._judge_one(kind, name, found) for name, found in self.own[kind].items())

    def noise(self) -> float:
        """The largest noise in units of its limit; infinite where the reference is NaN."""
        if not self.judgeable:
            return math.inf
        found = 0.0
        for (kind, name), value in self.floor.items():
            allowed = self._limit(kind, name)
            if allowed is not None:
                found = max(found, value / allowed if allowed else math.inf)
        return found

    def _note_zero_gradients(self) -> None:
        names = list(self.zero_gradients)
        if names:
            more = ", …" if len(names) > 3 else ""
            self.note(
                f"zero but for rounding, hence judged relative to the largest gradient: {len(names)} gradient"
                f"{'s' if len(names) > 1 else ''} ({', '.join(names[:3])}{more})"
            )

    def _describe_reference(self, first: Run) -> None:
        for index, (name, value) in enumerate(first.outputs.items()):
            if value.device.type != "cpu":
                self.device = value.device.type.upper()
            if is_discrete(value):
                self.discrete[name] = str(value.dtype).removeprefix("torch.")
            lost = int((~torch.isfinite(value)).sum())
            if lost:
                makers = self.graph.outputs[index : index + 1] if self.graph else ()
                made = f", made by {makers[0]}" if makers else ""
                self.note(f"the reference itself is not finite: {lost} of {value.numel()} elements of {name}{made}")
            self.judgeable = self.judgeable and not bool(torch.isnan(value).any())
        if self.conditions.training and not first.gradients:
            self.note("no gradient to compare: no output depends on a trainable parameter")

    def _run_reference(
        self, reference: Model, index: int, batch: Batch, norms: Mapping[str, float] | None = None
    ) -> Run:
        try:
            return run(reference, batch, self.conditions, norms)
        except InputError:
            raise
        except Exception as error:
            what = "forward, loss or backward" if self.conditions.training else "forward"
            raise InputError(
                f"the model itself, not converted, fails on batch {index} ({what}): {error_line(error, 300)}; mend it, "
                f"or give inputs of the shapes it was captured with (batch 0 is the example)"
            ) from error

    def _attempt(self, label: str, model: Model, index: int, batch: Batch, good: Run) -> Run | None:
        if isinstance(model, Converted):
            batch = model.as_read(*batch)
        try:
            if self.policy.low != "fp16" or not good.gradients:
                return run(model, batch, self.conditions, good.norms)
            found = run_scaled(model, batch, self.conditions, good.norms, self.scales.get(label, LOSS_SCALES[0]))
        except Exception as error:  # whatever a model raises: its text is the finding
            self.note(f"{label} failed on batch {index}: {error_line(error, 300)}")
            return None
        if found.scale != self.scales.get(label):
            self.note(f"gradients of {label} under loss scale {found.scale:g}, the first that leaves them finite")
        self.scales[label] = found.scale
        return found

    def _check_structure(self, good: Run, found: Run) -> None:
        for kind, left, right in (
            ("output", good.outputs, found.outputs),
            ("gradient of", good.gradients, found.gradients),
        ):
            for name in sorted(left.keys() ^ right.keys()):
                self.whole = False
                self.note(f"{kind} {name} is only in the {'reference' if name in left else 'converted model'}")
        for name, before in good.outputs.items():
            after = found.outputs.get(name, before)
            if before.shape != after.shape:
                self.note(f"{name} has shape {tuple(after.shape)}, the reference {tuple(before.shape)}")
            if self.policy.keep_io_types and before.dtype != after.dtype:
                self.whole = False
                self.note(f"{name} is {after.dtype}, the reference {before.dtype}".replace("torch.", ""))

    def _measure(self, good: Run, found: Run, into: dict[Kind, dict[str, Measure]]) -> None:
        largest = largest_rms(good.gradients.values())
        for kind, name, left, right in _pairs(good, found):
            seen = measure(left, right, rows=kind == "output")
            if kind == "gradient":
                figure, zero = gradient_figure(seen, largest)
                seen = dataclasses.replace(seen, relative_l2=figure)
                if zero:
                    self.zero_gradients[name] = None
            rows = into[kind]
            rows[name] = worst(rows[name], seen) if name in rows else seen

    def _judge_one(self, kind: Kind, name: str, found: Measure) -> Comparison:
        if kind == "output" and name in self.discrete and found.relative_l2:
            self.note(f"{name} ({self.discrete[name]}): {found.relative_l2:.2%} of its elements differ")
        if kind == "output" and not found.compared:
            what = "no finite element in the reference" if found.count else "no element in any batch"
            self.note(f"{name} has {what}: nothing of it was compared")
        allowed = None if self._limit(kind, name) is None else self._allowed(kind, name)
        beside = self.plain[kind].get(name)
        return Comparison(
            name=name,
            relative_l2=found.relative_l2,
            max_abs=found.max_abs,
            sqnr_db=found.sqnr_db,
            cosine=found.cosine,
            nonfinite=found.nonfinite,
            reference_nonfinite=found.reference_nonfinite,
            flip_rate=found.flip_rate if kind == "output" else None,
            plain_relative_l2=beside.relative_l2 if beside else None,
            limit=allowed,
            passed=allowed is None or found.relative_l2 <= allowed,
            compared=found.compared,
            row_median=found.row_median,
            plain_row_median=beside.row_median if beside else None,
            figure="elements changed" if kind == "output" and name in self.discrete else "relative L2",
        )

    def _outputs(self) -> list[tuple[tuple[Kind, str], Measure]]:
        return [(("output", name), seen) for name, seen in self.own["output"].items()]

    def _allowed(self, kind: Kind, name: str) -> float:
        """The limit, or how far the reference is from itself where that is more; infinite without a limit."""
        asked = self._limit(kind, name)
        return math.inf if asked is None else max(asked, self.floor.get((kind, name), 0.0))

    def _limit(self, kind: Kind, name: str) -> float | None:
        if kind == "gradient":
            return limit(self.policy, "gradient_relative_l2", name)
        return limit(self.policy, "flip_rate" if name in self.discrete else "relative_l2", name)


def _pairs(one: Run, other: Run) -> list[tuple[Kind, str, Tensor, Tensor]]:
    """Outputs and gradients that both runs have, in the order of the first."""
    found: list[tuple[Kind, str, Tensor, Tensor]] = []
    for name, value in one.outputs.items():
        if name in other.outputs:
            found.append(("output", name, value, other.outputs[name]))
    for name, value in one.gradients.items():
        if name in other.gradients:
            found.append(("gradient", name, value, other.gradients[name]))
    return found


def _same_bits(left: Tensor, right: Tensor) -> bool:
    """Equal, NaN in the same places included."""
    if left.shape != right.shape or torch.equal(left, right):
        return left.shape == right.shape
    return bool(((left == right) | (torch.isnan(left) & torch.isnan(right))).all())


def _against_itself(floor: dict[tuple[Kind, str], float]) -> str:
    if not floor:
        return "bitwise equal to itself"
    (kind, name), value = max(floor.items(), key=lambda item: (item[1], item[0]))
    label = name if kind == "output" else f"gradient of {name}"
    return f"differs from itself by {value:.1e} (relative L2) at {label}: no limit can lie below that"
