"""The terminal screen where it differs from the golden one."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest
import torch

import precision_audit as pa
from precision_audit.records import Comparison, Decision, Evidence, Fold, Plan, Predicted, Report, Source
from precision_audit.report import as_full, phrases
from precision_audit.report.findings import by_place
from tests.report import sample


def _lines(report: Report, **options: Any) -> list[str]:
    return as_full.render(report, **options).splitlines()


def _verified(**changes: Any) -> Report:
    return replace(sample.report(), verification=replace(sample.verification(), **changes))


def _planned(**changes: Any) -> Report:
    return replace(sample.report(), plan=replace(sample.plan(), **changes))


def test_verbose_lists_every_op() -> None:
    lines = _lines(sample.report(), verbose=True)
    for decision in sample.decisions():
        assert any(line.startswith(f"{decision.op} ") for line in lines)
    assert any("reference: bitwise equal to itself" in line for line in lines)
    assert any(re.fullmatch(r"output, SQNR +50\.7 dB +- +-", line) for line in lines)


@pytest.mark.parametrize(
    ("whole", "median", "told"),
    [(1e-3, 1.9e-3, False), (1e-3, 2.1e-3, True), (1e-3, 4e-4, True), (math.inf, 4e-4, True), (0.0, 0.0, False)],
)
def test_a_median_over_rows_that_disagrees_stands_beside_the_whole(whole: float, median: float, told: bool) -> None:
    output = replace(sample.verification().outputs[0], relative_l2=whole, row_median=median, plain_row_median=3e-3)
    row = re.compile(rf"output, median row +{re.escape(phrases.figure(median))} +3\.0e-3 +-")
    assert any(row.fullmatch(line) for line in _lines(_verified(outputs=(output,)))) is told
    assert any(row.fullmatch(line) for line in _lines(_verified(outputs=(output,)), verbose=True))
    bare = replace(output, row_median=None)
    assert not any("median row" in line for line in _lines(_verified(outputs=(bare,)), verbose=True))


def test_a_failure_names_figure_limit_and_first_op() -> None:
    output = replace(sample.verification().outputs[0], relative_l2=0.5, passed=False, nonfinite=3, flip_rate=0.25)
    report = _verified(passed=False, outputs=(output,), first_parting="fc2/linear#0", notes=("something else",))
    lines = _lines(report)
    assert any(re.fullmatch(r"output, relative L2 +5\.0e-1 +2\.7e-3 +1e-2 +FAIL", line) for line in lines)
    assert any(re.fullmatch(r"output, not finite +3 +- +0 in reference", line) for line in lines)
    assert any(re.fullmatch(r"output, argmax changed +25\.00 % +- +-", line) for line in lines)
    assert "first op at which both part: fc2/linear#0 (examples/01_mnist_cnn.py:34)" in lines
    assert "something else" in lines


def test_a_refused_shape_is_told_in_full() -> None:
    lines = _lines(_verified(passed=False, shapes="fc1: Expected self.size(1) to be divisible by 16"))
    assert any(re.fullmatch(r"CUDA shapes, fwd\+bwd, B=64 +fail +- +- +FAIL", line) for line in lines)
    assert "shapes: fc1: Expected self.size(1) to be divisible by 16" in lines


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("bitwise on the example; bitwise on a perturbed input", False),
        ("bitwise on the example; 1e-06 on another", True),
    ],
)
def test_agreement_with_eager_is_news_only_where_it_is_not_bitwise(text: str, shown: bool) -> None:
    assert (f"captured against eager: {text}" in _lines(_verified(captured_against_eager=text))) == shown


def test_shapes_that_depend_on_data_are_said_not_to_be_checked() -> None:
    lines = _lines(_verified(shapes="not checked: M depends on data"))
    assert any(re.fullmatch(r"CUDA shapes, fwd\+bwd, B=64 +not checked +- +-", line) for line in lines)
    assert "shapes: not checked: M depends on data" in lines


def test_many_outputs_are_cut_but_never_a_failing_one() -> None:
    def output(index: int) -> Comparison:
        return Comparison(f"output[{index}]", index * 1e-4, 0, 9, 1, 0, 0, None, None, 1e-2, index != 3)

    lines = _lines(_verified(outputs=tuple(output(index) for index in range(30))))
    shown = [line.split(",")[0] for line in lines if line.startswith("output[")]
    assert shown == ["output[3]", "output[26]", "output[27]", "output[28]", "output[29]"]
    assert any(re.match(r"25 more outputs +pass", re.sub(r" {2,}", "  ", line)) for line in lines)


def test_the_worst_gradient_is_worst_against_its_own_limit() -> None:
    strict = replace(sample.verification().gradients[0], name="strict", relative_l2=0.09, limit=0.1)
    lines = _lines(_verified(gradients=(strict, *sample.verification().gradients)))
    assert any(line.startswith("worst gradient (strict)") for line in lines)


def test_folds_and_copies_are_counted() -> None:
    folds = (Fold("fc1.weight", "bf16"), Fold("fc2.weight", "bf16", ("fc2/linear#0",), True, 2560))
    expected = (
        "casts: 2 of activations, 2 of parameters, 2 parameters stored in bf16 once, 1 of them beside the original "
        "(2.50 KiB more); torch.autocast makes 10"
    )
    assert expected in _lines(_planned(folds=folds))


def test_what_is_predicted_is_said_to_be() -> None:
    predicted = Predicted(1e-3, 2e-3, 1e-5, 4000, error_share=4e-4)
    report = _planned(predicted=predicted, environment=(("torch.backends.cuda.matmul.allow_tf32", "false"),))
    assert not any("predicted" in line for line in _lines(report))
    assert "predicted, not measured: relative error of the outputs 0.02" in _lines(report, verbose=True)
    assert "environment: torch.backends.cuda.matmul.allow_tf32=false" in _lines(report)


def test_findings_that_differ_by_op_are_one_entry() -> None:
    first = sample.findings()[1]
    found = tuple(
        replace(first, op=f"layers.{i}.fc/linear#0", module=f"layers.{i}.fc", message=f"layers.{i}.fc: pad K")
        for i in range(4)
    )
    lines = _lines(replace(sample.report(), findings=found))
    assert sum("PA402" in line for line in lines) == 1
    assert any(line.endswith("[PROVED]  layers.*.fc x4: pad K") for line in lines)
    assert sum("PA402" in line for line in _lines(replace(sample.report(), findings=found), verbose=True)) == 4


@pytest.mark.parametrize(
    ("texts", "lines", "entries"),
    [
        (("cumsum over 4000 terms", "scatter_add over 5000 terms"), (7, 7), 1),
        (("cumsum over 4000 terms", "scatter_add over 5000 terms"), (7, 8), 2),
        (("cumsum over 4000 terms", "scatter_add loses 5000 terms"), (7, 7), 2),
    ],
)
def test_findings_of_one_line_that_differ_by_op_and_number_are_one_entry(
    texts: tuple[str, str], lines: tuple[int, int], entries: int
) -> None:
    first = replace(sample.findings()[1], rule="PA205", module="")
    found = tuple(
        replace(
            first,
            op=f"/{text.split()[0]}#0",
            message=text,
            source=replace(first.source, line=line),
            evidence=Evidence("PROVED", "", (("terms", float(text.split()[2])),)),
        )
        for text, line in zip(texts, lines, strict=True)
    )
    report = replace(sample.report(), findings=found)
    shown = [line for line in _lines(report) if "PA205" in line]
    assert len(shown) == entries
    if entries == 1:
        assert "scatter_add over 5000 terms (and 1 like it)" in shown[0]
    assert sum("PA205" in line for line in _lines(report, verbose=True)) == 2


def test_findings_stand_by_severity_then_by_place() -> None:
    first = sample.findings()[1]
    places = [("note", "a.py", 1), ("error", "b.py", 10), ("error", "b.py", 9), ("warning", "c.py", 2)]
    found = [
        replace(first, severity=severity, rule=f"PA50{9 - n}", source=Source(file, line, "forward", ""))
        for n, (severity, file, line) in enumerate(places)
    ]
    again = [replace(found[2], rule="PA101", message="another rule on that line")]
    told = [(each.severity, each.source.file, each.source.line, each.rule) for each in by_place(found + again)]
    assert told == [
        ("error", "b.py", 9, "PA101"),
        ("error", "b.py", 9, "PA507"),
        ("error", "b.py", 10, "PA508"),
        ("warning", "c.py", 2, "PA506"),
        ("note", "a.py", 1, "PA509"),
    ]


def test_errors_come_first_and_a_finding_without_a_line_is_placed_by_its_module() -> None:
    note, warning = sample.findings()
    error = replace(note, rule="PA301", severity="error", source=None, remedy="keep it high")
    lines = _lines(replace(sample.report(), findings=(note, warning, error)))
    order = [line for line in lines if re.search(r" PA\d{3} ", line)]
    assert [re.findall(r"PA\d+", line)[0] for line in order] == ["PA301", "PA402", "PA401"]
    assert order[0].startswith("module fc2: PA301 error   [PROVED]")
    assert "  fix: keep it high" in lines


def test_what_the_plan_resolved_is_one_line_after_what_is_open() -> None:
    note, warning = sample.findings()
    error = replace(note, rule="PA101", severity="error", resolved=True, remedy="keep it high")
    lines = _lines(replace(sample.report(), findings=(note, warning, error)))
    order = [re.findall(r"PA\d+", line)[0] for line in lines if re.search(r" PA\d{3} ", line)]
    assert order == ["PA402", "PA401", "PA101"]
    text = "fc2: stays bf16; pad 10 to 16 to make it eligible"
    at = lines.index("resolved by the plan, which keeps these in fp32:")
    assert lines[at + 1] == f"  examples/01_mnist_cnn.py:34: PA101  {text}"
    assert "  fix: keep it high" not in lines


def test_a_warning_is_shown_with_code_evidence_and_whose_word_stands_against_its_remedy() -> None:
    evidence = Evidence("OBSERVED", "on 3 batches", (("amax", 176400.0), ("limit", 65504.0), ("share", 0.015625)))
    off = "turned off by policy mine.yaml:9"
    found = replace(sample.findings()[1], evidence=evidence, overridden=off, remedy="scale first")
    lines = _lines(replace(sample.report(), findings=(found,)))
    assert "  code: x = self.fc1(x)" in lines
    assert "  evidence: amax 1.764e+05, limit 65504, share 1.56 %" in lines
    assert "  fix: scale first" in lines
    assert f"last batch included; unresolved: {off} code:" in re.sub(r"\s+", " ", " ".join(lines))
    assert max(map(len, lines)) <= 120


def test_the_findings_of_a_big_model_fit_a_screen() -> None:
    """400 findings of all kinds, no two with the same words: without -v at most 40 lines, and every one is counted."""
    words = [f"{first}{second}" for first in "abcdefghijklmnopqrst" for second in "abcdefghijklmnopqrst"]
    states = [{"severity": "error"}, {"severity": "warning"}, {"severity": "note"}, {"resolved": True}]
    first = sample.findings()[1]
    found = tuple(
        replace(first, op=f"{word}/linear#0", module=word, message=f"{word} breaks {word}", **states[i % 4])
        for i, word in enumerate(words)
    )
    report = replace(sample.report(), findings=found)
    empty = len(_lines(replace(report, findings=())))
    lines = _lines(report)
    assert len(lines) - empty <= 40
    shown = sum(" PA402 error" in line for line in lines)
    assert shown >= 5
    assert f"and {100 - shown} errors, 100 warnings, 100 notes more; -v lists all" in lines
    assert "  and 95 more; -v lists all" in lines
    assert sum("breaks" in line for line in _lines(report, verbose=True)) == 400


def test_what_the_evidence_lacks_is_said_at_the_top() -> None:
    report = sample.report()
    lines = _lines(replace(report, meta=replace(report.meta, batches=0, notes=("no input was run",))))
    assert lines[3] == "note: no input was run"
    assert "other inputs may reach further" not in lines[2]
    assert "(other inputs may reach further)" in re.sub(r"\s+", " ", " ".join(_lines(report)[2:4]))


def test_what_nobody_chose_is_one_row() -> None:
    chosen = tuple(
        Decision(key, "fixed", name, "fact: no float output")
        for key, name in (("/relu#0", "int64"), ("/flatten#0", "bool"), ("/relu#1", "int64"))
    )
    lines = _lines(replace(sample.report(), decisions=chosen))
    assert [line for line in lines if "fact:" in line] == [
        "relu x2, flatten  fixed    int64, bool  fact: no float output"
    ]


def test_long_reasons_are_wrapped_not_cut() -> None:
    reason = " ".join(f"word{i}" for i in range(40))
    report = replace(sample.report(), decisions=(Decision("fc1/linear#0", "follow", "bf16", reason),))
    text = as_full.render(report)
    assert all(f"word{i}" in text for i in range(40))
    assert max(len(line) for line in text.splitlines() if "word" in line) <= 120


def test_several_batches_and_notes_of_the_capture() -> None:
    report = sample.report()
    meta = replace(report.meta, batches=5)
    lines = _lines(replace(report, meta=meta, graph=replace(report.graph, notes=("one branch was not seen",))))
    assert lines[2].endswith("1 batch from example_inputs, 5 batches in all")
    assert lines[3] == "note: one branch was not seen"


@pytest.mark.parametrize("color", [True, False])
def test_colour_only_when_asked(color: bool) -> None:
    text = as_full.render(sample.report(), color=color)
    assert ("\033[" in text) == color
    plain = re.sub(r"\033\[[\d;]*m", "", text)
    assert plain == as_full.render(sample.report())


def test_not_verified() -> None:
    assert "not verified: the model was not run" in _lines(replace(sample.report(), verification=None))


def test_plan_without_swaps_has_no_linears() -> None:
    plan = Plan("p", "training", "fp32", "bf16", (), ())
    assert "casts: 0 of activations, 0 of parameters; torch.autocast makes 10" in _lines(
        replace(sample.report(), plan=plan)
    )


def test_gradients_that_are_summed_in_fp16_are_said() -> None:
    class Forked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.a(x) + self.b(x)

    args = (torch.randn(4, 32),)
    text = as_full.render(pa.audit(Forked(), args, policy="fp16-training"))
    assert "1 cast to fp16 with several readers: their gradients are summed in fp16" in text
    assert "several readers" not in as_full.render(pa.audit(Forked(), args, policy="bf16-training"))
