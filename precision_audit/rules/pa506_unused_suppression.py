"""PA506 unused suppression

What it does: reports a comment `# precision-audit: ignore[…]` that silences nothing: no finding of these rules on its
line, a code that no rule has, or no code at all. Only code that was audited is judged, and only rules that could speak
under this policy and with this evidence; in a lint of scripts, only rules about scripts.
Why it is a hazard: it looks like a risk that somebody weighed and accepted. Once the line has changed it is none, and
it would silence the next finding there, which nobody has weighed.
What to do: remove the comment, or move it to the line of the finding (its own line, or alone on the line above).
References: the same check on other linters' comments, such as ruff's RUF100 and mypy's --warn-unused-ignores.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from precision_audit.records import Evidence, Finding, Severity, Source, Suppression
from precision_audit.rules import Context, Example, codes, found, nearest_code, offers, runs

if TYPE_CHECKING:
    import torch

    from precision_audit.script import Script

LAST = 2  # judges by what the other rules found

_SEEN_ONLY = ("PA1", "PA2")  # families whose findings rest on what was run


def check(context: Context) -> Iterator[Finding]:
    under = f" under policy {context.policy.name}"
    judged = partial(_can_be_judged, context=context)
    for each in context.facts.suppressions:
        yield from _of(each, context.told, judged, under)


def lint(script: Script) -> Iterator[Finding]:
    def judged(code: str) -> bool:
        meant = [known for known in codes() if known.startswith(code)]
        return all(offers(known, "lint") and not offers(known, "check") for known in meant)

    for each in script.suppressions:
        yield from _of(each, script.told, judged, "")


def _of(
    suppression: Suppression, told: tuple[Finding, ...], judged: Callable[[str], bool], under: str
) -> Iterator[Finding]:
    if not suppression.codes:
        fix = "write ignore[PA203], with the rule's code"
        yield _finding(suppression, "warning", "the suppression names no rule", fix)
    for code in suppression.codes:
        if not any(known.startswith(code) for known in codes()):
            hint = f"did you mean {nearest_code(code)}?"
            yield _finding(suppression, "warning", f"no rule begins with {code}; {hint}", "mend the code", code)
        elif judged(code) and not _used(suppression, code, told):
            message = f"nothing to suppress: no {code} on this line{under}"
            yield _finding(
                suppression, "note", message + _elsewhere(suppression, code, told), "remove the comment", code
            )


def bad() -> Example:
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.fc(x))  # precision-audit: ignore[PA504] was a custom op once  # PA506

    return Example(Net(), (torch.randn(2, 8),))


def good() -> Example:
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.fc(x))

    return Example(Net(), (torch.randn(2, 8),))


def _used(suppression: Suppression, code: str, told: tuple[Finding, ...]) -> bool:
    return any(finding.rule.startswith(code) for finding in _told(suppression, told) if _here(suppression, finding))


def _elsewhere(suppression: Suppression, code: str, told: tuple[Finding, ...]) -> str:
    """The nearest line of the same file that does have such a finding."""
    lines = {f.source.line for f in _told(suppression, told) if f.source and f.rule.startswith(code)}
    near = min(lines, key=lambda line: abs(line - suppression.target), default=0)
    return f"; line {near} has one" if near else ""


def _here(suppression: Suppression, finding: Finding) -> bool:
    return finding.source is not None and suppression.speaks_of(finding.source.line)


def _told(suppression: Suppression, told: tuple[Finding, ...]) -> Iterator[Finding]:
    """What was found in the comment's file."""
    for finding in told:
        if finding.source and os.path.abspath(finding.source.file) == suppression.file:
            yield finding


def _can_be_judged(code: str, context: Context) -> bool:
    """Every rule of the code could have spoken: none is off, or asleep for want of a low format or of inputs."""
    off = {name for name, word in context.policy.hazards if word == "off"}
    meant = [known for known in codes() if known.startswith(code)]
    blind = not context.facts.batches and any(known.startswith(_SEEN_ONLY) for known in meant)
    able = (offers(known, "check") and runs(known, context.policy) and known not in off for known in meant)
    return not blind and all(able)


def _finding(suppression: Suppression, severity: Severity, message: str, remedy: str, code: str = "") -> Finding:
    evidence = Evidence("PROVED", f"compared with every finding of {os.path.basename(suppression.file)}")
    of = f"{os.path.basename(suppression.file)} {code} {suppression.text}"
    made = found(__name__, severity, None, message, evidence, remedy=remedy, of=of)
    return replace(made, source=Source(suppression.file, suppression.line, "", suppression.text))
