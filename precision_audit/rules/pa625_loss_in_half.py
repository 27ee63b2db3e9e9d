"""PA625 loss computed in a low format

What it does: reports a loss of a training loop whose input is surely fp16 or bf16 (the model was cast, or its output),
and `binary_cross_entropy` or `nn.BCELoss` inside an autocast region on CUDA.
Why it is a hazard: a loss is a sum of logarithms: in fp16 it overflows at 65504 and has three digits, in bf16 two, and
so has its gradient, the first number of the backward pass. Autocast computes losses in fp32 for that reason, but for
binary_cross_entropy, whose gradient fp16 cannot hold: it raises RuntimeError.
What to do: `loss_fn(output.float(), target)`; for probabilities, give the logits to
`binary_cross_entropy_with_logits`.
References: torch.amp, "CUDA Ops that can autocast to float32", "Prefer binary_cross_entropy_with_logits".
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from precision_audit.records import Finding, Severity
from precision_audit.rules.loops import autocast, bare, covered
from precision_audit.rules.scripts import ScriptExample, found_at
from precision_audit.script import Event, Loop, Script

_REFUSED = ("torch.nn.functional.binary_cross_entropy", "torch.nn.BCELoss")
_DIGITS = {"fp16": "three digits, infinite beyond 65504", "bf16": "two digits"}


def lint(script: Script) -> Iterator[Finding]:
    for event in script.events:
        if event.kind == "loss" and event.text in _REFUSED and _on_cuda(event):
            what = "binary cross entropy of probabilities under CUDA autocast → RuntimeError: unsafe to autocast"
            fix = "leave the sigmoid out and use F.binary_cross_entropy_with_logits (nn.BCEWithLogitsLoss)"
            yield found_at(__name__, script, event.node, "error", what, fix, function=event.function)
    for loop in script.loops:
        for event in loop.of("loss"):
            low = event.subject.low if event.subject is not None else ""
            low = low or _beside_a_low_target(loop, event)
            region = autocast(event)
            if low and (region is None or region.enabled is False):
                severity: Severity = "warning" if low == "fp16" else "note"
                what = f"the loss is computed in {low} → {_DIGITS[low]}, and its gradient likewise"
                yield found_at(__name__, script, event.node, severity, what, _fix(event), function=event.function)


def _on_cuda(event: Event) -> bool:
    region = autocast(event)
    return region is not None and region.device == "cuda" and covered(event)


def _beside_a_low_target(loop: Loop, event: Event) -> str:
    """The format of an output that left a region, where the target is cast to it too."""
    target = event.value.attributes.get("target") if event.value is not None else None
    forward = next((each for each in loop.of("forward") if each.value is event.subject), None)
    if target is None or forward is None or not bare(event) or not covered(forward):
        return ""
    region = autocast(forward)
    return target.low if region is not None and region.format == target.low else ""


def _fix(event: Event) -> str:
    node = event.node
    first = ast.unparse(node.args[0]) if isinstance(node, ast.Call) and node.args else "output"
    return f"give it {first}.float()"


def bad() -> ScriptExample:
    return ScriptExample(_LOOP.format("        loss = F.cross_entropy(output, y)  # PA625\n"))


def good() -> ScriptExample:
    return ScriptExample(_LOOP.format("        loss = F.cross_entropy(output.float(), y)\n"))


_LOOP = """import torch
import torch.nn.functional as F

def train(model, loader, optimizer):
    model.half()
    for x, y in loader:
        optimizer.zero_grad()
        output = model(x.half())
{}        loss.backward()
        optimizer.step()
"""
