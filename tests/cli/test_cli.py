"""The command line: exit status, streams, files, and one line for everything that cannot be used.

`quick` replaces the pipeline by a finished report, so that most of this runs without capturing a model; the tests
below "the real pipeline" replace nothing.
"""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from precision_audit import cli, planning
from precision_audit import report as reports
from precision_audit.cli import config, options, terminal
from precision_audit.records import (
    Comparison,
    Evidence,
    Finding,
    Graph,
    InputError,
    Meta,
    Plan,
    Policy,
    Report,
    Suppression,
    Verification,
)
from precision_audit.report import as_json

MODEL = """
import torch
from torch import nn

print("the user's own output")


def build_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))


example_inputs = (torch.ones(16, 16),)
"""


def finding(
    severity: str, rule: str = "PA101", resolved: bool = False, basis: str = "PROVED", suppressed: bool = False
) -> Finding:
    evidence = Evidence(basis, "")
    comment = Suppression("net.py", 1, 1, (rule,), "known") if suppressed else None
    return Finding(rule, severity, "relu#0", "", f"{rule} said", evidence, resolved=resolved, suppression=comment)  # type: ignore[arg-type]


def report(*findings: Finding, passed: bool | None = True) -> Report:
    meta = Meta("precision-audit 0", (), "net.py", "p", "", "h100", "policy", "", "", "", 1, 0)
    verification = (
        None if passed is None else Verification(passed, (Comparison("output", 0, 0, 0, 1, 0, 0, None, None),))
    )
    plan = Plan("p", "inference", "fp32", "bf16", (), ())
    return Report(1, meta, "READY", "fine", Graph((), (), "inference"), (), findings, plan, verification)


POLICY = Policy("p", "p.yaml", "", "inference", "fp32", "bf16", ())


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("net.py").write_text(MODEL)
    return "net.py"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What the pipeline would return; `calls` are the models it was called with."""
    state = SimpleNamespace(report=report(), calls=[], plans={"apply": None, "check": None})

    def pipeline(loaded, policy, settings, plans, argv):
        state.calls.append(loaded)
        print("forward says hello", file=sys.stderr)
        return state.report, None

    monkeypatch.setattr(cli, "_pipeline", pipeline)
    monkeypatch.setattr(cli, "_before", lambda settings, command: (POLICY, state.plans))
    monkeypatch.setattr(
        cli, "render", lambda report, form, verbose=False, color=False: f"{form}{' -v' if verbose else ''}\n"
    )
    return state


@pytest.mark.parametrize(
    ("found", "arguments", "expected"),
    [
        ([], [], 0),
        (["note"], [], 0),
        (["warning"], [], 0),
        (["error"], [], 1),
        (["warning"], ["--fail-on", "warning"], 1),
        (["error"], ["--fail-on", "never"], 0),
        (["error"], ["--exit-zero"], 0),
    ],
)
def test_exit_status(net: str, quick: SimpleNamespace, found: list[str], arguments: list[str], expected: int) -> None:
    quick.report = report(*(finding(severity) for severity in found))
    assert cli.main([net, *arguments]) == expected


@pytest.mark.parametrize(
    ("made", "arguments", "expected"),
    [
        (report(finding("error", resolved=True)), [], 0),
        (report(finding("error", suppressed=True)), [], 0),
        (report(passed=False), [], 1),
        (report(passed=False), ["--fail-on", "never"], 1),
        (report(passed=False), ["--exit-zero"], 0),
        (report(passed=None), [], 0),
    ],
)
def test_resolved_findings_and_failed_checks(
    net: str, quick: SimpleNamespace, made: Report, arguments: list[str], expected: int
) -> None:
    quick.report = made
    assert cli.main([net, *arguments]) == expected


def test_report_on_stdout_everything_else_on_stderr(
    net: str, quick: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["audit", net, "-v", "--output-format", "concise"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "concise -v\n"
    assert "the user's own output" in captured.err
    assert re.search(r"loaded in \d+\.\d s, audit in \d+\.\d s", captured.err)
    assert "\x1b" not in captured.out + captured.err
    assert cli.main([net, "-q"]) == 0
    assert "loaded in" not in capsys.readouterr().err


def test_no_inputs_prints_the_command_that_fits(
    net: str, quick: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(net).write_text(MODEL.partition("example_inputs")[0])
    assert cli.main([net]) == 0
    assert "--input input=16x16:fp32" in capsys.readouterr().err
    assert quick.calls[0].made_up
    assert cli.main([net, "--input", "input=16x16:fp32"]) == 0
    assert not quick.calls[1].made_up


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([], ["MODEL"]),
        (["net.py", "--polcy", "fp32"], ["unknown option --polcy", "did you mean --policy?"]),
        (["--polcy=fp32", "net.py"], ["unknown option --polcy", "did you mean --policy?"]),
        (["net.py", "other.py"], ["other.py"]),
        (["net.py", "--fail-on", "errors"], ["--fail-on", "errors"]),
        (["net.py", "--policy"], ["--policy"]),
        (["net.py", "--output-format", "html"], ["--output-format html", "not available in this version", "full"]),
        (["net.py", "--output-format", "sarif"], ["not available in this version"]),
        (["net.py", "--output-format", "github"], ["not available in this version"]),
        (["net.py", "--baseline", "b.json"], ["--baseline", "not available in this version"]),
        (["net.py", "--min-basis", "prove"], ["--min-basis", "prove"]),
        (["diff", "net.py"], ["diff: not available in this version"]),
        (["diff", "a.json", "b.json"], ["diff: not available in this version"]),
        (["rule", "PA508"], ["no rule 'PA508'", "did you mean PA50", "list rules"]),
        (["rule", "unknwn op"], ["did you mean PA504, unknown op?"]),
        (["rule"], ["CODE"]),
        (["rule", "PA²"], ["no rule 'PA²'"]),
        (["net.py", "--select", "PA²"], ["--select PA²", "PA402"]),
        (["net.py", "--steps", "²"], ["--steps ²", "a whole number above zero"]),
        (["net.py", "--steps", "0"], ["--steps 0", "a whole number above zero"]),
        (["net.py", "--steps", "9" * 5000], ["--steps", "a whole number above zero, of at most 9 digits"]),
        (["net.py", "--checkpoint", ""], ["--checkpoint '': is empty", "W.safetensors"]),
        (["net.py", "--check-plan", " "], ["--check-plan ' ': is empty", "FILE"]),
        (["net.py", "--pictures="], ["--pictures '': is empty", "FOLDER"]),
        (["net.py", "--input", ""], ["--input '': is empty", "SHAPE"]),
        (["net.py", "-o", "a\0.json"], ["--output", "has a NUL character"]),
        (["lint", ""], ["SCRIPT", "is empty"]),
        (["net.py", "--select", "402"], ["--select 402", "PA402"]),
        (["net.py", "-o", "out.html"], ["-o out.html", "not available in this version"]),
        (["net.py", "-o", "out.pdf"], ["-o out.pdf", ".json"]),
        (["net.py", "-o", "out.pt2"], ["-o out.pt2", ".json"]),
        (["net.py", "-o", "gone/out.json"], ["-o gone/out.json", "no folder gone"]),
        (["net.py", "-o", "a.json", "-o", "./a.json"], ["given twice"]),
        (["net.py", "--write-plan", "gone/plan.yaml"], ["no folder gone"]),
        (["net.py", "--write-plan", "net.py"], ["is the model of this run"]),
        (["net.py", "-o", "folder.json"], ["is a folder"]),
        (["convert", "net.py"], ["convert", "-o OUT"]),
        (["convert", "net.py", "-o", "a.json"], ["none was given"]),
        (["convert", "net.py", "-o", "a.pt2", "-o", "b.pt2"], ["2 were given"]),
        (["convert", "net.py", "-o", "foreign"], ["foreign"]),
        (["net.py", "--config", "gone.toml"], ["gone.toml"]),
        (["list", "opps"], ["opps"]),
        (["list"], ["what"]),
        (["nett.py"], ["nett.py: no such file", "net.py"]),
    ],
)
def test_refused_before_anything_is_run(
    net: str, quick: SimpleNamespace, capsys: pytest.CaptureFixture[str], arguments: list[str], parts: list[str]
) -> None:
    Path("folder.json").mkdir()
    Path("foreign").mkdir()
    Path("foreign/thesis.txt").write_text("mine")
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("precision-audit: ")
    assert not quick.calls
    for part in parts:
        assert part in lines[0], lines[0]


def test_an_unwritable_folder_is_found_before_the_work(
    net: str, quick: SimpleNamespace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("precision_audit.cli.outputs.tempfile.NamedTemporaryFile", denied)
    assert cli.main([net, "-o", "out.json"]) == 2
    assert "Permission denied" in capsys.readouterr().err
    assert not quick.calls


def test_reports_are_written_by_suffix_and_completely(net: str, quick: SimpleNamespace) -> None:
    assert cli.main([net, "-o", "a.json", "-o", "b.md", "-o", "c.TXT"]) == 0
    assert [Path(name).read_text() for name in ("a.json", "b.md", "c.TXT")] == ["json\n", "markdown\n", "full\n"]
    assert sorted(path.name for path in Path().iterdir() if path.is_file()) == ["a.json", "b.md", "c.TXT", "net.py"]


def test_a_failure_leaves_no_half_files(
    net: str, quick: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("a.json").write_text("before")

    def fails(*_: object) -> None:
        raise RuntimeError("no idea")

    monkeypatch.setattr(cli, "_pipeline", fails)
    assert cli.main([net, "-o", "a.json", "-o", "b.json"]) == 2
    assert Path("a.json").read_text() == "before"
    assert sorted(path.name for path in Path().iterdir() if path.is_file()) == ["a.json", "net.py"]
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("precision-audit: internal error: RuntimeError: no idea; please report this bug")


@pytest.mark.parametrize("debug", [False, True])
def test_a_traceback_only_with_debug(net: str, capsys: pytest.CaptureFixture[str], debug: bool) -> None:
    Path(net).write_text("def build_model():\n    return 1 / 0\n")
    assert cli.main([net, *(["--debug"] if debug else [])]) == 2
    error = capsys.readouterr().err
    assert ("Traceback" in error) == debug
    assert error.splitlines()[-1].startswith(
        "precision-audit: net.py:2: building net.py:build_model failed: ZeroDivision"
    )


def test_interrupted(net: str, quick: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_pipeline", interrupt)
    assert cli.main([net]) == 130


def test_select_and_ignore_are_prefixes(
    net: str, quick: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quick.report = report(finding("error", "PA101"), finding("warning", "PA402"), finding("note", "PA403"))
    monkeypatch.setattr(
        cli, "render", lambda report, *_: " ".join(f.rule for f in report.findings) + f" {report.verdict}\n"
    )
    for arguments, expected, code in (
        ([], "PA101 PA402 PA403 READY\n", 1),
        (["--select", "PA4"], "PA402 PA403 READY WITH CHANGES\n", 0),
        (["--select", "PA4", "--ignore", "PA402"], "PA403 READY\n", 0),
        (["--ignore", "PA4,PA1"], " READY\n", 0),
    ):
        assert cli.main([net, *arguments]) == code
        assert capsys.readouterr().out == expected


def test_weak_evidence_is_left_out_and_counted(
    net: str, quick: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bases = ("PROVED", "OBSERVED", "ASSUMED")
    quick.report = report(*(finding("error", f"PA10{i}", basis=basis) for i, basis in enumerate(bases)))
    monkeypatch.setattr(
        cli, "render", lambda report, *_: " ".join(f.rule for f in report.findings) + f"   {report.summary}\n"
    )
    for arguments, rules, left_out in (
        ([], "PA100 PA101 PA102", ""),
        (["--min-basis", "assumed"], "PA100 PA101 PA102", ""),
        (["--min-basis", "observed"], "PA100 PA101", "1 left out by --min-basis observed"),
        (["--min-basis", "proved"], "PA100", "2 left out by --min-basis proved"),
        (
            ["--min-basis", "proved", "--ignore", "PA100"],
            "",
            "2 left out by --min-basis proved, 1 left out by --ignore",
        ),
    ):
        assert cli.main([net, *arguments]) == (1 if rules else 0)
        out = capsys.readouterr().out.rstrip("\n")
        assert out.startswith(f"{rules}   ")
        assert out.endswith(left_out or "fine")


def test_the_steps_that_follow_speak_of_the_findings_that_are_left(
    net: str, quick: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = dataclasses.replace(finding("error", "PA101"), remedy="scale it")
    quick.report = dataclasses.replace(report(broken), next_steps=("PA101 relu#0: scale it",))
    monkeypatch.setattr(cli, "render", lambda report, *_: "|".join(report.next_steps) + "\n")
    assert cli.main([net, "--ignore", "PA1"]) == 0
    assert capsys.readouterr().out == "precision-audit convert net.py --policy bf16-inference -o out/\n"


_SQUARE = """
import torch
from torch import nn


class Net(nn.Sequential):
    def forward(self, x):
        return self[2](self[1]((self[0](x) * 300).pow(2)))


def build_model():
    return Net(nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 3))


def example_inputs():
    return (torch.linspace(-2, 2, 128).reshape(8, 16),)
"""


def test_a_plan_that_no_longer_holds_fails(
    net: str, quick: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from precision_audit.plan import file as plan_file

    quick.plans["check"] = quick.report.plan
    monkeypatch.setattr(plan_file, "check", lambda *_: ["fc1 is gone"])
    assert cli.main([net, "--check-plan", "plan.yaml"]) == 1
    assert "plan.yaml: fc1 is gone" in capsys.readouterr().err


def test_a_cheaper_plan_is_a_note(
    net: str, quick: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from precision_audit.plan import file as plan_file

    quick.plans["check"] = quick.report.plan
    monkeypatch.setattr(plan_file, "check", lambda *_: [])
    monkeypatch.setattr(planning, "planned", lambda *_, **__: SimpleNamespace(plan=quick.report.plan))
    monkeypatch.setattr(plan_file, "cheaper", lambda *_: "a cheaper plan exists")
    assert cli.main([net, "--check-plan", "plan.yaml"]) == 0
    said = capsys.readouterr().err
    assert "plan.yaml: the plan holds\n" in said and "plan.yaml: a cheaper plan exists" in said


def test_the_figures_are_those_of_the_checked_plan(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Made for many rows, where bf16 pays; made anew for 16 rows nothing would run low."""
    options = [
        net,
        "--policy",
        "search-bf16",
        "--device",
        "cpu-amx",
        "-q",
        "--input",
        "input=Bx16:fp32:-1..1",
        "--input",
    ]
    assert cli.main([*options, "B=65536", "--write-plan", "plan.yaml"]) == 0
    assert cli.main([*options, "B=16", "-o", "new.json"]) == 0
    capsys.readouterr()
    assert cli.main([*options, "B=16", "--check-plan", "plan.yaml", "-o", "checked.json"]) == 0
    shown = capsys.readouterr()
    new, checked = (as_json.read(Path(name).read_text()) for name in ("new.json", "checked.json"))
    assert "plan.yaml: the plan holds" in shown.err
    assert "note: costs, findings and figures are those of plan.yaml" in shown.out
    assert {dict(each.plan.formats)["0/linear#0"] for each in (new, checked)} == {"fp32", "bf16"}
    assert new.verification.outputs[0].relative_l2 == 0 < checked.verification.outputs[0].relative_l2
    assert checked.cost.cast_seconds > new.cost.cast_seconds == 0
    assert "--apply-plan plan.yaml" in checked.next_steps[0] and "--apply-plan" not in new.next_steps[0]


@pytest.mark.parametrize(("policy", "kept"), [("fp16-inference", "2/linear#0"), ("fp16-everywhere", "/pow#0")])
def test_a_plan_that_findings_shaped_holds_and_can_be_applied(
    net: str, capsys: pytest.CaptureFixture[str], policy: str, kept: str
) -> None:
    """The square overflows, and what reads it is kept high with it, in classes that the policy lets run low."""
    Path("square.py").write_text(_SQUARE)
    assert cli.main(["square.py", "--policy", policy, "--write-plan", "plan.yaml", "-o", "made.json", "-q"]) == 0
    made = as_json.read(Path("made.json").read_text())
    assert any(each.rule == "PA101" and each.resolved for each in made.findings)
    assert dict(made.plan.formats)[kept] == "fp32"
    for option in ("--check-plan", "--apply-plan"):
        assert cli.main(["square.py", option, "plan.yaml", "-o", "again.json", "-q"]) == 0, capsys.readouterr().err
        again = as_json.read(Path("again.json").read_text())
        assert (again.plan.formats, again.plan.casts, again.verdict) == (made.plan.formats, made.plan.casts, "READY")


def test_the_figures_are_called_another_plans_where_the_checked_one_fails(
    net: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path("plan.yaml")
    assert cli.main([net, "--policy", "bf16-inference", "--write-plan", "plan.yaml", "-q"]) == 0
    path.write_text(path.read_text().replace("linear#0", "linear#7"))
    capsys.readouterr()
    assert cli.main([net, "--policy", "bf16-inference", "--check-plan", "plan.yaml", "-q"]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "figures are those of a plan made anew, not of plan.yaml" in shown and "NOT READY" in shown


def test_pyproject_is_obeyed(net: str, quick: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    quick.report = report(finding("warning"))
    Path("pyproject.toml").write_text('[tool.precision-audit]\nfail-on = "warning"\noutput-format = "concise"\n')
    assert cli.main([net]) == 1
    assert capsys.readouterr().out == "concise\n"
    assert cli.main([net, "--isolated"]) == 0
    assert cli.main([net, "--fail-on", "error", "--output-format", "full"]) == 0
    assert capsys.readouterr().out == "full\nfull\n"


def test_help_says_that_the_file_is_executed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Auditing executes the model's Python file" in text
    for option in options.OPTIONS:
        assert (f"--{option.key}" in text) is (option.command in ("", "audit"))
    assert cli.main(["convert", "--help"]) == 0
    assert "MODEL" in capsys.readouterr().out


def test_formats_of_the_report_are_those_of_its_folder() -> None:
    option = options.BY_KEY["output-format"]
    assert sorted(set(option.choices) - set(option.later)) == sorted(reports.formats())


def test_status_knows_every_severity() -> None:
    settings = dataclasses.replace(config.Settings(), fail_on="warning")
    assert [cli.status(report(finding(s)), [], settings) for s in ("note", "warning", "error")] == [0, 1, 1]
    assert cli.status(report(), ["problem"], settings) == 1


# The real pipeline.


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "precision_audit", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)


@pytest.mark.slow
def test_audit_as_a_process(net: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = run(net, "--policy", "bf16-inference", "--write-plan", "plan.yaml", "-o", "report.json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "net.py:build_model" in done.stdout.splitlines()[0]
    assert "bf16-inference" in done.stdout.splitlines()[0]
    assert "the user's own output" not in done.stdout
    assert "the user's own output" in done.stderr
    assert json.loads(Path("report.json").read_text())["verdict"] in ("READY", "READY WITH CHANGES")
    assert cli.main([net, "--check-plan", "plan.yaml", "--output-format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == json.loads(Path("report.json").read_text())["findings"]


def test_a_plan_of_the_other_mode_is_refused(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([net, "--policy", "bf16-training", "--write-plan", "plan.yaml"]) == 0
    assert cli.main([net, "--policy", "bf16-inference", "--apply-plan", "plan.yaml"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "plan.yaml: is for training" in error
    assert "--policy bf16-training" in error
    assert cli.main([net, "--policy", "bf16-training", "--apply-plan", "plan.yaml"]) == 0


@pytest.mark.parametrize(
    ("tty", "environment", "colored"),
    [(True, {}, True), (True, {"NO_COLOR": "1"}, False), (True, {"TERM": "dumb"}, False), (False, {}, False)],
)
def test_colours_only_where_they_are_wanted(
    monkeypatch: pytest.MonkeyPatch, tty: bool, environment: dict[str, str], colored: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: tty, raising=False)
    assert terminal.color() == colored


@pytest.mark.parametrize("tty", [True, False])
def test_a_bar_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tty: bool
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: tty, raising=False)
    with terminal.progress(quiet=False, stages=2) as stage:
        stage("loading")
    assert ("loading" in capsys.readouterr().err) == tty


@pytest.mark.slow
@pytest.mark.parametrize("out", ["net.pt2", "folder"])
def test_what_convert_writes_is_loaded(net: str, tmp_path: Path, out: str) -> None:
    """The folder by a process of its own."""
    import torch

    from precision_audit import saving

    arguments = ("convert", net, "--policy", "bf16-inference", "-o", out, "-o", "r.md")
    if out == "folder":
        done = run(*arguments, folder=tmp_path)
        assert done.returncode == 0, done.stderr
    else:
        assert cli.main([*arguments]) == 0
    module = saving.load(tmp_path / out)
    assert module(torch.ones(16, 16)).shape == (16, 16)
    assert Path("r.md").read_text()
    assert Path(net).read_text() == MODEL


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--policy", "bf16-inferense"], ["bf16-inferense", "bf16-inference"]),
        (["--policy", "gone.yaml"], ["gone.yaml"]),
        (["--device", "h10"], ["h10", "h100"]),
        (["--apply-plan", "gone.yaml"], ["gone.yaml"]),
        (["--checkpoint", "gone.safetensors"], ["gone.safetensors"]),
        (["--input", "3x5:int64:0..1e400"], ["3x5:int64:0..1e400", "needs whole numbers"]),
        (["--calibration-data", "."], ["calibration data .: is a folder"]),
        (["--input", "3x5:fp32"], ["3x5:fp32", "mat1 and mat2 shapes cannot be multiplied"]),
    ],
)
def test_bad_values_are_one_line(
    net: str, capsys: pytest.CaptureFixture[str], arguments: list[str], parts: list[str]
) -> None:
    assert cli.main([net, *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    error = [line for line in captured.err.splitlines() if line != "the user's own output"]
    assert len(error) == 1
    for part in parts:
        assert part in error[0]


@pytest.mark.parametrize(
    ("what", "row"),
    [
        ("policies", "fp8-training-hopper"),
        ("devices", "h100"),
        ("formats", "bf16"),
        ("ops", "linear"),
        ("rules", "rule"),
        ("recipes", "NVFP4BlockScaling"),
    ],
)
def test_lists(capsys: pytest.CaptureFixture[str], what: str, row: str) -> None:
    assert cli.main(["list", what]) == 0
    assert row in capsys.readouterr().out


def test_the_list_of_recipes_says_where_each_is_and_what_uses_it() -> None:
    from precision_audit import hardware, policy
    from precision_audit.cli import recipes
    from precision_audit.hardware.recipes import lacking
    from precision_audit.recipes import RECIPES

    text = recipes.table()
    assert all(name in text for _, name in RECIPES)
    for (backend, name), row in RECIPES.items():
        named = set(recipes._devices(row).split(", "))
        has = {one.name for one in hardware.DEVICES.values() if not lacking(row, one)}
        assert named == ({"any"} if len(has) == len(hardware.DEVICES) else has), (backend, name)
    used = {name for names in recipes._policies().values() for name in names}
    assert used == {name for name in policy.shipped() if re.match("(fp8|mxfp8|nvfp4)-", name)}
    assert recipes._sizes(RECIPES["torchao", "rowwise"]) == "16, 16, 1 (16, 16, 16)"
    assert recipes._quantised(RECIPES["torchao", "rowwise_with_gw_hp"]).endswith("not the gradient of W")
    assert recipes._quantised(RECIPES["torchao_quantize", "int8wo"]) == "weights: int8"


def test_the_list_of_rules_says_family_and_severity(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "rules"]) == 0
    rows = [re.split(r" {2,}", line) for line in capsys.readouterr().out.splitlines()]
    assert ["PA504", "unknown op", "policy and coverage", "warning"] in rows
    assert ["PA501", "unused rule", "policy and coverage", "warning, note"] in rows


@pytest.mark.parametrize("asked", ["PA504", "pa504", "Unknown op"])
def test_the_manual_of_a_rule(capsys: pytest.CaptureFixture[str], asked: str) -> None:
    if asked == "Unknown op":  # a title is no code, but a near one
        assert cli.main(["rule", asked]) == 2
        assert "did you mean PA504, unknown op?" in capsys.readouterr().err
        return
    assert cli.main(["rule", asked]) == 0
    text = capsys.readouterr().out
    for part in ("PA504 unknown op", "Why it is a hazard:", "What to do:", "bad, what it finds:", "good, what it"):
        assert part in text
    assert "made: torch.Tensor = halve(self.fc(x))  # PA504" in text  # what bad() uses is shown too


@pytest.mark.parametrize("when", ["before", "after"])
def test_show_graph(net: str, capsys: pytest.CaptureFixture[str], when: str) -> None:
    assert cli.main([net, "--show-graph", when, "--output-format", "json"]) == 0
    captured = capsys.readouterr()
    assert "aten.linear.default" in captured.err
    assert json.loads(captured.out)


def test_errors_are_input_errors_without_line_ends() -> None:
    with pytest.raises(InputError) as error:
        options.parse("audit", ["net.py", "--fail-on", "x"])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("option", ["--policy", "--checkpoint", "--apply-plan", "--calibration-data", "-o"])
def test_a_name_that_no_file_can_have(net: str, capsys: pytest.CaptureFixture[str], option: str) -> None:
    assert cli.main([net, option, "x" * 5000 + ".json"]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line != "the user's own output"]
    assert len(said) == 1
    assert said[0].startswith("precision-audit: ")
    assert "internal error" not in said[0]


NOISY = """
print("at import")
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(16, 16)
        print("when made")
    def forward(self, x):
        print("when run")
        return self.l(x)

def example_inputs():
    return (torch.ones(4, 16),)
"""


def test_stdout_is_the_reports_alone_and_two_runs_give_the_same(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("noisy.py").write_text(NOISY)
    texts = []
    for _ in range(2):
        assert cli.main(["noisy.py", "--output-format", "json"]) == 0
        texts.append(capsys.readouterr().out)
        json.loads(texts[-1])
    assert texts[0] == texts[1]  # weights are drawn under one seed


def test_the_next_command_speaks_of_the_same_run(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("noisy.py").write_text(NOISY)
    given = ["noisy.py", "--policy", "fp16-inference", "--device", "h100", "--input", "Bx16:fp32", "--input", "B=4"]
    assert cli.main(given) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("next: "))
    expected = "convert noisy.py:Net --policy fp16-inference --device h100 --input Bx16:fp32 --input B=4 -o out/"
    assert line == f"next: precision-audit {expected}"


@pytest.mark.parametrize(
    ("place", "how"),
    [("out", "precision_audit.load('out')"), ("out.pt2", "torch.export.load('out.pt2').module()")],
)
def test_after_a_conversion_the_next_step_is_to_load_it(
    net: str, capsys: pytest.CaptureFixture[str], place: str, how: str
) -> None:
    Path("noisy.py").write_text(NOISY)
    assert cli.main(["convert", "noisy.py", "-o", place]) == 0
    assert f"next: load it in Python: {how}" in capsys.readouterr().out.splitlines()
    import precision_audit
    from precision_audit import load  # what the line speaks of

    assert precision_audit.load is load and callable(load(place))
