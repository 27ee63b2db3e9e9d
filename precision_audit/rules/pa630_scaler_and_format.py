"""PA630 loss scaling that does not fit the format

What it does: reports a GradScaler in a loop whose autocast regions are all bf16, and a loop under fp16 autocast that
trains without any GradScaler, and a GradScaler in a file in which nothing runs low.
Why it is a hazard: bf16 has the range of fp32, so scaling brings nothing and costs a check of all gradients and a wait
for its answer in every step. fp16 ends at 6e-8 below: activation gradients smaller than that become zero without a
scale, and layers far from the loss stop learning.
What to do: with bf16 no scaler; with fp16 `scaler = torch.amp.GradScaler("cuda")`, `scaler.scale(loss).backward()`,
`scaler.step(optimizer)`, `scaler.update()`.
References: torch.amp, "Gradient Scaling"; Micikevicius et al., "Mixed Precision Training", figure 3.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from precision_audit.records import Finding
from precision_audit.rules.loops import autocast, bare, covered, receiver, words
from precision_audit.rules.scripts import ScriptExample, found_at
from precision_audit.script import Event, Loop, Script, Value

# Words of a script that may run something low, by itself or by a package; "half" also of `.half()`.
_LOW = re.compile(r"(?i)autocast|half|float16|fp16|bf16|apex|amp_|_amp\b|precision|deepspeed|fsdp|accelerat|fabric")


def lint(script: Script) -> Iterator[Finding]:
    scaling = (
        any(each.scaler is not None or _makes_scaler(each) for each in script.events) or "scale_loss" in script.text
    )
    for loop in script.loops:
        yield from _needless(script, loop)
        yield from _nothing_low(script, loop)
        if not scaling and "Scaler" not in script.text:
            yield from _missing(script, loop)


def _makes_scaler(event: Event) -> bool:
    return event.kind == "make" and event.subject is not None and event.subject.kind == "scaler"


def _needless(script: Script, loop: Loop) -> Iterator[Finding]:
    around = [autocast(each) for each in loop.of("forward", "loss")]
    entered = [each.subject for each in loop.of("autocast")]
    known = [region for region in (*around, *entered) if region is not None]
    if not known or any(region.format != "bf16" or region.enabled is None for region in known):
        return
    scalers = dict.fromkeys(each.scaler for each in loop.of("backward") if each.scaler is not None)
    for scaler in scalers:
        if _is_on(scaler) and scaler.node is not None:
            what = "scales the loss of a bf16 forward → of no use: bf16 has fp32's range; each step waits for a check"
            yield found_at(__name__, script, scaler.node, "warning", what, _without(loop, scaler))


def _nothing_low(script: Script, loop: Loop) -> Iterator[Finding]:
    """A scaler in a script that speaks of no low format: fp32 throughout."""
    forwards = loop.of("forward")
    if _LOW.search(script.text) or not forwards or not all(each.sure and bare(each) for each in forwards):
        return
    for scaler in dict.fromkeys(each.scaler for each in loop.of("backward") if each.scaler is not None):
        if _is_on(scaler):
            what = "scales the loss, but nothing in this file runs in a low format → of no use in fp32"
            fix = f'put the forward under torch.amp.autocast("cuda", dtype=torch.float16), or {_without(loop, scaler)}'
            of = [each.subject for each in forwards]
            yield found_at(__name__, script, scaler.node or script.tree, "note", what, fix, of=of)


def _is_on(scaler: Value) -> bool:
    """Whether the file makes the scaler, and always."""
    made = scaler.kind == "scaler" and scaler.node is not None
    return made and scaler.enabled is True and scaler.there is True


def _without(loop: Loop, scaler: Value) -> str:
    backward = next((each for each in loop.of("backward") if each.scaler is scaler), None)
    loss = next(iter(_scaled_losses(backward)), "loss") if backward is not None else "loss"
    return f"remove the scaler: {loss}.backward(), {words(loop, backward)[1]}.step()"


def _scaled_losses(backward: Event) -> list[str]:
    calls = [each for each in ast.walk(backward.node) if isinstance(each, ast.Call) and each.args]
    return [ast.unparse(c.args[0]) for c in calls if isinstance(c.func, ast.Attribute) and c.func.attr == "scale"]


def _missing(script: Script, loop: Loop) -> Iterator[Finding]:
    by_index = {each.index: each for each in script.events}
    for backward in loop.of("backward"):
        loss = backward.subject
        if not backward.sure or loss is None or loss.factor or not loss.forwards:
            continue
        forwards = [by_index[index] for index in loss.forwards]
        if not all(_in_fp16(each) for each in forwards):
            continue
        what = "fp16 autocast without a GradScaler → gradients below 6e-8 become zero"
        region = autocast(forwards[0])
        device = region.device if region is not None and region.device else "cuda"
        scaled = f"scaler.scale({receiver(backward.node)}).backward()"
        stepped = f"scaler.step({words(loop, backward)[1]}), scaler.update()"
        fix = f'scaler = torch.amp.GradScaler("{device}") before the loop, {scaled}, {stepped}'
        yield found_at(__name__, script, backward.node, "warning", what, fix, function=backward.function)


def _in_fp16(forward: Event) -> bool:
    region: Value | None = autocast(forward)
    return region is not None and covered(forward) and region.format == "fp16"


def bad() -> ScriptExample:
    return ScriptExample(_LOOP.format("float16", "loss.backward()  # PA630"))


def good() -> ScriptExample:
    return ScriptExample(_LOOP.format("bfloat16", "loss.backward()"))


_LOOP = """import torch
import torch.nn.functional as F

def train(model, loader, optimizer):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.amp.autocast("cuda", dtype=torch.{}):
            loss = F.cross_entropy(model(x), y)
        {}
        optimizer.step()
"""
