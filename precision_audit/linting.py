"""Lint: training scripts in, findings out, nothing run.

Takes paths of Python files and folders; gives a `Lint`. Reads text only, imports neither the user's code nor torch, so
that it answers at once. Raises InputError for a file that was named and is no Python.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version

from precision_audit import script, suppressions
from precision_audit.records import SEVERITIES, Finding, InputError, Lint
from precision_audit.rules import scripts
from precision_audit.script import files


def lint(paths: Iterable[str]) -> Lint:
    """Read the scripts and say what the rules find in them."""
    chosen, notes = files.listed(paths)
    read: list[script.Script] = []
    for file, named in chosen:
        try:
            read.append(parsed(file, files.text_of(file)))
        except (InputError, OSError) as error:
            if named:
                raise
            notes.append(f"not read: {error}")
    notes += [note for each in read for note in _left_out(each)]
    found = tuple(finding for each in read for finding in scripts.findings(each))
    loops = sum(each.places for each in read)
    return Lint(1, _tool(), tuple(each.file for each in read), loops, summary(found), found, tuple(notes))


def parsed(file: str, text: str) -> script.Script:
    """One script of a file's text; InputError where it is no Python."""
    try:
        return script.read(text, file, suppressions.in_text(file, text))
    except SyntaxError as error:
        where = f"{file}:{error.lineno}" if error.lineno else file
        raise InputError(f"{where}: is no Python ({error.msg}); mend the line, or give another file") from error
    except (ValueError, RecursionError, MemoryError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError | MemoryError) else str(error)
        raise InputError(f"{file}: cannot be read as Python ({reason}); give another file") from error


def summary(findings: Iterable[Finding]) -> str:
    """`1 error, 0 warnings, 2 notes (1 suppressed)`."""
    counts = Counter(finding.severity for finding in findings if finding.open)
    hidden = sum(not finding.open for finding in findings)
    words = ", ".join(f"{counts[each]} {each}{'s' * (counts[each] != 1)}" for each in SEVERITIES)
    return words + (f" ({hidden} suppressed)" if hidden else "")


def _left_out(read: script.Script) -> Iterator[str]:
    """What could not be judged."""
    if not read.whole:
        yield f"{read.file}: its calls lead further than a lint follows; what lies beyond was not judged"
    lines = {getattr(loop.node, "lineno", 0) for loop in read.loops if loop.too_open}
    for line in sorted(lines):
        yield f"{read.file}:{line}: more tests than can be tried decide what this loop does; not all rules apply"


def _tool() -> str:
    try:
        return f"precision-audit {version('precision-audit')}"
    except PackageNotFoundError:
        return "precision-audit"
