"""PA624 autocast around the wrong lines

What it does: reports a model that is called outside the autocast region that holds its loss, a `.backward()` inside a
region, and a region for another kind of device than the one the model is on.
Why it is a hazard: outside, the model runs in fp32 and mixed precision gains nothing. Inside, what hooks and custom
functions compute in the backward pass is cast a second time; PyTorch recommends against it, since the backward already
runs in the formats that the forward chose. A region for another device does nothing at all.
What to do: `with torch.amp.autocast("cuda", dtype=torch.float16):` around the forward and the loss, and nothing else.
References: torch.amp, "Autocasting": "Backward ops run in the same type that autocast used for corresponding forward
ops".
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from precision_audit.records import Finding
from precision_audit.rules.loops import autocast, bare, covered, receiver
from precision_audit.rules.scripts import ScriptExample, found_at
from precision_audit.script import Event, Loop, Script, Value


def lint(script: Script) -> Iterator[Finding]:
    for loop in script.loops:
        for event in loop.of("backward"):
            if event.sure and covered(event):
                what = (
                    "backward() inside the autocast region → hooks and custom functions are cast again in the backward"
                )
                fix = f"end the region before it: unindent {receiver(event.node)}.backward()"
                yield found_at(__name__, script, event.node, "warning", what, fix, function=event.function)
        yield from _outside(script, loop)
        yield from _elsewhere(script, loop)


def _outside(script: Script, loop: Loop) -> Iterator[Finding]:
    """A model called before the region that its loss is in."""
    by_index = {each.index: each for each in loop.events}
    for loss in loop.of("loss"):
        if loss.subject is None or not covered(loss) or not loss.subject.forwards:
            continue
        forwards = [by_index[index] for index in loss.subject.forwards if index in by_index]
        inside = any(each.kind == "forward" and autocast(each) is autocast(loss) for each in loop.events)
        if inside or len(forwards) != len(loss.subject.forwards) or not all(map(_in_fp32, forwards)):
            continue
        for each in forwards:
            what = "the model is called outside autocast, only its loss is inside → the model runs in fp32"
            fix = "move this call into the with block of the loss"
            yield found_at(
                __name__, script, each.node, "warning", what, fix, of=(each.subject,), function=each.function
            )


def _in_fp32(forward: Event) -> bool:
    return forward.sure and bare(forward) and forward.subject is not None and not _own_autocast(forward.subject)


def _own_autocast(model: Value) -> bool:
    """Whether the model's class, where it is in the file, has a region of its own."""
    kind = model.scope
    if isinstance(kind, Value) and kind.node is not None:
        return "autocast" in ast.unparse(kind.node)
    return bool(model.attributes.get("low"))


def _elsewhere(script: Script, loop: Loop) -> Iterator[Finding]:
    for event in loop.of("forward"):
        region = autocast(event)
        if region is None or not covered(event) or event.subject is None or region.node is None:
            continue
        device = event.subject.device
        if device and region.device and device != region.device:
            what = f"autocast for {region.device}, but the model is on {device} → nothing is cast"
            fix = f'torch.amp.autocast("{device}", ...)'
            yield found_at(__name__, script, region.node, "note", what, fix, function=event.function)


def bad() -> ScriptExample:
    return ScriptExample(
        _LOOP.format(
            """        output = model(x)  # PA624
        with torch.amp.autocast("cuda", dtype=torch.bfloat16):
            loss = F.cross_entropy(output, y)
"""
        )
    )


def good() -> ScriptExample:
    return ScriptExample(
        _LOOP.format(
            """        with torch.amp.autocast("cuda", dtype=torch.bfloat16):
            output = model(x)
            loss = F.cross_entropy(output, y)
"""
        )
    )


_LOOP = """import torch
import torch.nn.functional as F

def train(model, loader, optimizer):
    for x, y in loader:
        optimizer.zero_grad()
{}        loss.backward()
        optimizer.step()
"""
