"""`precision-audit lint`: files, streams, formats, suppressions, exit status, and one line for what cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from precision_audit import cli
from precision_audit.records import Finding, Lint
from precision_audit.report import as_json
from tests.script import bad_copies, bad_names, bad_unscaling, good_adversarial

CLIP = bad_unscaling.SCRIPTS["CLIP_IN_A_HELPER"]
OLD = bad_names.SCRIPTS["OLD_NAMES"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(CLIP)
    Path("good.py").write_text(good_adversarial.LOOPS["EMA"])
    return tmp_path


@pytest.mark.parametrize(
    ("text", "arguments", "expected"),
    [
        (CLIP, [], 1),
        (CLIP, ["--exit-zero"], 0),
        (CLIP, ["--fail-on", "never"], 0),
        (CLIP, ["--ignore", "PA62"], 0),
        (CLIP, ["--select", "PA62"], 1),
        (CLIP.replace("# PA620", "# precision-audit: ignore[PA620] clips by chance"), [], 0),
        (OLD, ["--fail-on", "warning"], 0),
        (bad_copies.SCRIPTS["CLAMPED_COPY"], [], 0),
        (bad_copies.SCRIPTS["CLAMPED_COPY"], ["--fail-on", "warning"], 1),
        ("", [], 0),
        ("print('no loop')\n", ["--fail-on", "warning"], 0),
    ],
)
def test_exit_status(text: str, arguments: list[str], expected: int) -> None:
    Path("train.py").write_text(text)
    assert cli.main(["lint", "train.py", *arguments]) == expected


def test_the_report_names_tool_file_and_loops_and_shows_line_code_and_fix(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lint", "train.py"]) == 1
    captured = capsys.readouterr()
    first, _, summary, _, *rest = captured.out.splitlines()
    assert first.startswith("precision-audit 0.") and first.endswith("  lint train.py: 1 training loop")
    assert summary == "1 error, 0 warnings, 0 notes"
    text = "\n".join(rest)
    assert text.startswith("train.py:8: PA620 error [PROVED]  clips gradients that still carry the loss scale")
    assert "  code: clip(model.parameters(), 1.0)  # PA620" in rest
    assert "  fix: add scaler.unscale_(optimizer) before this line, after the last backward()" in rest
    assert captured.err.startswith("read 1 file in ")
    assert cli.main(["lint", "train.py", "-q"]) == 1
    assert capsys.readouterr().err == ""


def test_a_file_without_a_loop_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    Path("model.py").write_text("import torch\n")
    assert cli.main(["lint", "model.py"]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("model.py: no training loop found")


def test_json_has_the_findings_of_an_audit(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lint", "train.py", "good.py", "--output-format", "json"]) == 1
    made = json.loads(capsys.readouterr().out)
    assert list(jsonschema.Draft202012Validator(as_json.schema(Lint)).iter_errors(made)) == []
    assert made["files"] == ["train.py", "good.py"] and made["loops"] == 2
    (finding,) = made["findings"]
    assert set(finding) == set(as_json.schema()["$defs"]["Finding"]["properties"])
    fields = Finding.__dataclass_fields__
    assert set(finding) == {name for name, field in fields.items() if field.metadata.get("written", True)}
    assert (finding["rule"], finding["source"]["line"], finding["source"]["file"]) == ("PA620", 8, "train.py")


README = """\
import torch
import torch.nn.functional as F


def train(model, loader, optimizer):
    scaler = torch.cuda.amp.GradScaler()
    for step, (x, y) in enumerate(loader):
        with torch.amp.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y) / 4
        scaler.scale(loss).backward()
        if (step + 1) % 4 == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
"""
SAID = """\
lint train.py: 1 training loop

2 errors, 0 warnings, 1 note

train.py:12: PA620 error [PROVED]   clips gradients that still carry the loss scale (65536 at first) → nearly all are
    cut to nothing
  code: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
  fix: add scaler.unscale_(optimizer) before this line, after the last backward()
train.py:13: PA622 error [ASSUMED]  nothing in this loop resets the gradients → every step takes the sum over all
    batches so far
  code: scaler.step(optimizer)
  fix: optimizer.zero_grad(set_to_none=True) after the step
train.py:6: PA629 note  [PROVED]   torch.cuda.amp.GradScaler is deprecated → a FutureWarning at each use
  code: scaler = torch.cuda.amp.GradScaler()
  fix: torch.amp.GradScaler("cuda")
"""


def test_the_session_that_the_readme_shows(capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.py").write_text(README)
    assert cli.main(["lint", "train.py"]) == 1
    assert capsys.readouterr().out.partition("  ")[2] == SAID


@pytest.mark.parametrize(
    ("form", "part"),
    [
        ("concise", "train.py:8: PA620 error [PROVED] clips gradients"),
        ("markdown", "`train.py:8` **PA620** error"),
        ("full", "train.py:8: PA620 error"),
    ],
)
def test_formats_on_stdout_and_in_files(form: str, part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lint", "train.py", "--output-format", form, "-o", "out.md", "-o", "out.json"]) == 1
    assert part in capsys.readouterr().out
    assert "**PA620**" in Path("out.md").read_text()
    assert json.loads(Path("out.json").read_text())["loops"] == 1
    assert Path("train.py").read_text() == CLIP


def test_a_folder_is_read_whole_but_for_what_is_nobodys(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("src/a", "src/.hidden", "src/env", "src/__pycache__"):
        Path(name).mkdir(parents=True)
    Path("src/env/pyvenv.cfg").write_text("")
    for name in ("src/a/one.py", "src/.hidden/x.py", "src/env/x.py", "src/__pycache__/x.py"):
        Path(name).write_text(CLIP)
    Path("src/two.py").write_text("def broken(:\n")
    Path("src/three.py").write_bytes(b"x = '\xff'\n")
    Path("src/four.ipynb").write_text("{}")
    assert cli.main(["lint", "src", "src/a/one.py", "--output-format", "json"]) == 1
    made = json.loads(capsys.readouterr().out)
    assert made["files"] == ["src/a/one.py"] and len(made["findings"]) == 1
    assert len(made["notes"]) == 3
    for part in ("1 notebook not read", "src/two.py:1: is no Python", "src/three.py: not readable as Python text"):
        assert any(part in note for note in made["notes"]), made["notes"]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([], ["SCRIPT|FOLDER"]),
        (["trian.py"], ["trian.py: no such file", "did you mean train.py?"]),
        (["nowhere/x.py"], ["no such file"]),
        (["book.ipynb"], ["book.ipynb: is a notebook", "jupyter nbconvert --to script"]),
        (["data.csv"], ["data.csv: is no Python file"]),
        (["broken.py"], ["broken.py:2: is no Python", "mend the line"]),
        (["latin.py"], ["latin.py: not readable as Python text", "UTF-8"]),
        (["nul.py"], ["nul.py", "is no Python"]),
        (["deep.py"], ["deep.py: cannot be read", "nested too deeply"]),
        (["empty"], ["empty: no Python file in this folder"]),
        (["train.py", "--policy", "fp32"], ["--policy: is no option of lint"]),
        (["train.py", "--slect", "PA6"], ["unknown option --slect", "did you mean --select?"]),
        (["train.py", "--select", "62"], ["--select 62"]),
        (["train.py", "--output-format", "sarif"], ["not available in this version"]),
        (["train.py", "-o", "train.py"], ["no report format ends in .py"]),
        (["train.py", "-o", "gone/a.json"], ["no folder gone"]),
    ],
)
def test_what_cannot_be_read_is_one_line(
    arguments: list[str], parts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("book.ipynb").write_text("{}")
    Path("data.csv").write_text("1,2\n")
    Path("broken.py").write_text("x = 1\ndef f(:\n")
    Path("latin.py").write_bytes("x = 'é'\n".encode("latin-1"))
    Path("nul.py").write_bytes(b"x = 1\0\n")
    Path("deep.py").write_text("x = " + " + ".join(["1"] * 2000) + "\n")
    Path("empty").mkdir()
    assert cli.main(["lint", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("precision-audit: ")
    for part in parts:
        assert part in line


@pytest.mark.parametrize(
    "text",
    [
        "\ufeffimport torch\n",
        "# -*- coding: latin-1 -*-\nx = 1\n",
        "x = " + "(" * 90 + "1" + ")" * 90 + "\n",
        "class A(A):\n    def f(self):\n        super().f()\nA().f()\n",
        "def f():\n    yield from f()\nfor x in f():\n    x.backward()\n",
        "f = lambda: f()\nf()\n",
        "for [a, *b], c.d, e[0] in zip(*x, **y): a.b.c()()[1].step()\n",
        "match x:\n    case {'a': [1, *_]} if y: z.backward()\n",
        "async def f():\n    async with g() as h:\n        async for i in h: await i.step()\n",
        "@d(1)\nclass A(metaclass=M, **k):\n    x: int\n    @property\n    def f(self): return self.f\nA().f.f\n",
        "while (n := next(it)):\n    try: n.step()\n    except* E as e: raise\n    else: n.f()\n    finally: del n\n",
    ],
)
def test_any_python_is_read(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("any.py").write_text(text, encoding="utf-8")
    assert cli.main(["lint", "any.py"]) in (0, 1), capsys.readouterr().err


def test_unused_suppressions_are_found_and_used_ones_hidden(capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.py").write_text(CLIP.replace("# PA620", "# precision-audit: ignore[PA620, PA621, PA101, PA999] why"))
    assert cli.main(["lint", "train.py", "--output-format", "json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["summary"] == "0 errors, 1 warning, 1 note (1 suppressed)"
    said = {each["message"] for each in made["findings"] if each["rule"] == "PA506"}
    assert any(each.startswith("nothing to suppress: no PA621 on this line") for each in said)
    assert any(each.startswith("no rule begins with PA999") for each in said)
    assert len(said) == 2  # PA101 is about models: nobody knows here
    assert cli.main(["lint", "train.py", "-v"]) == 0
    assert "train.py:8: PA620 suppressed at train.py:8: why" in capsys.readouterr().out


def test_settings_come_from_pyproject(capsys: pytest.CaptureFixture[str]) -> None:
    Path("audit.json").write_text("an audit's")
    table = '[tool.precision-audit]\nignore = "PA620"\npolicy = "fp16-inference"\noutput = "audit.json"\n'
    Path("pyproject.toml").write_text(table)
    assert cli.main(["lint", "train.py"]) == 0
    assert Path("audit.json").read_text() == "an audit's"
    assert "1 left out" in capsys.readouterr().out
    assert cli.main(["lint", "train.py", "--isolated"]) == 1


def test_what_was_not_judged_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    tests = "".join(f"        if a{n}:\n            optimizer.zero_grad()\n" for n in range(12))
    Path("open.py").write_text(f"def f(model, optimizer):\n    for x in y:\n        model(x).backward()\n{tests}")
    Path("open.py").write_text(Path("open.py").read_text() + "        optimizer.step()\n")
    calls = "".join(f"def f{n}():\n    f{n + 1}()\n    f{n + 1}()\n    f{n + 1}()\n" for n in range(11))
    Path("deep.py").write_text(calls + "def f11():\n    x = [a, b, c, d]\nf0()\n")
    assert cli.main(["lint", "open.py", "deep.py", "--output-format", "json"]) == 0
    first, second = sorted(json.loads(capsys.readouterr().out)["notes"])
    assert first.startswith("deep.py: its calls lead further") and second.startswith(
        "open.py:2: more tests than can be tried"
    )


def test_two_reads_give_the_same_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for _ in range(2):
        cli.main(["lint", "train.py", "good.py", "--output-format", "json"])
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
