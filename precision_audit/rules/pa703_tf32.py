"""PA703 fp32 products run in TF32

What it does: reports products, convolutions and recurrent ops that stay in fp32 and that the device, under the settings
of the auditing process or of the policy's `environment:`, computes in TF32, with the error that this makes: of the
worst op by itself, and of the model's outputs with all of that kind, emulated on the example. One finding per kind. A
note within the policy's tolerance and for what PyTorch does unasked (convolutions and recurrent ops of cuDNN), a
warning beyond it. Fused attention, depthwise convolutions, products with a vector and einsum without a sum are not
counted: CUDA does not run them in TF32.
Why it is a hazard: TF32 keeps fp32's range and 11 of its 24 bits, and nothing in the graph shows it. What the policy
keeps in fp32 because rounding hurts there (positions, coordinates, large sums) is rounded to 11 bits all the same.
What to do: set the kind's `fp32_precision` to "ieee" in the process that runs the model or in the policy's
`environment:`; or keep TF32, knowing the error. Set the newer names or the older ones (`allow_tf32`), not both: once
they differ, torch refuses to read the older one, in `torch.backends.cudnn.flags` too.
References: PyTorch's notes on CUDA semantics, TensorFloat-32; torch.set_float32_matmul_precision; NVIDIA, "Accelerating
AI Training with TF32 Tensor Cores" (2021).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from precision_audit.analyse.flags import CONV, MATMUL, RNN, Setting, settings
from precision_audit.analyse.tf32 import kind_of
from precision_audit.formats import FORMATS
from precision_audit.hardware import has_tf32
from precision_audit.records import Evidence, Finding, Op, Severity, Tf32
from precision_audit.rules import Context, Example, found
from precision_audit.verify.limits import limit

_KINDS = {"matmul": ("products", MATMUL), "conv": ("convolutions", CONV), "rnn": ("recurrent ops", RNN)}


def check(context: Context) -> Iterator[Finding]:
    if context.policy.high != "fp32" or not has_tf32(context.hardware):
        return
    on = {kind: each for kind, each in settings(context.facts.flags, context.policy.environment).items() if each.tf32}
    measured = {each.kind: each for each in context.facts.tf32}
    kept: dict[str, list[Op]] = {}
    for op in context.computed() if on else ():
        kind = kind_of(op, context.tensors)
        if kind in on and context.decisions[op.key].chosen == "fp32":
            kept.setdefault(kind, []).append(op)
    for kind, members in kept.items():
        seen = measured.get(kind)
        yield _seen(context, kind, on[kind], members, seen) if seen else _assumed(context, kind, on[kind], members)


def _seen(context: Context, kind: str, setting: Setting, members: Sequence[Op], seen: Tf32) -> Finding:
    errors = dict(seen.ops)
    worst = max(members, key=lambda op: errors.get(op.key, 0.0))  # the first of several
    error, allowed = errors.get(worst.key, 0.0), limit(context.policy, "relative_l2", "") or 0.0
    unasked = kind != "matmul" and not setting.by_policy
    severity: Severity = "note" if unasked or seen.output <= allowed else "warning"
    numbers = (("ops", float(len(members))), ("own", error), ("output", seen.output), ("tolerance", allowed))
    many = f"; with all {len(members)} {_KINDS[kind][0]} in TF32" if len(members) > 1 else ", which makes"
    text = (
        f"{worst.op} runs in TF32 on {context.hardware.name} → off by {error:.1e}{many} the outputs {seen.output:.1e}"
    )
    evidence = Evidence("OBSERVED", f"{_by(kind, setting)}; emulated, limit {allowed:g}", numbers)
    return found(__name__, severity, worst, text, evidence, remedy=_remedy(kind, setting), of=kind)


def _assumed(context: Context, kind: str, setting: Setting, members: Sequence[Op]) -> Finding:
    """Nothing was run, or the op is fp32 only as a remedy, which the analysis did not foresee."""
    factor = FORMATS["tf32"].unit_roundoff or 0.0
    many = f"{len(members)} {_KINDS[kind][0]} kept in fp32 run" if len(members) > 1 else f"{members[0].op} runs"
    return found(
        __name__,
        "note",
        members[0],
        f"{many} in TF32 on {context.hardware.name} → each factor off by up to {factor:.1e}",
        Evidence("ASSUMED", f"{_by(kind, setting)}; not emulated", (("ops", float(len(members))), ("factor", factor))),
        remedy=_remedy(kind, setting),
        of=kind,
    )


def _by(kind: str, setting: Setting) -> str:
    where = "in the policy's environment" if setting.by_policy else "in this process"
    default = " (PyTorch's default)" if kind != "matmul" and not setting.by_policy else ""
    return f"{setting.name} is {setting.value} {where}{default}"


def _remedy(kind: str, setting: Setting) -> str:
    name = _KINDS[kind][1]
    if not setting.by_policy:
        return f'{name} = "ieee"'
    older = setting.name.endswith("allow_tf32")  # never both names of one setting
    said = f"{setting.name}: false" if older else f"{name}: ieee"
    return f"environment: {{{said}}} in the policy"


def bad() -> Example:
    import torch
    from torch import nn

    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.turn = nn.Parameter(torch.tensor([[0.8, -0.6], [0.6, 0.8]]))

        def forward(self, corners: torch.Tensor) -> torch.Tensor:
            return corners @ self.turn  # PA703

    pixels = torch.tensor([[2049.0, 4099.0], [8193.0, 2051.0]])  # beyond 2048 TF32 has no odd numbers
    return Example(Turned(), (pixels,), policy=_ON_A100.format("tf32"))


def good() -> Example:
    import torch
    from torch import nn

    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.turn = nn.Parameter(torch.tensor([[0.8, -0.6], [0.6, 0.8]]))

        def forward(self, corners: torch.Tensor) -> torch.Tensor:
            return corners @ self.turn

    pixels = torch.tensor([[2049.0, 4099.0], [8193.0, 2051.0]])
    return Example(Turned(), (pixels,), policy=_ON_A100.format("ieee"))


_ON_A100 = (
    "name: on-a100\nextends: fp32\ndevice: a100\nenvironment: {{torch.backends.cuda.matmul.fp32_precision: {}}}\n"
)
