"""The README is the manual: its commands are run, its outputs compared, its Python executed.

Figures depend on the processor, so what was measured in training and verification is compared as `#`; everything else
word for word.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

from precision_audit import policy
from precision_audit.cli import config, options
from tests.write_readme import printed

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FIGURE = re.compile(r"\d+(\.\d+)?(e[-+]?\d+)?( %)?")
VANISHES = re.compile(r"(< )?# zero")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def comparable(text: str) -> list[str]:
    """Lines with runs of blanks as one; below the heading of the figures, each figure as `#`."""
    lines = [re.sub(r"\s+", " ", line).strip() for line in text.strip().splitlines()]
    begins = ("training:", "verified on", "search:")
    measured = next((i for i, line in enumerate(lines) if line.startswith(begins)), len(lines))
    # whether one gradient of thousands is zero depends on the processor, too
    return [line if i < measured else VANISHES.sub("fits", FIGURE.sub("#", line)) for i, line in enumerate(lines)]


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks("console"), ids=lambda block: block.splitlines()[0][2:90])
def test_a_command_prints_what_the_readme_shows(block: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make readme` writes it."""
    monkeypatch.chdir(ROOT)
    command, _, expected = block.partition("\n")
    assert comparable(printed(command.removeprefix("$ "))) == comparable(expected)


def test_the_python_of_the_readme_runs_as_one_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where its pictures go
    said, scope = io.StringIO(), dict[str, object]()
    with contextlib.redirect_stdout(said):
        for block in blocks("python"):
            exec(compile(block, "README.md", "exec"), scope)
    lines = said.getvalue().splitlines()
    assert lines[0] == "READY"
    assert "('0/linear#0', 'bf16')" in lines[1]
    assert lines[2] == "torch.float32 2 torch.bfloat16"
    assert any(line.startswith("x: ") or ": up to " in line for line in lines)
    assert any("e5m3b12: 0.0% too large" in line for line in lines)


def test_the_policy_of_the_readme_loads() -> None:
    (block,) = blocks("yaml")
    found = policy.parse(block)
    assert [rule.name for rule in found.rules][:3] == ["head", "tiny-eps", "linears"]


def test_the_configuration_of_the_readme_is_read(tmp_path: Path) -> None:
    (block,) = blocks("toml")
    (tmp_path / "pyproject.toml").write_text(block)
    found = config.settings({}, start=tmp_path)
    assert (found.policy, found.fail_on) == ("bf16-inference", "warning")
    assert found.origins["fail_on"].endswith("pyproject.toml")


@pytest.mark.parametrize("line", [line for block in blocks("sh") for line in block.splitlines()])
def test_every_command_line_of_the_readme_is_one(line: str) -> None:
    words = shlex.split(line, comments=True)
    if words[0] == "make":
        assert f"\n{words[1]}:" in (ROOT / "Makefile").read_text(encoding="utf-8")
        return
    assert words[0] == "precision-audit"
    command, rest = (words[1], words[2:]) if words[1] in options.COMMANDS else ("audit", words[1:])
    assert options.parse(command, rest)


def test_every_shipped_policy_is_in_the_readme() -> None:
    table = README[README.index("| policy | for |") :]
    assert [name for name in policy.shipped() if f"`{name}`" not in table] == []


def test_files_that_the_readme_names_are_there() -> None:
    for name in re.findall(r"\]\((examples/[^)]+)\)", README):
        assert (ROOT / name).is_file(), name
