"""PA404 format or recipe that the device lacks

What it does: reports what the policy asks for and the device does not have: a quantisation recipe without kernels there
(fp8 on A100, NVFP4 on Hopper, MXFP8 on RTX 5090, anything of the kind on a CPU), products in a format that is computed
by converting to another (bf16 on P100, V100 and T4), TF32 settings where there is no TF32, and fp8 weights in the OCP
encoding on MI300X, which reads other numbers from the same bytes. A format that saves memory but no time is a note.
Why it is a hazard: a recipe that is lacking falls back silently or raises at the first step on the target, hours after
the run on another machine passed. What is emulated runs, and is no faster. `torch.cuda.is_bf16_supported()` says True
on V100 and T4: it counts emulation unless asked with `including_emulation=False`.
What to do: plan for a device that has it (`--device`), or ask for what this one has: `precision-audit list devices
NAME` lists its formats and recipes. Volta and Turing have tensor cores for fp16.
References: NVIDIA's tables of compute capabilities; capability checks of torch's `_scaled_mm` and TransformerEngine's
`quantization.py`; pytorch issue 192707; TransformerEngine issues 2255, 2304, 2372; OCP 8-bit floating point
specification.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from precision_audit.analyse.flags import settings
from precision_audit.cost.roofline import MATRIX_KINDS
from precision_audit.hardware import has_tf32, unit
from precision_audit.hardware.recipes import chosen, devices, existing, lacking
from precision_audit.recipes import Recipe
from precision_audit.records import Evidence, Finding, Hardware, Rule, Severity
from precision_audit.rules import Context, Example, found, found_in_policy

_STORED = ("parameter", "buffer", "constant")
_USUAL = "h100"  # the device to name where several have a recipe


def check(context: Context) -> Iterator[Finding]:
    yield from _recipes(context)
    yield from _formats(context)
    yield from _tf32(context)
    yield from _encoding(context)


def lacked(context: Context) -> Mapping[str, str]:
    """By op key, why the device lacks the recipe that the op was refused for."""
    reasons = {}
    for refusal in context.refusals:
        rule = context.matches[refusal.op].rule
        if rule.classification == "fp8-eligible":
            reason = lacking(chosen(rule.backend, rule.recipe, context.hardware), context.hardware)
            if reason and reason == refusal.reason:
                reasons[refusal.op] = reason
    return reasons


def _recipes(context: Context) -> Iterator[Finding]:
    """One finding per rule that asks in vain."""
    refused: dict[Rule, list[str]] = {}
    reasons = lacked(context)
    for key in reasons:
        refused.setdefault(context.matches[key].rule, []).append(key)
    for rule, keys in refused.items():
        many = f"{len(keys)} linears stay" if len(keys) > 1 else "the linear stays"
        recipe = chosen(rule.backend, rule.recipe, context.hardware)
        yield found_in_policy(
            __name__,
            "warning",
            rule,
            f"{reasons[keys[0]]} → {many} {context.policy.low}",
            Evidence("PROVED", f"{recipe.backend} {recipe.name}: {recipe.source}", (("linears", float(len(keys))),)),
            remedy=_instead(recipe, context),
        )


def _instead(recipe: Recipe, context: Context) -> str:
    """A recipe of the same backend that the device has, else of another; else a device that has the recipe."""
    mode = context.policy.mode
    there = [row for row in existing(context.hardware) if mode in row.modes and row.peak == recipe.peak] or [
        row for row in existing(context.hardware) if mode in row.modes
    ]
    own = next((row for row in there if row.backend == recipe.backend), None)
    if own is not None:
        return f"recipe: {own.name}"
    if there:
        return f"backend: {there[0].backend}, recipe: {there[0].name}"
    having = devices(recipe)
    named = next((name for name in (context.policy.device, _USUAL) if name in having), having[0] if having else "")
    kept = f"class: safe-in-{context.policy.low}"
    return f"plan for a device that has it (--device {named}), or {kept}" if named else kept


def _formats(context: Context) -> Iterator[Finding]:
    """One finding per format in which products were asked for by name."""
    asked: dict[str, list[str]] = {}
    for op in context.computed():
        decision = context.decisions[op.key]
        if op.kind in MATRIX_KINDS and decision.classification.startswith(("safe-in-", "keep-", "pin:")):
            asked.setdefault(decision.chosen, []).append(op.key)
    for format_, keys in asked.items():
        rule, numbers = context.matches[keys[0]].rule, (("products", float(len(keys))),)
        kind, where = unit(context.hardware, format_), _titled(context.hardware)
        evidence = Evidence("PROVED", f"{context.hardware.source}{_trap(format_, context.hardware)}", numbers)
        many = f"{len(keys)} products" if len(keys) > 1 else "the product"
        if kind == "none":
            text = f"{where} has no {format_}, in which {many} would run"
            yield found_in_policy(__name__, "error", rule, text, evidence, remedy=_another(format_, context))
        elif format_ == context.policy.high:
            continue
        elif kind == "emulated":
            text = f"{format_} is emulated on {where}: {many} computed in fp32 → memory is saved, time is not"
            severity: Severity = "note" if context.hardware.kernels == "cpu" else "warning"  # no CPU is bought for it
            yield found_in_policy(__name__, severity, rule, text, evidence, remedy=_another(format_, context))
        elif kind == "vector" and _no_faster(format_, context.hardware):
            text = f"{format_} has no units of its own on {where}: {many} at fp32's pace → only memory is saved"
            yield found_in_policy(__name__, "note", rule, text, evidence)


def _no_faster(format_: str, hardware: Hardware) -> bool:
    peaks = dict(hardware.peaks)
    return peaks.get(format_, 0.0) <= peaks.get("fp32", 0.0)


def _trap(format_: str, hardware: Hardware) -> str:
    if format_ == "bf16" and hardware.kernels == "cuda" and unit(hardware, "bf16") == "emulated":
        return "; torch.cuda.is_bf16_supported() counts emulation, ask with including_emulation=False"
    return ""


def _another(format_: str, context: Context) -> str:
    """The policy of the same kind whose low format the device computes, else fp32."""
    policy = context.policy
    other = {"bf16": "fp16", "fp16": "bf16"}.get(format_, "")
    if other and unit(context.hardware, other) in ("matrix", "vector"):
        name = f"amp-{policy.autocast}-{other}" if policy.autocast else f"{other}-{policy.mode}"
        cores = ", which has tensor cores there" if unit(context.hardware, other) == "matrix" else ""
        return f"--policy {name}{cores if context.hardware.vendor == 'NVIDIA' else ''}"
    return "--policy fp32"


def _tf32(context: Context) -> Iterator[Finding]:
    """Settings of the policy's environment that change nothing on a GPU without TF32."""
    hardware, environment = context.hardware, dict(context.policy.environment)
    if hardware.kernels != "cuda" or has_tf32(hardware) or environment.get("HIPBLASLT_ALLOW_TF32") == "1":
        return
    there = unit(hardware, "tf32")
    if there is None or there == "emulated":
        return
    why = "stays off unless HIPBLASLT_ALLOW_TF32=1 is set" if there == "matrix" else "does not exist"
    made = settings((), context.policy.environment).values()
    for name in dict.fromkeys(each.name for each in made if each.tf32 and each.by_policy):
        yield found(
            __name__,
            "warning",
            None,
            f"{name}: {environment[name]} changes nothing: TF32 {why} on {_titled(hardware)}",
            Evidence("PROVED", f"environment of policy {context.policy.name}; {hardware.source}"),
            remedy="HIPBLASLT_ALLOW_TF32: 1 beside it" if there == "matrix" else "leave the setting out",
            of=name,
        )


def _encoding(context: Context) -> Iterator[Finding]:
    """fp8 of the other encoding, where bytes mean half as much."""
    if context.hardware.encoding != "fnuz":
        return
    where = _titled(context.hardware)
    stored = [
        (op, tensor.format)
        for op in context.graph.ops
        for tensor in op.outputs
        if op.kind in _STORED and tensor.format.startswith("fp8") and not tensor.format.endswith("fnuz")
    ]
    remedy = "when loading: bytes 0x80 to 0, the bytes read as fnuz, the scales doubled"
    if stored:
        op, format_ = stored[0]
        text = f"{op.key} and {len(stored) - 1} more are" if len(stored) > 1 else f"{op.key} is"
        text = f"{text} {format_}; {where} reads the fnuz encoding → the same byte is half the value, 0x80 is NaN"
        numbers = (("tensors", float(len(stored))),)
        yield found(__name__, "warning", op, text, Evidence("PROVED", context.hardware.source, numbers), remedy=remedy)
    elif context.swaps:
        text = f"fp8 on {where} is fnuz, largest e4m3 240 → fp8 checkpoints of other GPUs must be converted"
        evidence = Evidence("PROVED", context.hardware.source)
        yield found(__name__, "note", None, text, evidence, remedy=remedy, of="encoding")


def _titled(hardware: Hardware) -> str:
    return f"{hardware.name} ({hardware.architecture})" if hardware.architecture else hardware.name


def bad() -> Example:
    return _on_v100("bf16")


def good() -> Example:
    return _on_v100("fp16")


def _on_v100(low: str) -> Example:
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 16))
    return Example(model, (torch.linspace(-1.0, 1.0, 128).reshape(4, 32),), policy=_POLICY.format(low=low))


_POLICY = """\
name: on-v100
extends: {low}-inference
device: v100
rules:
  - {{name: products, op: linear, class: safe-in-{low}}}  # PA404
"""
