"""`precision-audit lint`: paths in, a report on stdout, an exit status out.

Takes the paths and the settings that a lint has a use for; gives the same exit status as an audit. Nothing of the
user's is run, so nothing can print into the report. `output` of a configuration file belongs to audits, which a lint
must not overwrite: here `-o` counts on the command line only.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from precision_audit.cli import outputs, selection, terminal
from precision_audit.cli.config import Settings
from precision_audit.records import InputError, Lint


def run(paths: list[str], settings: Settings) -> int:
    """Read, report, say how it went."""
    from precision_audit import linting

    if not all(path.strip() for path in paths):  # "" would be the current folder
        raise InputError("lint: SCRIPT is empty; give a training script (.py) or a folder of them")
    started = time.perf_counter()
    wanted = settings.output if settings.origins.get("output") == "command line" else ()
    places = outputs.check(wanted, "lint", {}, {f"script {path}": path for path in paths})
    made = _selected(linting.lint(paths), settings)
    _write(made, settings, places)
    if not settings.quiet:
        plural = "s" * (len(made.files) != 1)
        terminal.say(f"read {len(made.files)} file{plural} in {time.perf_counter() - started:.1f} s")
    print(_render(made, settings.output_format, settings, terminal.color()), end="", flush=True)
    return status(made, settings)


def status(made: Lint, settings: Settings) -> int:
    """1 where an open finding is at or above `--fail-on`."""
    return 1 if selection.fails(made.findings, settings) and not settings.exit_zero else 0


def _selected(made: Lint, settings: Settings) -> Lint:
    from precision_audit import linting

    kept = tuple(selection.kept(made.findings, settings))
    left_out = len(made.findings) - len(kept)
    said = f"   {left_out} left out by --select, --ignore or --min-basis" if left_out else ""
    return replace(made, findings=kept, summary=linting.summary(kept) + said)


def _write(made: Lint, settings: Settings, places: outputs.Outputs) -> None:
    for path, form in places.reports:
        from precision_audit.saving import atomic  # here: it needs torch, the rest does not

        text = _render(made, form, settings)
        atomic.write_file(path, lambda partial, text=text: _put(partial, text))  # type: ignore[misc]
        terminal.say(f"wrote {path}")


def _put(path: Path, text: Any) -> None:
    path.write_text(text, encoding="utf-8")


def _render(made: Lint, form: str, settings: Settings, color: bool = False) -> str:
    from precision_audit import report as reports

    return reports.render(made, form, verbose=settings.verbose, color=color)
