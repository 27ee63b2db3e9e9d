"""One word about a model, and why; the steps that follow from it.

Takes findings, the plan and the verification; gives the verdict, the summary line behind it and the next commands.
Never softens: the rules are these, in this order.

NOT READY            a finding of severity error that is open (the plan does not resolve it, the user did not suppress
                     it); or the verification failed, an output or gradient above its limit, a model that raised, a
                     shape check that did not pass.
NOT ENOUGH EVIDENCE  nothing was run (no weights, or no inputs); the inputs were made up by the tool; an op is in no
                     table, so that its hazards are unknown; fp8 was asked for and no linear was swapped; a recipe whose
                     numbers one emulated step cannot show; the reference
                     is NaN, or differs from itself by as much as a limit allows; no output has an element that could
                     be compared.
READY WITH CHANGES   a warning that is open, a swap that holds only while the user keeps a
                     condition on a size (`B % 16 == 0`), or swapped modules that were emulated because their library
                     cannot run here.
READY                none of these; notes do not count.

A failure outranks missing evidence: what was seen to break is broken, whatever else is unknown.
"""

from __future__ import annotations

import math
import shlex

from precision_audit import backends
from precision_audit.records import Finding, Graph, Plan, Policy, Severity, Verdict, Verification

_NOTHING = "nothing was compared"
_SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


def judge(
    findings: tuple[Finding, ...],
    graph: Graph,
    plan: Plan,
    verification: Verification | None,
    policy: Policy,
    *,
    made_up: str | bool = "",
) -> tuple[Verdict, tuple[str, ...]]:
    """The verdict and its reasons. `made_up` is true (or not empty) where the inputs' values are the tool's own."""
    open_ones = [finding for finding in findings if finding.open]
    broken = _failures(open_ones, verification)
    missing = _missing(graph, plan, verification, policy, made_up)
    if broken:
        return "NOT READY", tuple(broken)
    if missing:
        return "NOT ENOUGH EVIDENCE", tuple(missing)
    changes = [f"{condition} must hold" for condition in _conditions(plan)]
    if backends.stand_ins(plan):
        changes.append("swapped modules were emulated: run the written code once on the device")
    if changes or any(finding.severity == "warning" for finding in open_ones):
        return "READY WITH CHANGES", tuple(changes)
    return "READY", ()


def summary(
    verdict: Verdict, reasons: tuple[str, ...], findings: tuple[Finding, ...], plan: Plan, policy: Policy
) -> str:
    """`0 errors, 1 warning, 1 note   Float8Linear: 1 of 2 linears   why`; what the plan resolves and
    what the user suppressed is counted apart."""
    counts = [_count(sum(each.severity == word and each.open for each in findings), word) for word in _SEVERITIES]
    suppressed = sum(each.suppression is not None for each in findings)
    resolved = sum(not each.open for each in findings) - suppressed
    apart = {"more resolved by the plan": resolved, "suppressed": suppressed}
    more = ", ".join(f"{number} {what}" for what, number in apart.items() if number)
    parts = [", ".join(counts) + (f" ({more})" if more else "")]
    if asks_for_swaps(policy) or plan.swaps:
        asked = {rule.backend for rule in policy.rules if rule.backend}
        idle = {backends.title(name) for name in asked - {swap.backend for swap in plan.swaps}}
        kinds = sorted({swap.kind for swap in plan.swaps} | idle)
        swapped = sum(len(swap.linears) for swap in plan.swaps)
        total = swapped + len(plan.refusals)
        parts.append(f"{', '.join(kinds)}: {swapped} of {_count(total, 'linear')}")
    if verdict in ("NOT READY", "NOT ENOUGH EVIDENCE"):
        parts.extend(reasons[:2])
    return "   ".join(parts)


def next_steps(
    verdict: Verdict,
    reasons: tuple[str, ...],
    findings: tuple[Finding, ...],
    *,
    model: str,
    policy: str,
    made_up: str | bool = "",
    failed: str = "",
    options: str = "",
    elsewhere: bool = False,
) -> tuple[str, ...]:
    """What to type or do next, the first one a command. `failed` is the op at which both models part; `options` are
    those that were given on the command line. `elsewhere`: swapped modules cannot be made on this machine."""
    command = f"{shlex.quote(model)} {options or f'--policy {shlex.quote(policy)}'}"
    steps: list[str] = []
    if elsewhere and verdict != "NOT READY" and not made_up:
        steps.append(f"precision-audit {command} --write-code te_modules.py, and use that file on the CUDA machine")
    elif verdict in ("READY", "READY WITH CHANGES"):
        steps.append(f"precision-audit convert {command} -o out/")
    elif made_up or any(reason.startswith(_NOTHING) for reason in reasons):
        steps.append(
            f"precision-audit {command} --input SHAPE:FORMAT[:LOW..HIGH], or define example_inputs in the file"
        )
    elif verdict == "NOT READY":
        steps.append(f"precision-audit {command} -v")
    else:
        steps.append(f"precision-audit {command} --checkpoint W.safetensors")
    if failed:
        steps.append(f"keep {failed} high (a rule `class: keep-…` before the one that lowered it), then audit again")
    wanted = [each for each in findings if each.severity == "error" and each.open and each.remedy]
    steps.extend(f"{' '.join(filter(None, (each.rule, each.module or each.op)))}: {each.remedy}" for each in wanted[:3])
    return tuple(steps)


def shapes_refused(text: str) -> bool:
    """Whether a shape check failed; "not checked: why", where a size depends on data, is neither pass nor failure."""
    return text not in ("", "pass") and not text.startswith("not checked")


def asks_for_swaps(policy: Policy) -> bool:
    return any(rule.backend for rule in policy.rules)


def _failures(open_ones: list[Finding], verification: Verification | None) -> list[str]:
    found = sorted({finding.rule for finding in open_ones if finding.severity == "error"})
    reasons = [f"unresolved {', '.join(found)}"] if found else []
    if verification is None or verification.passed:
        return reasons
    above = [each.name for each in verification.outputs if not each.passed]
    gradients = [each.name for each in verification.gradients if not each.passed]
    if above:
        reasons.append(f"{', '.join(above[:3])} above the limit")
    if gradients:
        more = ", …" if len(gradients) > 2 else ""
        reasons.append(f"{_count(len(gradients), 'gradient')} above the limit ({', '.join(gradients[:2])}{more})")
    if shapes_refused(verification.shapes):
        reasons.append("shapes refused by the device's kernels")
    learned = verification.steps is None or verification.steps.passed
    if not learned:
        reasons.append("a training step is not finite")
    if not (above or gradients or shapes_refused(verification.shapes)) and learned:
        reasons.append("verification failed")
    return reasons


def _missing(
    graph: Graph, plan: Plan, verification: Verification | None, policy: Policy, made_up: str | bool
) -> list[str]:
    reasons = []
    if verification is None:
        reasons.append("nothing was run")
    elif verification.noise >= 1:
        what = "the reference differs from itself by as much as the limit, or is NaN"
        reasons.append(next((note for note in verification.notes if note.startswith("not run")), what))
    elif not any(each.compared for each in verification.outputs):
        why = "no output has an element, finite in the reference" if verification.outputs else "there is no output"
        reasons.append(f"{_NOTHING}: {why}")
    steps = verification.steps.steps if verification is not None and verification.steps is not None else ()
    if any(not math.isfinite(step.loss) for step in steps):
        reasons.append("the training loss is not finite before anything is lowered")
    if made_up:
        reasons.append("inputs made up by the tool")
    unknown = sorted({op.op for op in graph.ops if op.kind == "unknown"})
    if unknown:
        reasons.append(f"{_count(len(unknown), 'op')} in no table: {', '.join(unknown[:3])}")
    for recipe in sorted({swap.recipe for swap in backends.stand_ins(plan) if backends.unseen(swap)}):
        reasons.append(f"{recipe} cannot be emulated whole on this machine")
    if asks_for_swaps(policy) and not plan.swaps:
        reasons.append("fp8 asked for and nothing swapped")
    return reasons


def _conditions(plan: Plan) -> list[str]:
    return sorted({condition for swap in plan.swaps for condition in swap.constraints})


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
