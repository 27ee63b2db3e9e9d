"""PA621 scaler not updated once

What it does: reports a training loop that calls `scaler.step(optimizer)` and never `scaler.update()`, one that calls
`update()` between the scaled backward and the step of another optimizer, one that calls it after each of several
optimizers, and one that makes a new scaler in every batch.
Why it is a hazard: without `update()` the second step raises RuntimeError. After `update()` the scale may be another,
so that a step of gradients from before it divides by the wrong one. An update for each optimizer makes the scale of one
depend on the overflows of the other. A scaler made anew forgets what the last one learned: the scale stays at 65536,
and where that overflows every step is skipped.
What to do: make one scaler before the loop, and call `scaler.update()` once, after the last `scaler.step(...)` of the
batch.
References: PyTorch's automatic mixed precision examples, "Working with multiple models, losses, and optimizers".
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from precision_audit.records import Finding
from precision_audit.rules.loops import always, elsewhere, hooked, off, words
from precision_audit.rules.scripts import ScriptExample, found_at
from precision_audit.script import Event, Loop, Script


def lint(script: Script) -> Iterator[Finding]:
    for loop in script.loops:
        yield from _missing(script, loop)
        yield from _repeated(script, loop)
        yield from _made_anew(script, loop)


def _missing(script: Script, loop: Loop) -> Iterator[Finding]:
    steps = [each for each in loop.of("step") if each.scaler is not None and not off(each.scaler)]
    last = {each.scaler: each for each in steps}
    for scaler, step in last.items():
        if loop.node is None or elsewhere(script, scaler):
            continue
        updates = [each for each in script.events if each.kind == "update" and each.scaler is scaler]
        if any(each in loop.events or hooked(loop, each) or _after_all(each, step) for each in updates):
            continue
        name, _ = words(loop, step)
        what = "no update() of the scaler in this loop → the next step() raises RuntimeError"
        yield found_at(
            __name__,
            script,
            step.node,
            "error",
            what,
            f"{name}.update() after this line",
            of=(scaler,),
            function=step.function,
        )


def _after_all(update: Event, step: Event) -> bool:
    """Whether the step is in a loop over optimizers, and the update behind it."""
    of_many = step.subject is not None and step.subject.varies
    return of_many and bool(update.visits) and update.visits == step.visits[: len(update.visits)]


def _repeated(script: Script, loop: Loop) -> Iterator[Finding]:
    updates = loop.of("update")
    for first, second in itertools.pairwise(updates):
        if first.scaler is not second.scaler or first.visits != second.visits or off(first.scaler):
            continue
        if not always(loop, first, second, holds=lambda events: True):
            continue
        name, _ = words(loop, first)
        if always(loop, first, second, holds=lambda events, one=first: _stale(events, one)):  # type: ignore[misc]
            what = "update() before a step of gradients scaled earlier → that step divides by a scale which may be new"
            yield found_at(
                __name__, script, first.node, "warning", what, _fix(name), of=(first.scaler,), function=first.function
            )
        elif _optimizers(loop, first, second) > 1:
            what = "update() after each optimizer → one's overflows set the other's scale, which grows twice as fast"
            yield found_at(
                __name__, script, first.node, "note", what, _fix(name), of=(first.scaler,), function=first.function
            )


def _made_anew(script: Script, loop: Loop) -> Iterator[Finding]:
    """A scaler made in each batch, for an optimizer that lives longer."""
    for made in loop.of("make"):
        scaler = made.subject
        if loop.node is None or scaler is None or scaler.kind != "scaler" or off(scaler) or scaler.there is not True:
            continue
        steps = [each for each in loop.of("step") if each.scaler is scaler and set(made.guards) <= set(each.guards)]
        owned = [each for each in loop.of("make") if each is not made]
        if (
            steps
            and not any(each.subject is step.subject for each in owned for step in steps)
            and not _once(script, made)
        ):
            what = "a new GradScaler in every batch → each starts at 65536 and none adapts: its update() is lost"
            fix = "make it once, before the loop"
            yield found_at(
                __name__, script, made.node, "error", what, fix, of=(steps[0].subject,), function=made.function
            )


def _once(script: Script, made: Event) -> bool:
    """Whether the scaler is made only where there is none yet: `if scaler is None:`, `scaler = scaler or …`."""
    for node in ast.walk(script.tree):
        if isinstance(node, ast.If | ast.IfExp | ast.BoolOp) and any(each is made.node for each in ast.walk(node)):
            told = ast.unparse(node if isinstance(node, ast.BoolOp) else node.test)
            if isinstance(node, ast.BoolOp) or "None" in told or "not " in told:
                return True
    return False


def _stale(events: list[Event], update: Event) -> bool:
    """Whether the first step after the update has no backward of its own."""
    for each in events[events.index(update) + 1 :]:
        if each.kind == "backward":
            return False
        if each.kind == "step":
            return each.scaler is update.scaler
    return False


def _optimizers(loop: Loop, first: Event, second: Event) -> int:
    return len({each.subject for each in loop.of("step") if each.scaler is first.scaler and each.index < second.index})


def _fix(name: str) -> str:
    return f"keep one {name}.update(), after the last {name}.step(...) of the batch"


def bad() -> ScriptExample:
    return ScriptExample(_LOOP.format("        scaler.step(optimizer)  # PA621\n"))


def good() -> ScriptExample:
    return ScriptExample(_LOOP.format("        scaler.step(optimizer)\n        scaler.update()\n"))


_LOOP = """import torch

def train(model, loader, loss_fn, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.amp.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
{}"""
