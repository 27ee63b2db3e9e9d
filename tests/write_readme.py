"""`python -m tests.write_readme`: run the sessions that README.md shows again and write what they print."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
from pathlib import Path

from precision_audit import cli

ROOT = Path(__file__).parents[1]


def printed(command: str) -> str:
    """What a `precision-audit` command prints on stdout, as far as `| grep -A N WORD` or `| grep -E 'REGEX'` behind it
    leaves it."""
    command, _, kept = command.partition(" | grep -E ")
    command, _, asked = command.partition(" | grep -A ")
    words = shlex.split(command)
    assert words[0] == "precision-audit"
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
        status = cli.main(words[1:])
    assert status == 0, f"{command} exits with {status}"
    if kept:
        (pattern,) = shlex.split(kept)
        return "".join(line for line in said.getvalue().splitlines(keepends=True) if re.search(pattern, line))
    if not asked:
        return said.getvalue()
    after, word = asked.split()
    lines = said.getvalue().splitlines(keepends=True)
    first = next(index for index, line in enumerate(lines) if word in line)
    return "".join(lines[first : first + int(after) + 1])


def rewritten(text: str) -> str:
    """The text with every session as it is now."""

    def session(found: re.Match[str]) -> str:
        return f"```console\n$ {found[1]}\n{printed(found[1])}```"

    return re.sub(r"```console\n\$ ([^\n]*)\n.*?```", session, text, flags=re.DOTALL)


if __name__ == "__main__":
    os.environ["PRECISION_AUDIT_LOCAL"] = "cpu-amx"  # the same on every machine
    os.chdir(ROOT)
    path = ROOT / "README.md"
    path.write_text(rewritten(path.read_text(encoding="utf-8")), encoding="utf-8")
