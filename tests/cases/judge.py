"""One case converted under one policy, and what came of it: `python -m tests.cases.judge` prints all of them.

Takes a case's name and a policy; gives the report's findings, the converted output against the fp32 model, and how much
of the work that may run low does. The fp32 output is the eager model's; nothing here is taken from the verification.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch

import precision_audit as pa
from precision_audit import ops
from precision_audit.formats import is_float
from precision_audit.policy import load as policy_named
from precision_audit.records import Finding, Graph, Op, Plan, Report
from tests.cases import expected
from tests.models import tensors

DEVICE = "cpu-amx"  # costs from a table, and the CPU's kernels, on which the cases were run


@dataclass(frozen=True)
class Judged:
    report: Report
    error: float  # worst relative L2 of a float output; inf where the output is not finite and fp32's is
    flips: float  # worst share of changed elements of an integer output
    gradient: float = 0.0  # worst relative L2 of a parameter's gradient, in training; inf where it is not finite

    @property
    def alarms(self) -> tuple[Finding, ...]:
        """Findings of severity warning or higher, resolved or not."""
        return tuple(finding for finding in self.report.findings if finding.severity != "note")


@cache
def judged(name: str, policy: str, device: str = DEVICE) -> Judged:
    case = expected.load(name)
    model, args = case.build_model(), case.example_inputs()
    on = None if policy_named(policy).device else device  # fp8 is planned for a GPU and emulated here
    result = pa.convert(model, args, policy=policy, device=on, loss=getattr(case, "loss", None))
    with torch.no_grad():
        wanted = list(tensors(model.eval()(*args)))
        try:
            module = result.module.eval()
            read, named = module.as_read(args, {})  # where the policy lowers inputs, they are handed over so
            given = list(tensors(module(*read, **named)))
        except RuntimeError as error:
            if "could not create a primitive" not in str(error):
                raise
            pytest.skip("oneDNN has no LSTM in the low format on this processor")
    pairs = list(zip(wanted, given, strict=True))
    errors = [difference(high, low) for high, low in pairs if high.is_floating_point()]
    flips = [difference(high, low) for high, low in pairs if not high.is_floating_point()]
    training = expected.short(name) in expected.BACKWARD and policy_named(policy).mode == "training"
    gradient = gradient_error(case, result.module) if training else 0.0
    return Judged(result.report, max(errors, default=0.0), max(flips, default=0.0), gradient)


def gradient_error(
    case: Any, module: torch.nn.Module, low: torch.dtype = torch.float32, scale: float = 2.0**8
) -> float:
    """Worst gradient of `module` against the eager fp32 model's, both in training mode. `low` is the inputs' format,
    `scale` multiplies the loss."""
    args, model = case.example_inputs(), case.build_model().train()
    wanted = torch.autograd.grad(case.loss(model(*args)), list(model.parameters()))
    inputs = [each.to(low) if each.is_floating_point() else each for each in args]
    parameters = list(module.train().parameters())
    found = torch.autograd.grad(case.loss(module(*inputs)) * scale, parameters)
    return max(difference(high, each.float() / scale) for high, each in zip(wanted, found, strict=True))


def difference(high: torch.Tensor, low: torch.Tensor) -> float:
    """Relative L2 of a float output, infinite where it is not finite and should be; share changed of any other."""
    if not high.is_floating_point():
        return (high != low).double().mean().item()
    if not torch.isfinite(low[torch.isfinite(high)]).all():
        return math.inf
    return ((low.double() - high.double()).norm() / high.double().norm()).item()


def limit(name: str, policy: str) -> float:
    """The case's own tolerance, else the policy's."""
    tolerances = dict(policy_named(policy).tolerances)
    return float(expected.load(name).EXPECT.get("safe_tol", tolerances["relative_l2"]))


def named(name: str, finding: Finding, report: Report) -> bool:
    """Whether a finding is about the culprit: the op by its aten name, or the module that it lies in."""
    return named_op(name, finding, report) or _named_module(name, finding, report)


def named_op(name: str, finding: Finding, report: Report) -> bool:
    """A hand-written gradient is no op of the graph: there the finding must speak of functions."""
    culprit = expected.load(name).EXPECT["culprit_op"]
    if culprit == "<custom-function>":
        return finding.rule == "PA309"
    by_key = {op.key: op.op for op in report.graph.ops}
    return by_key.get(finding.op) == culprit


def _named_module(name: str, finding: Finding, report: Report) -> bool:
    """The root module does not count, it holds everything."""
    wanted = expected.load(name).EXPECT
    holds = {op.module for op in report.graph.ops if op.op == wanted["culprit_op"]}
    return bool(finding.module) and finding.module in ({wanted["culprit_fqn"]} if "culprit_fqn" in wanted else holds)


def on_line(name: str, finding: Finding) -> bool:
    """Whether a finding's source is the culprit's line of the case's file."""
    at = finding.source
    return at is not None and at.file == expected.load(name).__file__ and at.line in expected.culprit_lines(name)


@dataclass(frozen=True)
class Work:
    """FLOPs and bytes outside the list of what must stay fp32, at the captured formats, and the share that runs low."""

    flops: int
    bytes: int
    flops_low: int
    bytes_low: int

    @property
    def half_low(self) -> bool:
        return 2 * self.flops_low >= self.flops and 2 * self.bytes_low >= self.bytes

    @property
    def nothing(self) -> bool:
        return self.flops == 0 and self.bytes == 0


def work(name: str, report: Report, *more: str) -> Work:
    """`more`: aten names that are on the list too."""
    free = list(may_run_low(report.graph, [*expected.load(name).EXPECT["must_keep_fp32"], *more]))
    low = [op for op in free if _runs_low(op, report.plan)]
    tensor_of = {value: tensor for op in report.graph.ops for value, tensor in zip(op.values, op.outputs, strict=True)}

    def total(chosen: list[Op]) -> tuple[int, int]:
        reads = [(op, [tensor_of[operand.value] for operand in op.operands]) for op in chosen]
        return (
            sum(ops.flops(op, inputs) for op, inputs in reads),
            sum(ops.bytes_moved(op, inputs, "") for op, inputs in reads),
        )

    return Work(*total(free), *total(low))


def _runs_low(op: Op, plan: Plan) -> bool:
    return dict(plan.formats).get(op.key) == plan.low or op.key in {swap.op for swap in plan.swaps}


def may_run_low(graph: Graph, kept: list[str]) -> Iterator[Op]:
    """Computed ops outside the list whose format is not settled by the user's code. One that only moves values (gather
    between a kept log_softmax and a kept difference) belongs to the list where all it reads or all its readers do."""
    outside = {op.key for op in graph.ops if not _listed(op, kept)}
    readers: dict[str, list[str]] = {}
    for op in graph.ops:
        for operand in op.operands:
            readers.setdefault(operand.value, []).append(op.key)
    maker = {value: op.key for op in graph.ops for value in op.values}
    formats = {value: tensor.format for op in graph.ops for value, tensor in zip(op.values, op.outputs, strict=True)}
    changed = True
    while changed:
        before = len(outside)
        for op in graph.ops:
            row = ops.row(op.op)
            if op.key in outside and "/" in op.key and row and row.arithmetic == "none":
                read = [maker[operand.value] for operand in op.operands if is_float(formats[operand.value])]
                after = [key for value in op.values for key in readers.get(value, [])]
                if (read and not outside & set(read)) or (after and not outside & set(after)):
                    outside.discard(op.key)
        changed = len(outside) != before
    for op in graph.ops:
        if op.key in outside and "/" in op.key and not op.fixed and any(is_float(each.format) for each in op.outputs):
            yield op


def cheaper_high(name: str, report: Report) -> list[str]:
    """Ops outside the list that run high although running them low would take no more casts."""
    maker = {value: op for op in report.graph.ops for value in op.values}
    high = {op.key: not _runs_low(op, report.plan) for op in report.graph.ops}
    wrong = []
    for op in may_run_low(report.graph, expected.load(name).EXPECT["must_keep_fp32"]):
        made = {maker[each.value].key for each in op.operands if is_float(maker[each.value].outputs[0].format)}
        reads = [one.key for one in report.graph.ops if {each.value for each in one.operands} & set(op.values)]
        after = [high[key] for key in reads] or [True]  # an output of the model stays fp32
        if_low = sum(high[key] for key in made) + any(after)
        if_high = sum(not high[key] for key in made) + (not all(after))
        if high[op.key] and if_low <= if_high and ops.bytes_moved(op, [], ""):
            wrong.append(op.key)
    return wrong


def _listed(op: Op, kept: list[str]) -> bool:
    inside = any(op.module == name or op.module.startswith(f"{name}.") for name in kept)
    return op.op in kept or op.key in kept or ("/" in op.key and inside)


def status(name: str) -> str:
    """One line: found, line, output, half low, false alarms."""
    words = [f"{name:44}"]
    policy = expected.naive_policy(name)
    later = expected.short(name) in expected.LATER
    if policy:
        words += _status_naive(name, policy, later)
    for safe in expected.safe_policies(name):
        words.append(f"{safe}: {_status_safe(name, safe)}")
    return "  ".join(words)


def _status_naive(name: str, policy: str, later: bool) -> Iterator[str]:
    try:
        one = judged(name, policy)
    except Exception as error:
        yield f"{policy}: CRASH {type(error).__name__}: {str(error).splitlines()[0][:120]}"
        return
    if later:
        yield f"{policy}: converted (later issue)"
        return
    told = one.report.findings if expected.short(name) == "c83" else one.alarms
    about = [finding for finding in told if named(name, finding, one.report)]
    right = [finding for finding in about if on_line(name, finding)]
    yield f"{policy}: " + _found(name, one.report, about, right)
    good = one.error <= limit(name, policy) and one.flips <= 0.01
    yield f"{'ok' if good else 'OUTPUT WRONG'} {one.error:.1e}" + (f" flips {one.flips:.2g}" if one.flips else "")
    share = work(name, one.report)
    cheaper = expected.short(name) in expected.CHEAPER_HIGH and not cheaper_high(name, one.report)
    yield (
        "nothing to lower"
        if share.nothing
        else "half low"
        if share.half_low
        else "cheaper high"
        if cheaper
        else (f"NOT HALF LOW flops {share.flops_low}/{share.flops} bytes {share.bytes_low}/{share.bytes}")
    )
    others = [f"{each.rule} {each.op}" for each in one.alarms if each not in right]
    if others:
        yield "also " + ", ".join(others)


def _found(name: str, report: Report, about: list[Finding], right: list[Finding]) -> str:
    if not about:
        return "NOT FOUND"
    if not right:
        return "WRONG LINE " + ", ".join(f"{each.rule} {each.op}" for each in about)
    by_op = [each for each in right if named_op(name, each, report)]
    return f"found {by_op[0].rule}" if by_op else f"found {right[0].rule} in its module"


def _status_safe(name: str, policy: str) -> str:
    try:
        one = judged(name, policy)
    except Exception as error:
        return f"CRASH {type(error).__name__}: {str(error).splitlines()[0][:120]}"
    wrong = "" if one.error <= limit(name, policy) and one.flips <= 0.01 else f" OUTPUT WRONG {one.error:.1e}"
    return (
        "FALSE ALARM " + ", ".join(f"{each.rule} {each.op}" for each in one.alarms) if one.alarms else "quiet"
    ) + wrong


if __name__ == "__main__":
    torch.set_num_threads(1)
    for each in sys.argv[1:] or expected.names():
        print(status(each), flush=True)
