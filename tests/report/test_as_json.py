"""JSON: valid, versioned, and the same report when read again."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from precision_audit.records import InputError, Predicted, Report, Tensor
from precision_audit.report import as_json
from tests.report import sample

SCHEMA = Path(__file__).parent / "golden" / "schema-1.json"


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def _odd() -> Report:
    """Every number that JSON cannot hold, and every optional record."""
    report = sample.report()
    output = replace(report.verification.outputs[0], sqnr_db=math.inf, relative_l2=math.inf, flip_rate=None, limit=None)
    return replace(
        report,
        verification=replace(report.verification, outputs=(output,), noise=math.inf),
        plan=replace(report.plan, predicted=Predicted(1.0, 2.0, 0.0, 3), environment=(("a", "b"),)),
        graph=replace(report.graph, aliases=(("a", "b"), ("c", "d", "e")), storages=(("w", "v"),)),
    )


REPORTS = {
    "sample": sample.report(),
    "odd numbers": _odd(),
    "not verified": replace(sample.report(), verification=None),
    "empty": replace(sample.report(), findings=(), decisions=(), next_steps=()),
}


@pytest.mark.parametrize("name", REPORTS)
def test_round_trip(name: str) -> None:
    assert as_json.read(as_json.render(REPORTS[name])) == REPORTS[name]


@pytest.mark.parametrize("name", REPORTS)
def test_valid_json_under_its_schema(name: str) -> None:
    tree = json.loads(as_json.render(REPORTS[name]), parse_constant=_refuse)
    assert list(jsonschema.Draft202012Validator(as_json.schema()).iter_errors(tree)) == []


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(as_json.schema())


def test_the_schema_of_version_1_is_kept() -> None:
    """When this fails a reader of version 1 may fail too: a field that was renamed or removed, or whose meaning
    changed, needs a new version; a field that was only added needs a new golden file."""
    assert as_json.schema() == json.loads(SCHEMA.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schema",), 2),
        (("verdict",), "MAYBE"),
        (("plan", "casts"), {}),
        (("findings", 0, "severity"), "fatal"),
        (("verification", "outputs", 0, "relative_l2"), "large"),
        (("graph", "ops", 0, "outputs", 0, "shape"), [1.5]),
    ],
)
def test_the_schema_refuses(path: tuple[Any, ...], value: Any) -> None:
    tree = json.loads(as_json.render(sample.report()))
    inner = tree
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(as_json.schema()).validate(tree)


def test_names_are_those_of_the_records() -> None:
    tree = json.loads(as_json.render(sample.report()))
    assert tree["schema"] == 1
    assert tree["meta"]["versions"]["torch"] == "2.13.0"
    assert tree["graph"]["symbols"] == {"B": 64}
    assert tree["graph"]["ops"][-1]["attributes"] == {"dim": 1, "floor": "-inf", "sizes": [2, [3, "B"]]}
    assert tree["decisions"][0] | {"evidence": []} == {
        "op": "conv1/conv2d#0",
        "classification": "safe-in-bf16",
        "chosen": "bf16",
        "reason": "bf16-training.yaml:9 convolutions",
        "accumulate": "fp32",
        "evidence": [],
        "promote": False,
        "autocast": False,
    }


def test_symbolic_shapes_keep_their_symbols() -> None:
    report = sample.report()
    ops = (replace(report.graph.ops[0], outputs=(Tensor("fp32", ("16*s0", 3), (64, 3)),)), *report.graph.ops[1:])
    changed = replace(report, graph=replace(report.graph, ops=ops))
    assert as_json.read(as_json.render(changed)).graph.ops[0].outputs[0].shape == ("16*s0", 3)


@pytest.mark.parametrize(
    ("text", "message"), [("{", "line 1"), ('{"schema": 7}', "schema 7; expected 1"), ("[]", "schema None")]
)
def test_what_is_no_report_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        as_json.read(text)
    assert "\n" not in str(error.value)
