"""The manual: made from the rules' own files, and the table of README as fresh as they are."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from precision_audit import rules
from precision_audit.records import InputError
from precision_audit.rules import manual

README = Path(__file__).parents[2] / "README.md"


def test_the_table_of_the_readme_is_fresh() -> None:
    """`make rules` writes it."""
    text = README.read_text(encoding="utf-8")
    assert manual.written(text) == text


def test_every_rule_is_in_the_table_once() -> None:
    cells = [line.split(" | ")[0].strip("| ") for line in manual.markdown().splitlines()[2:]]
    files = [path.stem.partition("_")[0].upper() for path in Path(rules.__file__).parent.glob("pa[0-9]*.py")]
    assert cells == sorted(files)


@pytest.mark.parametrize("code", rules.codes())
def test_a_page_holds_the_manual_and_both_examples(code: str) -> None:
    text = manual.page(code)
    assert text.startswith(f"{code} {rules.title(code)}")
    examples = ("def bad(", "def good(") if rules.offers(code, "check") else ("bad, what it finds:", "good, what it")
    for part in ("What it does:", "Why it is a hazard:", "What to do:", *examples, f"# {code}"):
        assert part in text, part
    assert f"family: {manual.FAMILIES[code[:3]]}" in text


def test_what_an_example_uses_is_shown_once_and_nothing_else() -> None:
    text = manual.page("PA504")
    assert text.count("def _custom_op") == 1 and text.count("_NAMED = ") == 1
    assert "def check" not in text and "_REASON" not in text
    shown = text[text.index("used by these:") :]
    ast.parse("\n".join(line.removeprefix("    ") for line in shown.splitlines()[1:]))


@pytest.mark.parametrize(
    ("asked", "near"),
    [("PA508", "PA50"), ("PA599", "PA5"), ("PA1O1", "PA101"), ("unkown op", "PA504"), ("over-broad", "PA503")],
)
def test_an_unknown_code_names_the_nearest(asked: str, near: str) -> None:
    with pytest.raises(InputError) as error:
        manual.page(asked)
    assert f"no rule {asked!r}; did you mean {near}" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_table_is_written_between_its_markers_and_nowhere_else() -> None:
    text = f"before\n{manual.BEGIN}\nold\n{manual.END}\nafter\n"
    made = manual.written(text)
    assert made.startswith("before\n") and made.endswith("\nafter\n") and "old" not in made
    assert manual.written(made) == made
    with pytest.raises(InputError, match="rules: begin"):
        manual.written("no markers")


@pytest.mark.slow
def test_the_command_that_writes_it(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text(f"{manual.BEGIN}\n{manual.END}\n")
    subprocess.run([sys.executable, "-m", "precision_audit.rules", str(file)], check=True)
    assert manual.markdown() in file.read_text()
