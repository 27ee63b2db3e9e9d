"""What the rules about training scripts ask of a loop in the same way.

Takes events of a `Script`; gives yes, no, or the words in which the script itself speaks of its scaler. Where the
answer depends on code outside the file, it is the one that keeps a rule silent.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from precision_audit.script import Event, Loop, Script, Value
from precision_audit.script.events import TRAINING


def always(loop: Loop, *needed: Event, holds: Callable[[list[Event]], bool], kinds: Sequence[str] = TRAINING) -> bool:
    """Whether `holds` is true of the events of the loop however its tests turn out, so long as all of `needed` run."""
    ways = [events for _, events in loop.scenarios(*needed, kinds=tuple(kinds))]
    return bool(ways) and all(holds(events) for events in ways)


def elsewhere(script: Script, thing: Value | None) -> bool:
    """Whether code outside the file is handed the optimizer or scaler, and may do its part there."""
    return any(each.kind == "foreign" and each.subject is thing for each in script.events)


def hooked(loop: Loop, event: Event) -> bool:
    """Whether an event stands in a function that nothing in the file calls: a hook, which the loop may run."""
    functions = {each.function for each in loop.events}
    return not event.visits and event.index > loop.events[-1].index and event.function not in functions


def off(scaler: Value | None) -> bool:
    """Whether a scaler is made with `enabled=False`: then it passes everything through."""
    return scaler is not None and scaler.enabled is False


def autocast(event: Event) -> Value | None:
    """The innermost autocast around an event."""
    return next((each for each in reversed(event.contexts) if each.kind == "autocast"), None)


def covered(event: Event) -> bool:
    """Whether an event surely runs under autocast, where that is switched on."""
    region = autocast(event)
    return region is not None and region.enabled is not None and region.enabled is not False


def bare(event: Event) -> bool:
    """Whether an event surely runs under no autocast: every context around it is known for another."""
    return all(each.kind == "context" and each.enabled is False for each in event.contexts)


def words(loop: Loop, near: Event | None = None, owners: Sequence[Value] = ()) -> tuple[str, str]:
    """How the loop calls its scaler and its optimizer (of `owners`, where given), best in the function of `near`."""
    scalers: list[tuple[bool, str]] = []
    optimizers: list[tuple[bool, bool, str]] = []
    for event in loop.of("step", "unscale", "update", "backward", "zero"):
        away = near is not None and event.function != near.function
        scaler, optimizer = _named(event)
        scalers += [(away, scaler)] if scaler else []
        optimizers += [(event.subject not in owners, away, optimizer)] if optimizer else []
    first = min(scalers, key=lambda one: one[0], default=(False, "scaler"))
    return first[-1], min(optimizers, key=lambda one: one[:2], default=(True, True, "optimizer"))[-1]


def _named(event: Event) -> tuple[str, str]:
    """The scaler and the optimizer in the call of an event, "" for what is not in it."""
    node, scaler = event.node, ""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return "", ""
    own = ast.unparse(node.func.value)
    if event.kind == "backward":
        scales = (each.func for each in ast.walk(node) if isinstance(each, ast.Call))
        scaler = next((ast.unparse(f.value) for f in scales if isinstance(f, ast.Attribute) and f.attr == "scale"), "")
        return scaler, ""
    if event.scaler is None:
        optimizer = event.kind == "step" or (event.subject is not None and event.subject.role == "optimizer")
        return "", own if optimizer else ""
    given = [*node.args, *(each.value for each in node.keywords)]
    return own, ast.unparse(given[0]) if given and event.kind != "update" else ""


def receiver(node: ast.AST) -> str:
    """`loss` of `loss.backward()`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return ast.unparse(node.func.value)
    return "loss"
