"""PA630 loss scaling that does not fit the format

What it does: reports a GradScaler in a loop whose autocast regions are all bf16, and a loop under fp16 autocast that
trains without any GradScaler.
Why it is a hazard: bf16 has the range of fp32, so scaling brings nothing and costs a check of all gradients and a wait
for its answer in every step. fp16 ends at 6e-8 below: activation gradients smaller than that become zero without a
scale, and layers far from the loss stop learning.
What to do: with bf16 no scaler; with fp16 `scaler = torch.amp.GradScaler("cuda")`, `scaler.scale(loss).backward()`,
`scaler.step(optimizer)`, `scaler.update()`.
References: torch.amp, "Gradient Scaling"; Micikevicius et al., "Mixed Precision Training", figure 3.
"""

from __future__ import annotations

from collections.abc import Iterator

from precision_audit.records import Finding
from precision_audit.rules.loops import autocast, covered, receiver
from precision_audit.rules.scripts import ScriptExample, found_at
from precision_audit.script import Event, Loop, Script, Value


def lint(script: Script) -> Iterator[Finding]:
    scaling = (
        any(each.scaler is not None or _makes_scaler(each) for each in script.events) or "scale_loss" in script.text
    )
    for loop in script.loops:
        yield from _needless(script, loop)
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
        if scaler.kind == "scaler" and scaler.enabled is True and scaler.there is True and scaler.node is not None:
            what = "scales the loss of a bf16 forward → of no use: bf16 has fp32's range; each step waits for a check"
            fix = "remove the scaler: loss.backward(), optimizer.step()"
            yield found_at(__name__, script, scaler.node, "warning", what, fix)


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
        scaled = f"scaler.scale({receiver(backward.node)}).backward()"
        fix = (
            f'scaler = torch.amp.GradScaler("cuda") before the loop, {scaled}, scaler.step(optimizer), scaler.update()'
        )
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
