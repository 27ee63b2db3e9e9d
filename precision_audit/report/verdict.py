"""One word about a model, and why; the steps that follow from it.

Takes findings, the plan and the verification; gives the verdict, the summary line behind it and the next commands.
Never softens: the rules are these, in this order.

NOT READY            a finding of severity error that is open (the plan does not resolve it, the user did not suppress
                     it); or the verification failed, an output or gradient above its limit, a model that raised, a
                     shape check that did not pass.
NOT ENOUGH EVIDENCE  nothing was run (no weights, or no inputs); the inputs were made up by the tool; an op is in no
                     table, so that its hazards are unknown; fp8 was asked for and no linear may be swapped (where some
                     may and the policy finds none worth it, the plan is as asked for); a recipe whose numbers one
                     emulated step cannot show; the reference is NaN, or differs from itself by as much as a limit
                     allows; no output has an element that could be compared; the model is in none of the policy's
                     formats.
READY WITH CHANGES   a warning that is open, a swap that holds only while the user keeps a
                     condition on a size (`B % 16 == 0`), or swapped modules that were emulated because their library
                     cannot run here.
READY                none of these; notes do not count.

A failure outranks missing evidence: what was seen to break is broken, whatever else is unknown.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from typing import NamedTuple

from precision_audit import backends
from precision_audit.records import Finding, Graph, Plan, Policy, Severity, Verdict, Verification

_MENDS = 3  # named at most
_SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


class Reason(NamedTuple):
    """One reason of a verdict. `step` mends it (`{command}` stands for the model and its options); where a finding says
    the same, `rule` names it and its remedy is the step."""

    text: str
    step: str = ""
    rule: str = ""


_INPUTS = "precision-audit {command} --input SHAPE:FORMAT[:LOW..HIGH], or define example_inputs in the file"
_MADE_UP = Reason("inputs made up by the tool", _INPUTS)


def judge(
    findings: tuple[Finding, ...],
    graph: Graph,
    plan: Plan,
    verification: Verification | None,
    policy: Policy,
    *,
    made_up: str | bool = "",
) -> tuple[Verdict, tuple[Reason, ...]]:
    """The verdict and its reasons. `made_up` is true (or not empty) where the inputs' values are the tool's own."""
    open_ones = [finding for finding in findings if finding.open]
    broken = _failures(open_ones, verification, policy)
    missing = tuple(_missing(graph, plan, verification, policy, made_up))
    if broken:
        return "NOT READY", (*broken, *(each for each in missing if each is _MADE_UP))
    if missing:
        return "NOT ENOUGH EVIDENCE", missing
    changes = [f"{condition} must hold" for condition in _conditions(plan)]
    if backends.stand_ins(plan):
        changes.append("swapped modules were emulated: run the written code once on the device")
    if changes or any(finding.severity == "warning" for finding in open_ones):
        return "READY WITH CHANGES", tuple(map(Reason, changes))
    return "READY", ()


def summary(
    verdict: Verdict, reasons: tuple[Reason, ...], findings: tuple[Finding, ...], plan: Plan, policy: Policy
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
        why = ", none worth it" if _nothing_worth_it(plan) else ""
        parts.append(f"{', '.join(kinds)}: {swapped} of {_count(total, 'linear')}{why}")
    if verdict in ("NOT READY", "NOT ENOUGH EVIDENCE"):
        parts.extend(reason.text for reason in reasons[:2])
    return "   ".join(parts)


def next_steps(
    verdict: Verdict,
    reasons: tuple[Reason, ...],
    findings: tuple[Finding, ...],
    *,
    model: str,
    policy: str,
    failed: str = "",
    options: str = "",
    elsewhere: bool = False,
) -> tuple[str, ...]:
    """What to type or do next: what mends the verdict's reasons, in their order. `failed` is the op at which both
    models part; `options` are those that were given on the command line. `elsewhere`: swapped modules cannot be made
    on this machine."""
    command = f"{shlex.quote(model)} {options or f'--policy {shlex.quote(policy)}'}"
    steps: list[str] = []
    mends = [mend for reason in reasons if (mend := _mend(reason, findings, command))]
    if elsewhere and verdict != "NOT READY" and not mends:
        steps.append(f"precision-audit {command} --write-code te_modules.py, and use that file on the CUDA machine")
    elif verdict in ("READY", "READY WITH CHANGES"):
        steps.append(f"precision-audit convert {command} -o out/")
    else:
        steps.extend(dict.fromkeys(mends[:_MENDS]))
        if verdict == "NOT READY" or not steps:
            steps.append(f"precision-audit {command} -v")
    if failed:
        steps.append(f"keep {failed} high (a rule `class: keep-…` before the one that lowered it), then audit again")
    wanted = [each for each in findings if each.severity == "error" and each.open and each.remedy]
    steps.extend(f"{' '.join(filter(None, (each.rule, each.module or each.op)))}: {each.remedy}" for each in wanted[:3])
    return tuple(steps)


def _mend(reason: Reason, findings: tuple[Finding, ...], command: str) -> str:
    """The step of a reason, or the remedy of the finding that says the same."""
    if reason.rule:
        told = (each for each in findings if each.rule == reason.rule and each.open and each.remedy)
        return next((f"{' '.join(filter(None, (each.rule, each.module)))}: {each.remedy}" for each in told), "")
    if "--apply-plan" in command and reason.step.startswith("precision-audit search"):
        return ""  # a search makes a plan and takes none
    return reason.step.replace("{command}", command)


def shapes_refused(text: str) -> bool:
    """Whether a shape check failed; "not checked: why", where a size depends on data, is neither pass nor failure."""
    return text not in ("", "pass") and not text.startswith("not checked")


def asks_for_swaps(policy: Policy) -> bool:
    return any(rule.backend for rule in policy.rules)


def _failures(open_ones: list[Finding], verification: Verification | None, policy: Policy) -> list[Reason]:
    found = sorted({finding.rule for finding in open_ones if finding.severity == "error"})
    reasons = [Reason(f"unresolved {', '.join(found)}")] if found else []
    if verification is None or verification.passed:
        return reasons
    above = [each.name for each in verification.outputs if not each.passed]
    gradients = [each.name for each in verification.gradients if not each.passed]
    if above:
        limit = dict(policy.tolerances).get("relative_l2", 0.0)
        step = f"precision-audit search {{command}} --budget relative_l2={limit:g}" if limit else ""
        reasons.append(Reason(f"{', '.join(above[:3])} above the limit", step))
    if gradients:
        more = ", …" if len(gradients) > 2 else ""
        text = f"{_count(len(gradients), 'gradient')} above the limit ({', '.join(gradients[:2])}{more})"
        reasons.append(Reason(text))
    if shapes_refused(verification.shapes):
        reasons.append(Reason("shapes refused by the device's kernels"))
    learned = verification.steps is None or verification.steps.passed
    if not learned:
        reasons.append(Reason("a training step is not finite"))
    if not (above or gradients or shapes_refused(verification.shapes)) and learned:
        reasons.append(Reason("verification failed"))
    return reasons


def _missing(
    graph: Graph, plan: Plan, verification: Verification | None, policy: Policy, made_up: str | bool
) -> Iterator[Reason]:
    """What evidence lacks, and the step that gives it."""
    if verification is None:
        yield Reason("nothing was run", "precision-audit {command} --checkpoint W.safetensors")
    elif verification.noise >= 1:
        yield _unsettled(verification)
    elif not any(each.compared for each in verification.outputs):
        why = "no output has an element, finite in the reference" if verification.outputs else "there is no output"
        yield Reason(f"nothing was compared: {why}", _INPUTS)
    steps = verification.steps.steps if verification is not None and verification.steps is not None else ()
    if any(not math.isfinite(step.loss) for step in steps):
        yield Reason(
            "the training loss is not finite before anything is lowered",
            "mend the loss, or make_optimizer's learning rate: the model itself does not train as it is",
        )
    if made_up:
        yield _MADE_UP
    unknown = sorted({op.op for op in graph.ops if op.kind == "unknown"})
    if unknown:
        yield Reason(f"{_count(len(unknown), 'op')} in no table: {', '.join(unknown[:3])}", rule="PA504")
    for recipe in sorted({swap.recipe for swap in backends.stand_ins(plan) if backends.unseen(swap)}):
        yield Reason(f"{recipe} cannot be emulated whole on this machine")
    other = _captured_elsewhere(graph, policy)
    if other:
        yield Reason(
            f"{policy.name} lowers {policy.high}, the model is in {other}: nothing was lowered",
            f"build the model in {policy.high}, or give a policy whose low format is {other}",
        )
    if asks_for_swaps(policy) and not plan.swaps and not _nothing_worth_it(plan):
        yield Reason("fp8 asked for and nothing swapped", rule="PA505")


def _captured_elsewhere(graph: Graph, policy: Policy) -> str:
    """The formats of a model of which no float is in a format that the policy names; "" for every other model."""
    from precision_audit.formats import is_float  # needs torch, which `lint` does without

    found = {tensor.format for op in graph.ops for tensor in op.outputs if is_float(tensor.format)}
    foreign = policy.lowers and bool(found) and found.isdisjoint((policy.high, policy.low))
    return ", ".join(sorted(found)) if foreign else ""


def _unsettled(verification: Verification) -> Reason:
    """The reference cannot be judged against."""
    raised = next((note for note in verification.notes if note.startswith("not run")), "")
    if raised:
        return Reason(raised, "mend what the model itself raised, then audit again")
    return Reason(
        "the reference differs from itself by as much as the limit, or is NaN",
        "make the model repeat itself and stay finite on these inputs, or give others, then audit again",
    )


def _nothing_worth_it(plan: Plan) -> bool:
    """Whether linears may be swapped and none is, because the policy asks for a gain that none is predicted to have."""
    return not plan.swaps and any(refusal.not_worth for refusal in plan.refusals)


def _conditions(plan: Plan) -> list[str]:
    return sorted({condition for swap in plan.swaps for condition in swap.constraints})


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
