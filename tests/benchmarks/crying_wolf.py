"""Does the tool cry wolf? Every finding of severity warning or higher on sixty public models that work.

    python -m tests.benchmarks.crying_wolf [--models NAME ...] [--policies NAME ...]

Needs torchvision, timm and transformers. Audits each model of `tests.benchmarks.public_models` under `bf16-inference`
and `fp16-inference`, prints each such finding with its op, line and evidence, and beside it the verdict of the person
who looked into it, from `VERDICTS`: true, or false, with the reason. A finding without one is shown as unreviewed and
counts as false. The target: in bf16 at most one false warning per ten models. Also shown is what the model does when
all of it is cast (eager, relative L2 against fp64, or against fp32 where fp64 does not run), so that a model that
breaks and was not warned of is seen too.
"""

from __future__ import annotations

import argparse
import copy
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch

import precision_audit as pa
from precision_audit.records import Finding
from tests.benchmarks.public_models import MODELS, Built
from tests.models import tensors

TARGET = 0.1  # false warnings per model, in bf16
REFUSED = 0.1  # of the models: where more are refused the rest says little
POLICIES = {"bf16-inference": torch.bfloat16, "fp16-inference": torch.float16}


@dataclass(frozen=True)
class Verdict:
    """One reviewed finding, or the same one in several layers (`op` is a glob). Reviewed by running the model in the
    low format and in fp64 and comparing what the finding speaks of."""

    model: str
    policy: str
    rule: str
    op: str
    true: bool
    reason: str


_RAISES = (
    "the eager model, cast, raises in grid_sample (fp32 coordinates, line 408) and, with that mended, here: fp32 flow, "
    "{} weights"
)
_CONV = "update_block.*convflow1.0/conv2d#0"

VERDICTS: tuple[Verdict, ...] = (
    Verdict("tv_raft_small", "bf16-inference", "PA301", _CONV, True, _RAISES.format("bf16")),
    Verdict("tv_raft_small", "fp16-inference", "PA301", _CONV, True, _RAISES.format("fp16")),
)


def reviewed(model: str, policy: str, finding: Finding) -> Verdict | None:
    for verdict in VERDICTS:
        same = (verdict.model, verdict.policy, verdict.rule) == (model, policy, finding.rule)
        if same and fnmatchcase(finding.op, verdict.op):
            return verdict
    return None


def warnings_of(built: Built, policy: str) -> list[Finding]:
    model, args, kwargs = built
    report = pa.audit(model, args, kwargs, policy=policy, device="cpu-amx", verify=False)
    return [finding for finding in report.findings if finding.severity != "note"]


@torch.no_grad()
def cast_error(built: Built, low: torch.dtype) -> str:
    """Worst relative L2 of a float output of the model cast as a whole, or what that raises."""

    def run(dtype: torch.dtype) -> list[torch.Tensor]:
        model, args, kwargs = copy.deepcopy(built)
        given = [each.to(dtype) if each.is_floating_point() else each for each in args]
        named = {
            key: each.to(dtype) if isinstance(each, torch.Tensor) and each.is_floating_point() else each
            for key, each in kwargs.items()
        }
        return [each for each in tensors(model.to(dtype)(*given, **named)) if each.is_floating_point()]

    try:
        exact = run(torch.float64)
    except RuntimeError:  # the model makes fp32 tensors of its own
        exact = run(torch.float32)
    try:
        pairs = zip(exact, run(low), strict=True)
        worst = max(((got.double() - wanted).norm() / wanted.norm()).item() for wanted, got in pairs)
    except RuntimeError as error:
        return f"raises {str(error).splitlines()[0][:80]}"
    return "not finite" if not math.isfinite(worst) else f"{worst:.1e}"


def show(model: str, policy: str, finding: Finding) -> bool:
    """Print one finding; whether it is false or unreviewed."""
    verdict = reviewed(model, policy, finding)
    at = finding.source
    where = f"{'/'.join(at.file.split('/')[-2:])}:{at.line}: {at.text}" if at else "no line of the user's"
    state = "resolved" if finding.resolved else "open"
    print(f"  {finding.rule} {finding.severity} [{finding.evidence.basis}] {finding.op} ({state}): {finding.message}")
    print(f"      {where}")
    print(f"      {finding.evidence.text} {dict(finding.evidence.numbers)}")
    if verdict is None:
        print("      UNREVIEWED")
    else:
        print(f"      {'TRUE' if verdict.true else 'FALSE'}: {verdict.reason}")
    return verdict is None or not verdict.true


def audit_all(policy: str, names: Sequence[str]) -> tuple[int, int, int]:
    """Warnings, false ones, and models that were refused, of which nothing is known."""
    told = false = refused = 0
    for name in names:
        started = time.perf_counter()
        built = MODELS[name]()
        whole = cast_error(built, POLICIES[policy])
        try:
            found = warnings_of(built, policy)
        except pa.InputError as error:
            print(f"{name}  {policy}  REFUSED {error}", flush=True)
            refused += 1
            continue
        spent = time.perf_counter() - started
        print(f"{name}  {policy}  {len(found)} warnings  cast as a whole {whole}  {spent:.1f} s", flush=True)
        told += len(found)
        false += sum([show(name, policy, finding) for finding in found])
    return told, false, refused


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Warnings on public models that work, each with its verdict.")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), metavar="NAME")
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES), metavar="NAME")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    missed = 0
    lines = []
    for policy in options.policies:
        told, false, refused = audit_all(policy, options.models)
        count = len(options.models) - refused
        share = false / count if count else math.inf
        wanted = policy == "bf16-inference"
        missed |= wanted and (share > TARGET or refused > REFUSED * len(options.models))
        target = f", target at most {TARGET}: {'MISSED' if missed else 'met'}" if wanted else ""
        lines.append(
            f"{policy}: {told} warnings on {count} models, {false} of them false or unreviewed, {refused} refused"
        )
        lines.append(f"  false warnings per model {share:.2f}{target}")
    print("\n" + "\n".join(lines))
    return missed


if __name__ == "__main__":
    sys.exit(main())
