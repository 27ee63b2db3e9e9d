"""PA622 gradients never reset, or reset too soon

What it does: reports a training loop that steps an optimizer and never sets its gradients to zero, a `zero_grad()`
between the backward and the step, and one in every batch of a loop that steps in every few only.
Why it is a hazard: `.backward()` adds to `.grad`. Never reset, each step takes the sum over all batches so far, which
grows until a low format overflows; reset before the step, the step sees no gradient and the model does not change;
reset in every batch, a step sees the last batch alone.
What to do: `optimizer.zero_grad(set_to_none=True)` once per step, before the first backward or after the step.
References: torch.optim.Optimizer.zero_grad; gradient accumulation in PyTorch's automatic mixed precision examples.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from precision_audit.records import Finding
from precision_audit.rules.loops import always, elsewhere, hooked
from precision_audit.rules.scripts import ScriptExample, found_at
from precision_audit.script import Event, Loop, Script, Value
from precision_audit.script.conditions import atoms


def lint(script: Script) -> Iterator[Finding]:
    for loop in script.loops:
        yield from _never(script, loop)
        yield from _dropped(script, loop)
        for step in loop.of("step"):
            yield from _too_soon(script, loop, step)


def _never(script: Script, loop: Loop) -> Iterator[Finding]:
    zeros = [each.subject for each in loop.events if each.kind == "zero"]
    if loop.node is None:
        return
    if any(each.kind == "zero" and hooked(loop, each) for each in script.events):
        return
    if not any(each.sure for each in loop.of("backward")):
        return
    for step in loop.of("step"):
        if not all(_of_another(zeroed, step.subject) for zeroed in zeros):
            continue
        if step.subject is None or elsewhere(script, step.subject) or _resets_itself(step.subject):
            continue
        whose = "of this optimizer " if zeros else ""
        what = f"nothing in this loop resets the gradients {whose}→ every step takes the sum over all batches so far"
        yield found_at(
            __name__, script, step.node, "error", what, _fix(step), of=(step.subject,), function=step.function
        )
        return


def _too_soon(script: Script, loop: Loop, step: Event) -> Iterator[Finding]:
    for zero in loop.of("zero"):
        if zero.index > step.index or not _concerns(zero, step.subject) or elsewhere(script, step.subject):
            continue
        if always(loop, zero, step, holds=lambda events, zero=zero: _lost(events, zero, step)):  # type: ignore[misc]
            what = "resets the gradients between backward() and step() → the step sees none"
            yield found_at(
                __name__,
                script,
                zero.node,
                "error",
                what,
                "move it below step()",
                of=(step.subject,),
                function=zero.function,
            )


def _of_another(zeroed: Value | None, optimizer: Value | None) -> bool:
    """Whether a reset is of an optimizer of other models, as far as the file makes both."""
    if zeroed is None or optimizer is None or zeroed.kind != "optimizer" or optimizer.kind != "optimizer":
        return False
    inside = any(part in whole.attributes.values() for whole in zeroed.of for part in optimizer.of)
    return bool(zeroed.of and optimizer.of) and not set(zeroed.of) & set(optimizer.of) and not inside


def _dropped(script: Script, loop: Loop) -> Iterator[Finding]:
    """Steps come every few batches, by the batch's number, but the gradients are reset in each."""
    steps, zeros = loop.of("step"), loop.of("zero")
    backwards = [each for each in loop.of("backward") if each.sure]
    if len({each.subject for each in steps}) != 1 or len(backwards) != len(loop.of("backward")) or loop.of("foreign"):
        return
    for zero in zeros:
        if not all(_concerns(zero, each.subject) and _numbered(each, (zero, *backwards)) for each in steps):
            continue
        what = "resets the gradients in every batch, but steps only in some → those of the batches between are lost"
        fix = f"move it behind {ast.unparse(steps[0].node)} (line {steps[0].line}), under the same test"
        yield found_at(__name__, script, zero.node, "error", what, fix, of=(zero.subject,), function=zero.function)
        return


def _numbered(step: Event, others: Sequence[Event]) -> bool:
    """Whether the step hangs on every so-many-th batch, and none of the others on any test that it hangs on."""
    open_atoms = atoms(step.guards)
    counts = [atom for atom in open_atoms if atom.varies and "%" in atom.text]
    return bool(counts) and all(atom.varies for atom in open_atoms) and not any(atoms(each.guards) for each in others)


def _lost(events: list[Event], zero: Event, step: Event) -> bool:
    """Whether a backward comes before the reset, and neither a step nor another backward on either side of it."""
    before, between = events[: events.index(zero)], events[events.index(zero) + 1 : events.index(step)]
    last = next((each for each in reversed(before) if each.kind in ("backward", "step", "foreign")), None)
    return last is not None and last.kind == "backward" and not any(e.kind in ("backward", "foreign") for e in between)


def _concerns(zero: Event, optimizer: Value | None) -> bool:
    """Whether the reset is surely of all that the optimizer holds."""
    if optimizer is None or zero.subject is None:
        return False
    return zero.subject is optimizer or optimizer.of == (zero.subject,)


def _resets_itself(optimizer: Value) -> bool:
    """An optimizer of the file whose own code speaks of zero_grad."""
    kind = optimizer.scope
    return isinstance(kind, Value) and kind.node is not None and "zero" in ast.unparse(kind.node)


def _fix(step: Event) -> str:
    node = step.node
    name = "optimizer"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        name = ast.unparse(node.args[0]) if step.scaler is not None and node.args else ast.unparse(node.func.value)
    return f"{name}.zero_grad(set_to_none=True) after the step"


def bad() -> ScriptExample:
    return ScriptExample(_LOOP.format("        optimizer.step()  # PA622\n"))


def good() -> ScriptExample:
    return ScriptExample(_LOOP.format("        optimizer.step()\n        optimizer.zero_grad(set_to_none=True)\n"))


_LOOP = """import torch

def train(model, loader, loss_fn):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        loss_fn(model(x), y).backward()
{}"""
