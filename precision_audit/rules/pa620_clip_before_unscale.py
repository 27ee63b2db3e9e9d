"""PA620 gradients read while they are scaled

What it does: reports clipping by `clip_grad_norm_` or `clip_grad_value_`, and reading the size of `.grad`, between
`scaler.scale(loss).backward()` and `scaler.unscale_(optimizer)`; `unscale_` twice for one optimizer before `update()`;
and a gradient penalty made of scaled gradients.
Why it is a hazard: the gradients are 65536 times too large there (the initial scale). A clip at 1.0 shortens every one
of them, whatever its true norm, and the update divides by the scale again: training all but stands still, without a
message. `unscale_` twice raises RuntimeError.
What to do: call `scaler.unscale_(optimizer)` once, after the last backward and before the clip.
References: PyTorch's automatic mixed precision examples, "Gradient clipping", "Gradient penalty"; torch.amp.GradScaler.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from precision_audit.records import Finding, Severity
from precision_audit.rules.loops import always, off, words
from precision_audit.rules.scripts import ScriptExample, found_at
from precision_audit.script import Event, Loop, Script, Value
from precision_audit.script.conditions import atoms
from precision_audit.script.events import TRAINING


def lint(script: Script) -> Iterator[Finding]:
    for loop in script.loops:
        early: list[Event] = []
        for event in loop.of("clip", "read"):
            if any(_scaled_at(loop, event, backward) for backward in _scaled(loop)):
                yield _too_early(script, loop, event, early)
                early.append(event)
        yield from _twice(script, loop)
        yield from _every_batch(script, loop)
    yield from _penalties(script)


def _scaled(loop: Loop) -> list[Event]:
    return [each for each in loop.of("backward") if each.scaler is not None and not off(each.scaler)]


def _scaled_at(loop: Loop, event: Event, backward: Event) -> bool:
    """Whether the gradients are scaled when `event` reads them, however the tests of the loop turn out so long as it
    and the scaled backward run."""
    if backward.index > event.index:
        return False
    owners = _owners(loop, event)
    return always(loop, event, backward, holds=lambda events: _pending(events, event, owners))


def _owners(loop: Loop, event: Event) -> list[Value]:
    """The optimizers that surely hold what an event reads."""
    read = set(event.subject.of) if event.subject is not None else set()
    return [each.subject for each in loop.of("step") if each.subject is not None and read & set(each.subject.of)]


def _pending(events: list[Event], reader: Event, owners: list[Value]) -> bool:
    """`owners`: the optimizers that surely hold what is read; none, where nobody knows: then any may."""
    scaled = False
    for each in events:
        if each is reader:
            return scaled
        if each.kind == "backward":
            scaled = each.scaler is not None
        elif each.kind in ("unscale", "step") and (not owners or each.subject in owners):
            scaled = False
    return False


def _too_early(script: Script, loop: Loop, event: Event, earlier: list[Event]) -> Finding:
    if event.kind == "clip":
        what = "clips gradients that still carry the loss scale (65536 at first) → nearly all are cut to nothing"
    else:
        what = "reads gradients that still carry the loss scale (65536 at first) → the figure is that much too large"
    severity: Severity = "error" if event.kind == "clip" else "warning"
    of = [each.scaler for each in loop.of("backward")]
    fix = _unscaled_first(loop, event)
    beside = [each for each in earlier if each.guards == event.guards and each.line != event.line]
    if beside and fix == _unscaled_first(loop, beside[0]) and _owners(loop, event) == _owners(loop, beside[0]):
        fix = f"what mends line {beside[0].line} mends this line too: one unscale_() before both"
    return found_at(__name__, script, event.node, severity, what, fix, of=of, function=event.function)


def _unscaled_first(loop: Loop, event: Event) -> str:
    """Where to unscale: before the event, unless the step comes in some batches only; then the event moves to it, since
    a second unscale_() before update() raises."""
    owners = _owners(loop, event)
    scaler, optimizer = words(loop, event, owners)
    call = f"{scaler}.unscale_({optimizer})"
    after = [each for each in loop.events if each.index > event.index and (not owners or each.subject in owners)]
    unscale = next((each for each in after if each.kind == "unscale"), None)
    step = next((each for each in after if each.kind == "step" and not each.rare), None)
    seldom = unscale if unscale is not None else step
    if seldom is not None and _seldom(event, seldom):
        this = "this line" if event.function == seldom.function else f"the call of {event.function}()"
        if unscale is not None:
            return f"move {this} down, behind {call} (line {seldom.line}) and under the same test"
        return f"move {this} down, before the step (line {seldom.line}) and under the same test, with {call} before it"
    if unscale is None:
        return f"add {call} before this line, after the last backward()"
    if not set(event.guards) <= set(unscale.guards):  # moved up, it would stand under this line's test
        return f"move this line down, behind {call} (line {unscale.line})"
    return f"move {call} up, before this line, after the last backward()"


def _seldom(event: Event, other: Event) -> bool:
    """Whether `other` hangs on a test that differs from batch to batch, and `event` does not."""
    own = set(event.guards)
    return any(atom.varies for atom in atoms(guard for guard in other.guards if guard not in own))


def _twice(script: Script, loop: Loop) -> Iterator[Finding]:
    calls = loop.of("unscale")
    for first, second in ((a, b) for i, a in enumerate(calls) for b in calls[i + 1 :]):
        if first.subject is not second.subject or first.subject is None or first.scaler is not second.scaler:
            continue
        if always(loop, first, second, holds=lambda events, a=first, b=second: _unbroken(events, a, b)):  # type: ignore[misc]
            what = "unscale_() again for the same optimizer before update() → RuntimeError"
            fix = "keep one unscale_() for each optimizer and update()"
            of = (second.scaler, second.subject)
            yield found_at(__name__, script, second.node, "error", what, fix, of=of, function=second.function)


def _unbroken(events: list[Event], first: Event, second: Event) -> bool:
    between = events[events.index(first) + 1 : events.index(second)]
    return not any(each.kind == "update" for each in between)


def _every_batch(script: Script, loop: Loop) -> Iterator[Finding]:
    """Gradients are accumulated over batches, but unscaled in each."""
    updates = loop.of("update")
    for event in loop.of("unscale"):
        for _, each in loop.scenarios(event, kinds=TRAINING):
            if updates and not any(one.kind == "update" for one in each) and _only_by_batch(event, updates):
                what = "unscale_() in every batch, update() only in some → RuntimeError in the second batch"
                fix = "move unscale_() and the clip under the test that guards step() and update()"
                of = (event.scaler, event.subject)
                yield found_at(__name__, script, event.node, "error", what, fix, of=of, function=event.function)
                break


def _only_by_batch(event: Event, updates: list[Event]) -> bool:
    """Whether every update is guarded by a test of the batch's number, and by nothing else that unscale_ is not."""
    own = set(event.guards)
    extra = [atoms(guard for guard in each.guards if guard not in own) for each in updates]
    return all(each and all(atom.varies for atom in each) for each in extra)


def _penalties(script: Script) -> Iterator[Finding]:
    if "get_scale" in script.text:
        return
    for event in script.events:
        if event.kind == "autograd" and event.scaler is not None:
            what = (
                "takes gradients of a scaled loss and never divides by the scale → a penalty of them is 65536 times off"
            )
            fix = f"grads = [g / {_scaler_of(event)}.get_scale() for g in grads] before computing with them"
            yield found_at(
                __name__, script, event.node, "error", what, fix, of=(event.scaler,), function=event.function
            )


def _scaler_of(event: Event) -> str:
    """How the script calls the scaler of the loss that is differentiated."""
    scales = (each.func for each in ast.walk(event.node) if isinstance(each, ast.Call))
    written = (ast.unparse(f.value) for f in scales if isinstance(f, ast.Attribute) and f.attr == "scale")
    guessed = event.scaler.name if event.scaler is not None and event.scaler.kind == "unknown" else "scaler"
    return next(written, guessed)


def bad() -> ScriptExample:
    return ScriptExample(_LOOP.format("        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # PA620\n"))


def good() -> ScriptExample:
    return ScriptExample(
        _LOOP.format(
            "        scaler.unscale_(optimizer)\n        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
        )
    )


_LOOP = """import torch

def train(model, loader, loss_fn, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.amp.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
{}        scaler.step(optimizer)
        scaler.update()
"""
