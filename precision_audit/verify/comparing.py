"""What verification compares: eager, captured, converted, plain low precision, and the device's shape rules.

Takes everything that was made of a model; gives the `Verification`. Knows how to build the four modules; how they are
run and judged is `verify`'s. Changes none of them.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from precision_audit.analyse.training.optimizers import Factory
from precision_audit.capture import Captured, set_mode
from precision_audit.capture.containers import without_cache
from precision_audit.plain import as_cast
from precision_audit.planning import Planned
from precision_audit.records import NO_FACTS, Facts, Hardware, InputError, Mode, Plan, Policy, Verification
from precision_audit.report.provenance import emulated, stand_in_notes
from precision_audit.rewrite import rewrite, unchanged
from precision_audit.rewrite.converted import Converted
from precision_audit.verify import parting, parting_backward, verify
from precision_audit.verify.device_shapes import check_shapes
from precision_audit.verify.eager import against_eager, follows_example, named_path
from precision_audit.verify.limits import limit
from precision_audit.verify.runs import Batch
from precision_audit.verify.training_steps import training_steps


@dataclass(frozen=True)
class Teaching:
    """What gradients descend from, what moves the weights and how often, and what analysis learned of both."""

    loss: Callable[[Any], torch.Tensor] | None = None
    optimizer: Factory | None = None
    steps: int = 3
    facts: Facts = NO_FACTS

    @property
    def custom(self) -> bool:
        """Whether hand-written gradients are missing from the capture, which PA309 says."""
        return any(each.difference for each in self.facts.functions)

    @property
    def scale(self) -> float | None:
        """The loss scale that training evidence recommends for fp16, None without one."""
        found = self.facts.training.scale if self.facts.training else None
        return found.recommended if found is not None and found.format == "fp16" and found.fits else None


def compare(
    original: nn.Module | torch.export.ExportedProgram,
    captures: Mapping[Mode, Captured],
    made: Mapping[Mode, Planned],
    converted: Converted,
    policy: Policy,
    hardware: Hardware,
    batches: Sequence[Batch],
    teaching: Teaching,
    signature: inspect.Signature | None,
) -> Verification:
    """Run and judge. The reference is the captured graph, which was compared with eager first; that its gradients are
    others is no refusal where hand-written ones are known to be missing from it. In training, with a loss or an
    optimizer, training steps follow."""
    loss, optimizer, steps = teaching.loss, teaching.optimizer, teaching.steps
    mode = policy.mode
    plan = made[mode].plan
    if plan.autocast and plan.autocast_device == "cuda" and not torch.cuda.is_available():
        inside = ", ".join(plan.autocast[:2]) + (", …" if len(plan.autocast) > 2 else "")
        why = f"not run: {inside} runs inside torch.autocast('cuda'), which needs a CUDA device"
        return Verification(True, (), noise=math.inf, notes=(why,))
    main = {mode: captures[mode]}
    reference = unchanged(main, signature=signature)
    converted.train(mode == "training")
    plain = _plain(main, mode, policy, hardware, signature)
    found = verify(
        reference,
        converted,
        plain,
        batches,
        policy,
        loss=loss,
        graph=captures[mode].graph,
        first_parting=lambda index: parting.find(
            captures[mode].graph,
            reference,
            converted,
            batch=batches[index],
            tolerance=limit(policy, "relative_l2", "") or 0,
        ),
        backward_parting=lambda scale: parting_backward.find(
            captures[mode].graph,
            reference,
            converted,
            batch=batches[0],
            tolerance=limit(policy, "gradient_relative_l2", "") or 0,
            loss=loss,
            scale=scale,
        ),
        shapes_check=(lambda: check_shapes(converted, *batches[0], mode=plan.mode)) if _on_meta(plan) else None,
        captured_against_eager=eager(original, reference, captures[mode], batches[0], mode, teaching.custom),
        emulated=emulated(plan),
    )
    found = replace(found, notes=(*found.notes, *stand_in_notes(plan)))
    if mode != "training" or (loss is None and optimizer is None):
        return found
    learned = training_steps(reference, converted, plain, batches, policy, loss, optimizer, steps, scale=teaching.scale)
    return replace(found, steps=learned, passed=found.passed and learned.passed)


def _on_meta(plan: Plan) -> bool:
    """Whether the kernels' own checks can be asked without a GPU: those of Float8Linear."""
    return any(swap.kind == "Float8Linear" for swap in plan.swaps)


def _plain(
    captures: Mapping[Mode, Captured],
    mode: Mode,
    policy: Policy,
    hardware: Hardware,
    signature: inspect.Signature | None,
) -> Converted | None:
    plan = as_cast(captures[mode].graph, policy, hardware)
    return None if plan is None else rewrite(captures, {mode: plan}, signature=signature, as_written=True)


def eager(
    original: nn.Module | torch.export.ExportedProgram,
    reference: Converted,
    captured: Captured,
    batch: Batch,
    mode: Mode,
    custom: bool,
) -> str:
    if not isinstance(original, nn.Module):
        return ""
    set_mode(original, mode)
    guarded = follows_example(captured.graph)
    with without_cache(original):
        try:
            name = type(original).__name__
            return against_eager(original, reference, batch, name, guarded, mode == "training", custom)
        except InputError as error:
            raise named_path(error, captured.graph) from error
