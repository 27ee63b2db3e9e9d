"""PA623 step past the scaler

What it does: reports `optimizer.step()` after `scaler.scale(loss).backward()`, and `scaler.step(optimizer)` after a
backward of a loss that was not scaled.
Why it is a hazard: past the scaler, the update is made of gradients that still carry the loss scale (65536 at first),
and is made even where they are infinite or NaN, after which the model is NaN. Without scaling, gradients below 6e-8 are
lost in fp16, and `scaler.step` raises AssertionError since it has never seen a scale.
What to do: both or neither: `scaler.scale(loss).backward()`, `scaler.step(optimizer)`, `scaler.update()`.
References: torch.amp.GradScaler; PyTorch's automatic mixed precision examples.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from precision_audit.records import Finding
from precision_audit.rules.loops import always, elsewhere, off, receiver, words
from precision_audit.rules.scripts import ScriptExample, found_at
from precision_audit.script import Event, Loop, Script
from precision_audit.script.conditions import atoms


def lint(script: Script) -> Iterator[Finding]:
    for loop in script.loops:
        for step in loop.of("step"):
            if step.subject is None or elsewhere(script, step.subject):
                continue
            if step.scaler is None:
                yield from _past(script, loop, step)
            elif not off(step.scaler):
                yield from _unscaled(script, loop, step)


def _past(script: Script, loop: Loop, step: Event) -> Iterator[Finding]:
    for backward in loop.of("backward"):
        if backward.scaler is None or off(backward.scaler) or backward.index > step.index:
            continue
        same_tests = atoms(step.guards) <= atoms(backward.guards)
        needed = (step, backward) if same_tests else (step,)
        if always(loop, *needed, holds=lambda events, own=backward: _past_it(events, step, own)):  # type: ignore[misc]
            yield _skips_nothing(script, loop, step)
            return


def _skips_nothing(script: Script, loop: Loop, step: Event) -> Finding:
    name, _ = words(loop, step)
    of = [step.subject, *(each.scaler for each in loop.of("backward"))]
    fix = f"{name}.step({receiver(step.node)}), then {name}.update()"
    if any(each.kind == "unscale" and each.index < step.index for each in loop.events):
        what = "steps past the scaler → inf and NaN are applied, no step is skipped"
        return found_at(__name__, script, step.node, "warning", what, fix, of=of, function=step.function)
    what = "steps past the scaler → the gradients carry the loss scale (65536 at first), inf and NaN are applied"
    return found_at(__name__, script, step.node, "error", what, fix, of=of, function=step.function)


def _past_it(events: list[Event], step: Event, backward: Event) -> bool:
    """Whether every backward is scaled, and this step takes what it left. Beside another optimizer that the scaler does
    step, it must be known to hold what the loss was computed by: it may follow a target instead."""
    before = events[: events.index(step)]
    stepped = {each.subject for each in events if each.kind == "step" and each.scaler is not None}
    computed = backward.subject.of if backward.subject is not None else ()
    owned = step.subject is not None and bool(set(step.subject.of) & set(computed))
    scaled = all(each.scaler is not None for each in events if each.kind == "backward") and backward in before
    return scaled and step.subject not in stepped and (owned or not stepped)


def _unscaled(script: Script, loop: Loop, step: Event) -> Iterator[Finding]:
    for backward in loop.of("backward"):
        if backward.index < step.index and always(loop, step, holds=lambda events: _plain(events, step)):
            name, _ = words(loop, backward)
            what = f"the loss is not scaled, but {name}.step() unscales → AssertionError, or updates of nothing"
            fix = f"{name}.scale({receiver(backward.node)}).backward()"
            yield found_at(
                __name__, script, backward.node, "error", what, fix, of=(step.scaler,), function=backward.function
            )
            return


def _plain(events: list[Event], step: Event) -> bool:
    """Whether every backward is of a loss that this file computes and does not scale."""
    backwards = [each for each in events if each.kind == "backward"]
    given = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)  # a parameter: the caller may have scaled it
    plain = (
        each.scaler is None and each.sure and each.subject is not None and not isinstance(each.subject.node, given)
        for each in backwards
    )
    return bool(backwards) and all(plain) and not any(each.kind == "foreign" for each in events)


def bad() -> ScriptExample:
    return ScriptExample(_LOOP.format("        optimizer.step()  # PA623\n"))


def good() -> ScriptExample:
    return ScriptExample(_LOOP.format("        scaler.step(optimizer)\n"))


_LOOP = """import torch

def train(model, loader, loss_fn, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.amp.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
{}        scaler.update()
"""
