"""Training evidence: a few real steps of the user's model, loss and optimizer, in the captured format.

Takes a `Lesson` (capture, loss, optimizer, number of steps), the policy (for which values may run low) and batches;
gives `Training`: gradients of every weight and activation, updates against the weights, optimizer state, the loss scale
that the policy's low format needs. Steps are taken on a copy: parameters, buffers and random generators of the user's
are never touched, and no gradient is kept beyond its counts. Nothing is scaled here, and nothing runs low but a second
optimizer: what a format would do to these numbers is worked out from them.

    lessons     how the model is trained: what the user gave, on which capture
    steps       the run: hooks count every gradient as it is made
    loss_scale  from the gradients' ranges to the scales
    updates     |update| against the spacing of the weights
    optimizers  the user's factory, and what it makes; low_optimizer: the same over parameters in the low format
"""

from __future__ import annotations

from collections.abc import Sequence

from precision_audit import autocast
from precision_audit.analyse.quantised import Products
from precision_audit.analyse.training.lessons import STEPS, Lesson, lesson_of
from precision_audit.analyse.training.loss_scale import idle, loss_scale, noise
from precision_audit.analyse.training.steps import Taken, taken
from precision_audit.decide import Decided, decisions_alone
from precision_audit.formats import FORMATS
from precision_audit.plan import plan as cheapest
from precision_audit.policy.match import STATE
from precision_audit.records import Graph, Hardware, InputError, Policy, Range, Training
from precision_audit.verify.runs import Batch

__all__ = ["STEPS", "Lesson", "lesson_of", "training"]


def training(
    lesson: Lesson,
    policy: Policy,
    hardware: Hardware,
    batches: Sequence[Batch],
    ranges: Sequence[Range],
    products: Products | None = None,
) -> tuple[Training | None, tuple[str, ...]]:
    """The evidence and what it lacks, one sentence each; no evidence where there is no loss.

    `ranges`: of the forward pass over all batches. Without an optimizer the weights stay as they are and every batch of
    a step shows its gradients at them. `products` is shown gradients. Raises InputError for a loss or optimizer that
    cannot be used, and for a model that fails in the captured format already.
    """
    captured = lesson.captured
    found = taken(captured, batches, lesson.loss, lesson.optimizer, lesson.steps, policy.low, products)
    if found is None and lesson.explicit:
        raise InputError(
            "training evidence needs a loss: the output is no single number and has no `loss`; expected "
            "loss=lambda output: …, a function of the output that gives one (in a model file: def loss(output))"
        )
    if found is None:
        return None, ("no loss given and the output is no single number: nothing is known of gradients; give loss=",)
    low = runs_low(captured.graph, policy, hardware)
    gradients = (*found.weight_gradients, *found.activation_gradients)
    weights = {each.value for each in found.weight_gradients}
    still = noise(found.weight_gradients) | idle(found.activation_gradients, ranges)
    held = [each for each in gradients if each.value in low - still]
    computed = {value for op in captured.graph.ops if op.kind not in STATE for value in op.values}
    return (
        Training(
            steps=lesson.steps,
            losses=found.losses,
            weights=tuple(each for each in ranges if each.value in weights),
            weight_gradients=found.weight_gradients,
            activations=tuple(each for each in ranges if each.value in computed and each.basis == "OBSERVED"),
            activation_gradients=found.activation_gradients,
            below=found.below,
            updates=found.updates,
            optimizer=found.optimizer,
            scale=None if found.diverged else loss_scale(held, FORMATS[policy.low]),
        ),
        _lacking(found, lesson),
    )


def runs_low(graph: Graph, policy: Policy, hardware: Hardware) -> frozenset[str]:
    """Values whose gradients are in the low format under the policy, before any remedy: those that ops make in it, and
    those that are cast to it, whose cast hands its gradient back."""
    if policy.autocast:
        plan = autocast.propagate(graph, policy)[1]
    else:
        decided = Decided(decisions_alone(graph, policy, hardware), (), (), ())
        plan = cheapest(graph, decided, policy, hardware)
    formats = dict(plan.formats)
    made = {value for op in graph.ops if formats.get(op.key) == plan.low for value in op.values}
    return frozenset(made.union(cast.value for cast in plan.casts if cast.to == plan.low))


def _lacking(found: Taken, lesson: Lesson) -> tuple[str, ...]:
    said = [*found.notes, *([lesson.note] if lesson.note else [])]
    if lesson.optimizer is None:
        said.append("no optimizer was given: whether its updates survive in low weights is not known; give optimizer=")
    return tuple(said)
