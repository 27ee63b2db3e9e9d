"""`--pictures FOLDER`: which files it writes, what it says where there are none, which folders are refused and when."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("matplotlib")

from precision_audit import cli
from precision_audit.cli import outputs
from precision_audit.pictures import drawing, of_report
from precision_audit.records import (
    Facts,
    Graph,
    InputError,
    Meta,
    Plan,
    Policy,
    Report,
    Step,
    Steps,
    Training,
    Verification,
)
from tests.pictures.ranges import made, training

MODEL = "from torch import nn, ones\nmodel = nn.Linear(2, 2)\nexample_inputs = (ones(1, 2),)\n"
GRADIENTS = training(made({-30: 1, -10: 1}), activations=(made({-20: 1}),), scale=1024.0)
HISTOGRAM = ["gradient_histogram.png", "gradient_histogram.svg"]


def report(found: Training | None, mode: str = "training", low: str = "fp16", notes: tuple[str, ...] = ()) -> Report:
    meta = Meta("precision-audit 0", (), "net.py", "p", "", "h100", "policy", "", "", "", 1, 0)
    plan = Plan(f"{low}-{mode}", mode, "fp32", low, (), ())  # type: ignore[arg-type]
    made = Report(1, meta, "READY", "fine", Graph((), (), mode), (), (), plan, Verification(True, ()))  # type: ignore[arg-type]
    return dataclasses.replace(made, facts=Facts(training=found, notes=notes))


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The command line over a finished report; `runs` counts pipelines."""
    state = SimpleNamespace(report=report(GRADIENTS), runs=0)

    def pipeline(*_: object) -> tuple[Report, None]:
        state.runs += 1
        return state.report, None

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("net.py").write_text(MODEL)
    policy = Policy("p", "p.yaml", "", "training", "fp32", "fp16", ())
    monkeypatch.setattr(cli, "_pipeline", pipeline)
    monkeypatch.setattr(cli, "_before", lambda *_: (policy, {"apply": None, "check": None}))
    monkeypatch.setattr(cli, "render", lambda *_, **__: "report\n")
    return state


def test_writes_svg_and_png_and_keeps_what_else_is_there(
    quick: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["net.py", "--pictures", "seen"]) == 0
    assert sorted(path.name for path in Path("seen").iterdir()) == HISTOGRAM
    said = capsys.readouterr()
    assert "wrote seen/gradient_histogram.svg" in said.err and said.out == "report\n"
    first = Path("seen/gradient_histogram.svg").read_text()
    assert "Weight gradients of fc.weight" in first and "Activation gradients" in first and "× 2¹⁰" in first
    Path("seen/mine.txt").write_text("mine")
    assert cli.main(["net.py", "--pictures", "seen"]) == 0
    assert Path("seen/gradient_histogram.svg").read_text() == first
    assert Path("seen/mine.txt").read_text() == "mine"


def test_the_limits_are_those_of_the_low_format_and_only_a_scale_for_it_is_drawn(tmp_path: Path) -> None:
    drawn, _ = of_report.draw(report(GRADIENTS, low="bf16"), tmp_path / "seen")
    svg = next(path for path in drawn if path.suffix == ".svg").read_text()
    assert "becomes zero" in svg and "in bf16" in svg and "× 2" not in svg


def test_curves_are_drawn_where_verification_trained(tmp_path: Path) -> None:
    steps = tuple(Step(2.0 / i, 2.1 / i, None, 0.05, "w", 0.01) for i in (1, 2, 3))
    seen = dataclasses.replace(report(None), verification=Verification(True, (), steps=Steps(steps)))
    drawn, why = of_report.draw(seen, tmp_path)
    assert [path.name for path in drawn] == ["training_curves.svg", "training_curves.png"] and not why
    svg = drawn[0].read_text()
    assert ">fp32<" in svg and ">fp16-training<" in svg


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (report(None, "inference", "bf16"), "bf16-inference is for inference, so there are no gradients; expected a"),
        (report(None), "no step was trained; define loss"),
        (report(None, notes=("nothing was trained: no loss was given",)), "no pictures: nothing was trained: no loss"),
    ],
)
def test_no_evidence_is_one_line_and_no_folder(
    quick: SimpleNamespace, seen: Report, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    quick.report = seen
    assert cli.main(["net.py", "--pictures", "seen"]) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "pictures" in line]
    assert expected in line
    assert not Path("seen").exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--pictures", "no/seen"], "--pictures no/seen: there is no folder no; make it first"),
        (["--pictures", "net.py"], "--pictures net.py: is a file"),
        (["--pictures", "old"], "old/gradient_histogram.svg: is a folder"),
        (["convert", "-o", "old/out/", "--pictures", "old/out"], "give the pictures their own folder"),
        (["convert", "-o", "old/out/", "--pictures", "old/out/seen"], "there is no folder old/out"),
        (["convert", "-o", "old/", "--pictures", "old/seen"], "give the pictures their own folder"),
    ],
)
def test_refused_before_the_model_runs(
    quick: SimpleNamespace, arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("old").mkdir()
    if arguments == ["--pictures", "old"]:
        Path("old/gradient_histogram.svg").mkdir()
    command = [arguments[0], "net.py", *arguments[1:]] if arguments[0] == "convert" else ["net.py", *arguments]
    assert cli.main(command) == 2
    assert expected in capsys.readouterr().err
    assert quick.runs == 0


def test_refused_where_matplotlib_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(drawing.importlib.util, "find_spec", lambda name: None)  # type: ignore[attr-defined]
    with pytest.raises(InputError, match=r"precision-audit\[pictures\]"):
        outputs.check((), "audit", {}, {}, str(tmp_path / "seen"))
    assert outputs.check((), "audit", {}, {}).pictures is None


def test_the_folder_of_a_configuration_file_is_relative_to_it(quick: SimpleNamespace, tmp_path: Path) -> None:
    Path("pyproject.toml").write_text('[tool.precision-audit]\npictures = "seen"\n')
    assert cli.main(["net.py"]) == 0
    assert sorted(path.name for path in (tmp_path / "seen").iterdir()) == HISTOGRAM
