"""`precision-audit search` from what is typed to what is printed and written."""

from __future__ import annotations

import json
import shlex

import pytest

from precision_audit.cli import main
from precision_audit.report import as_json
from tests.searching.small import use

MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 16)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))

def build_model():
    return Net()

example_inputs = (torch.randn(64, 64, generator=torch.Generator().manual_seed(0)),)

def metric(model):
    return float(model(*example_inputs).detach().abs().mean())

def words(model):
    return "good"

def far(expected, made):
    return float((expected - made).abs().max())

answer = 42
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    use(monkeypatch)
    (tmp_path / "net.py").write_text(MODEL)
    return tmp_path


def test_a_search_prints_writes_and_can_be_applied(folder, capsys, monkeypatch):
    written = ["--write-plan", "plan.yaml", "-o", "out", "-o", "found.json", "-o", "found.md"]
    assert main(["search", "net.py", "--budget", "relative_l2=2e-2", *written]) == 0
    shown = capsys.readouterr().out
    assert "search: found, 1 run of a converted model" in shown
    assert "relative_l2 <= 0.02: measured" in shown and "predicted time" in shown
    report = as_json.read((folder / "found.json").read_text())
    assert report.search.outcome == "met" and report.search.runs == 1
    assert sum(point.chosen for point in report.search.frontier) == 1
    assert "search: found" in (folder / "found.md").read_text()
    assert (folder / "out").is_dir()
    policy = report.plan.policy
    monkeypatch.undo()  # a device that the tables know
    monkeypatch.chdir(folder)
    options = ["net.py", "--policy", policy, "--device", "h100"]
    assert main([*options, "--check-plan", "plan.yaml"]) == 0 and "the plan holds" in capsys.readouterr().err
    assert main(["convert", *options, "--apply-plan", "plan.yaml", "-o", "again", "-q"]) == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--write-plan", "mine.yaml"], "net.py:build_model --apply-plan mine.yaml -o out/"),
        (["--write-plan=mine.yaml"], "net.py:build_model --apply-plan mine.yaml -o out/"),
        ([], "net.py:build_model --apply-plan plan.yaml -o out/"),
        (
            ["--input", "x=32x64:fp32", "--policy", "bf16-inference", "--write-plan", "mine.yaml"],
            "net.py:build_model --policy bf16-inference --input x=32x64:fp32 --apply-plan mine.yaml -o out/",
        ),
    ],
)
def test_the_next_command_speaks_of_the_same_run_and_works(folder, capsys, monkeypatch, given, said):
    assert main(["search", "net.py", "--budget", "relative_l2=2e-2", "-q", *given]) == 0
    assert f"precision-audit convert {said}" in capsys.readouterr().out
    if given:
        monkeypatch.undo()  # a device that the tables know
        monkeypatch.chdir(folder)
        assert main(["convert", *shlex.split(said), "-q"]) == 0


def test_places_have_keys_modules_and_lines(folder, capsys):
    assert main(["search", "net.py", "--budget", "relative_l2=1e-5", "--output-format", "json"]) == 0
    search = json.loads(capsys.readouterr().out)["search"]
    first = {place["op"]: place for place in search["high"]}["first/linear#0"]
    assert first["module"] == "first" and first["source"]["file"] == "net.py" and first["source"]["line"] == 11
    assert "would add" in first["why"] and first["error"] > 1e-5


def test_the_metric_of_the_file_and_a_function_as_budgets(folder, capsys):
    assert main(["search", "net.py", "--budget", "metric=1%", "--budget", "net.py:far=0.05", "-q"]) == 0
    shown = capsys.readouterr().out
    assert "metric moves by at most 1 % of the model's own: measured " in shown and "far <= 0.05: measured" in shown
    assert "%" not in shown.replace(" %", ""), "a percentage is set off as everywhere"


def test_a_budget_that_is_not_kept_is_status_1(folder, capsys):
    (folder / "mine.yaml").write_text(
        "name: mine\nmode: inference\nformats: {high: fp32, low: bf16}\nrules: [{name: all, class: 'pin:bf16'}]\n"
    )
    assert main(["search", "net.py", "--policy", "mine.yaml", "--budget", "relative_l2=1e-6", "-q"]) == 1
    shown = capsys.readouterr().out
    assert shown.count("NOT MET") == 1 and "NOT READY" in shown


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--budget", "relative_l2=0"], "nothing that is rounded meets it"),
        (["--budget", "sqnr=nan"], "expected a finite number"),
        (["--budget", "relativ_l2=1"], "did you mean relative_l2?"),
        (["--budget", "relative_l2"], "expected NAME=NUMBER"),
        (["--device", "h101"], "did you mean h100?"),
        (["--metric", "net.py:words", "--budget", "metric=1"], "returned a str; expected a number"),
        (["--metric", "net.py:answer", "--budget", "metric=1"], "is an int; expected a function"),
        (["--metric", "net.py:nothing", "--budget", "metric=1"], "nothing"),
        (["--metric", "net.py", "--budget", "metric=1"], "names no function"),
        (["--budget", "gone.py:far=1"], "gone.py"),
        (["--apply-plan", "plan.yaml"], "a search makes its own plan"),
        (["--policy", "amp-cuda-bf16"], "reproduces torch.autocast"),
        (["-o", "a", "-o", "b"], "one place for the model"),
    ],
)
def test_unusable_input_is_one_line_and_status_2(folder, capsys, argv, said):
    (folder / "plan.yaml").write_text("version: 1\n")
    assert main(["search", "net.py", *argv]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert said in lines[-1] and lines[-1].startswith("precision-audit: ")


@pytest.mark.parametrize("option", ["--budget", "--metric"])
def test_options_of_a_search_are_not_an_audits(capsys, option):
    assert main(["net.py", option, "relative_l2=1"]) == 2
    assert f"{option}: is an option of search" in capsys.readouterr().err
