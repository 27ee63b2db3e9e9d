"""PA627 parameters trained in a low format

What it does: reports a model that was cast to fp16 or bf16 (`.half()`, `.bfloat16()`, `.to(torch.float16)`) and whose
own parameters an optimizer of torch then trains, before or after the cast; and a GradScaler over fp16 parameters.
Why it is a hazard: the cast changes the parameters in place, so that an optimizer made before it holds the same ones,
now low, and makes its state in their format. An update smaller than half a step of the format (2^-11 of the weight in
fp16, 2^-8 in bf16) is rounded away, Adam's eps of 1e-8 is zero in fp16, and no fp32 copy remembers either. A scaler
refuses: "Attempting to unscale FP16 gradients".
What to do: leave the parameters in fp32 and use `torch.amp.autocast`, or keep fp32 master weights
(`precision-audit convert` under a training policy makes such a model).
References: Micikevicius et al., "Mixed Precision Training", fp32 master copy of weights; torch.amp, "Autocasting": "You
should not call half() or bfloat16() on your model(s) or inputs when using autocasting".
"""

from __future__ import annotations

from collections.abc import Iterator

from precision_audit.records import Finding, Severity
from precision_audit.rules.loops import autocast, elsewhere, off
from precision_audit.rules.scripts import ScriptExample, found_at
from precision_audit.script import Event, Loop, Script, Value

_TORCH = {"fp16": "torch.float16", "bf16": "torch.bfloat16"}
_STEP = {"fp16": "2^-11", "bf16": "2^-8"}


def lint(script: Script) -> Iterator[Finding]:
    for loop in script.loops:
        for step in loop.of("step"):
            optimizer = step.subject
            if optimizer is None or elsewhere(script, optimizer) or not optimizer.name.startswith("torch.optim."):
                continue
            for model in optimizer.of:
                cast = _last_cast(script, loop, model)
                if cast is not None and cast.text in _STEP:
                    yield _finding(script, loop, cast, step, optimizer)


def _last_cast(script: Script, loop: Loop, model: Value) -> Event | None:
    begin = loop.events[0].index
    casts = [each for each in script.events if each.kind == "cast" and each.subject is model and each.index < begin]
    return casts[-1] if casts else None


def _finding(script: Script, loop: Loop, cast: Event, step: Event, optimizer: Value) -> Finding:
    format = cast.text
    scaled = step.scaler is not None and not off(step.scaler) and set(cast.guards) <= set(step.guards)
    if format == "fp16" and scaled:
        what = "fp16 parameters under a GradScaler → ValueError: Attempting to unscale FP16 gradients"
        fix = f"remove this cast; {_region(loop, format)} casts as it goes"
        return found_at(__name__, script, cast.node, "error", what, fix, function=cast.function)
    made = [each.index for each in script.events if each.kind == "make" and each.subject is optimizer]
    held = "the optimizer made earlier holds the same parameters, now" if made and made[0] < cast.index else "trains"
    what = f"{held} {format} without fp32 masters → updates below {_STEP[format]} of a weight are rounded away"
    severity: Severity = "warning" if format == "fp16" else "note"
    fix = f"remove this cast and run the forward under {_region(loop, format)}"
    return found_at(__name__, script, cast.node, severity, what, fix, function=cast.function)


def _region(loop: Loop, format: str) -> str:
    """The autocast of the loop's forward, or else one in the format of the cast."""
    around = [autocast(each) for each in loop.of("forward")]
    device, chosen = next(((r.device, r.format) for r in around if r is not None and r.format in _TORCH), ("", format))
    return f'torch.amp.autocast("{device or "cuda"}", dtype={_TORCH[chosen]})'


def bad() -> ScriptExample:
    return ScriptExample(_LOOP.format("    model.half()  # PA627\n", "loss = F.mse_loss(model(x.half()).float(), y)"))


def good() -> ScriptExample:
    forward = 'with torch.amp.autocast("cuda", dtype=torch.bfloat16):\n            loss = F.mse_loss(model(x), y)'
    return ScriptExample(_LOOP.format("", forward))


_LOOP = """import torch
import torch.nn.functional as F

def train(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{}    for x, y in loader:
        optimizer.zero_grad()
        {}
        loss.backward()
        optimizer.step()
"""
