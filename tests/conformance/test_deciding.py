"""Deciding: what a user's overrides do, and what is said of those that do nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import precision_audit as pa
from precision_audit.formats import is_float
from tests.conformance.small import Made, made, mine, policy

X = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))


class Mlp(nn.Module):
    """`gate` and `gate_proj`: one name continues the other."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.gate_proj, self.down = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.sigmoid(self.gate(x)) * self.gate_proj(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp, self.norm = Mlp(), nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.norm(x))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x @ x.mT @ x)


LINEARS = {f"blocks.{i}.mlp.{name}/linear#0" for i in (0, 1) for name in ("gate", "gate_proj", "down")}
HEAD = "head/linear#0"
PRODUCTS = {"/matmul#0", "/matmul#1"}
GEMMS = LINEARS | {HEAD} | PRODUCTS


def gemms(rules: tuple[str, ...], extends: str = "bf16-inference") -> tuple[set[str], Made]:
    """The products of `Net` that run low under these rules before the shipped ones."""
    found = made(Net(), (X,), mine(*rules, extends=extends))
    return found.low & GEMMS, found


# overrides -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "high"),
    [
        ("op: linear, class: keep-fp32", LINEARS | {HEAD}),
        ("op: matmul, class: keep-fp32", PRODUCTS),
        ("op: [linear, matmul], class: keep-fp32", GEMMS),
        ("op: 'lin*', class: keep-fp32", LINEARS | {HEAD}),
        ("kind: matmul, class: keep-fp32", GEMMS),
        ("op: linear, class: 'pin:fp32'", LINEARS | {HEAD}),
    ],
)
@pytest.mark.parametrize("extends", ["bf16-inference", "bf16-training"])
def test_exclude_by_op(rule: str, high: set[str], extends: str) -> None:
    low, found = gemms((rule,), extends)
    assert low == GEMMS - high
    assert {found.formats[key] for key in high} == {"fp32"}


@pytest.mark.parametrize(
    ("rule", "high"),
    [
        ("module: head, class: keep-fp32", {HEAD}),
        ("module: 'blocks.0.*', class: keep-fp32", {key for key in LINEARS if key.startswith("blocks.0.")}),
        ("module: '*.down', class: keep-fp32", {key for key in LINEARS if ".down/" in key}),
        ("module: [head, blocks.1.mlp.gate], class: keep-fp32", {HEAD, "blocks.1.mlp.gate/linear#0"}),
        ("module_type: Linear, class: keep-fp32", LINEARS | {HEAD}),
        ("module_type: Net, op: matmul, class: keep-fp32", PRODUCTS),
    ],
)
def test_exclude_by_module(rule: str, high: set[str]) -> None:
    low, found = gemms((rule,))
    assert low == GEMMS - high
    assert not [text for code, text in found.said if code in ("PA501", "PA502")]


INCLUDE = "module: 'blocks.1.*', op: linear, class: safe-in-bf16"
EXCLUDE = "op: linear, class: keep-fp32"


def test_include_beats_a_broader_exclude_when_it_comes_first() -> None:
    low, found = gemms((INCLUDE, EXCLUDE))
    assert low == PRODUCTS | {key for key in LINEARS if key.startswith("blocks.1.")}
    assert not [text for code, text in found.said if code == "PA502"]


def test_include_after_the_broader_exclude_decides_nothing_and_is_said_to_be_shadowed() -> None:
    low, found = gemms((EXCLUDE, INCLUDE))
    assert low == PRODUCTS
    assert [text.partition(" never")[0] for code, text in found.said if code == "PA502"] == ["rule 'rule-1'"]


@pytest.mark.parametrize("name", ["fp32", "bf16-inference", "fp16-inference", "bf16-training", "amp-cpu-bf16"])
def test_high_and_low_ops_are_disjoint_and_together_complete(name: str) -> None:
    found = made(Net(), (X,), name)
    report, plan = found.result.report, found.result.plan
    decided = [each.op for each in report.decisions]
    low = {each.op for each in report.decisions if each.chosen == plan.low}
    high = {each.op for each in report.decisions if each.chosen == plan.high}
    floats = {op.key for op in report.graph.ops if "/" in op.key and any(is_float(t.format) for t in op.outputs)}
    assert len(decided) == len(set(decided)) and {op.key for op in report.graph.ops if "/" in op.key} == set(decided)
    assert not low & high and low | high == floats
    assert all(each.reason for each in report.decisions)
    assert {each.op: each.chosen for each in report.decisions if each.op in floats} == {
        key: name for key, name in plan.formats if key in floats
    }


# names that continue others ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["'*.mlp.gate'", "'blocks.?.mlp.gate'", "[blocks.0.mlp.gate, blocks.1.mlp.gate]"])
def test_a_glob_for_gate_does_not_touch_gate_proj(pattern: str) -> None:
    low, found = gemms((f"module: {pattern}, class: keep-fp32",))
    assert low == GEMMS - {f"blocks.{i}.mlp.gate/linear#0" for i in (0, 1)}
    assert "PA503" not in dict(found.said)


@pytest.mark.parametrize("pattern", ["'*.mlp.gate*'", "'blocks.0.mlp.gate*'"])
def test_a_pattern_anchored_only_at_its_start_is_flagged_as_over_broad(pattern: str) -> None:
    low, found = gemms((f"module: {pattern}, class: keep-fp32",))
    assert "blocks.0.mlp.gate/linear#0" not in low and "blocks.0.mlp.gate_proj/linear#0" not in low
    (message,) = [text for code, text in found.said if code == "PA503"]
    assert "gate_proj" in message and "'rule-0'" in message


def test_a_layer_number_that_continues_another_is_flagged_too() -> None:
    deep = nn.Sequential(*(nn.Linear(16, 16) for _ in range(11)))
    found = made(deep, (X,), mine("module: '1*', class: keep-fp32"))
    (message,) = [text for code, text in found.said if code == "PA503"]
    assert "10" in message


# rules that say nothing, or two things -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typo", "nearest"),
    [
        ("module: haed, class: keep-fp32", "head"),
        ("module: 'blokcs.*', class: keep-fp32", "blocks"),
        ("module: 'blocks.*.mpl.gate', class: keep-fp32", "mlp.gate"),
        ("module: Blocks.0.mlp.gate, class: safe-in-bf16", "mlp.gate"),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_a_rule_with_a_typo_in_its_module_path_is_reported_as_unused_and_only_it(
    typo: str, nearest: str, first: bool
) -> None:
    right = "module: blocks.0.mlp.down, class: keep-fp32"
    low, found = gemms((typo, right) if first else (right, typo))
    assert low == GEMMS - {"blocks.0.mlp.down/linear#0"}
    (message,) = [text for code, text in found.said if code in ("PA501", "PA502", "PA503")]
    assert f"'rule-{0 if first else 1}' matches no op" in message and nearest in message


def test_rules_that_all_match_report_nothing() -> None:
    _, found = gemms(("module: head, class: keep-fp32", "module: 'blocks.*', op: layer_norm, class: keep-fp32"))
    assert found.said == []


CONTRADICTIONS = [
    ("{name: a, op: linear, class: safe-in-fp16}", "safe-in-bf16"),
    ("{name: a, op: linear, class: keep-bf16}", "keep-fp32"),
    ("{name: a, op: linear, class: keep-fp32, recipe: rowwise}", "recipe"),
    ("{name: a, op: linear, class: safe-in-bf16, backend: torchao}", "backend"),
    ("{name: a, op: conv2d, class: fp8-eligible}", "linear"),
    ("{name: a, op: conv2d, kind: matmul, class: keep-fp32}", "one or the other"),
    ("{name: a, op: linear, class: keep-fp32, promote: true}", "promote"),
    ("{name: a, op: linear, where: {k: {min: 32, max: 16}}, class: keep-fp32}", "above max"),
    ("{name: a, op: linear, where: {k: {equals: 32, min: 16}}, class: keep-fp32}", "equals"),
    ("{name: a, op: relu, class: inherit}", "follow"),
    ("{name: a, class: keep-fp32}", "catch-all at the end"),
    ("{name: rest, op: relu, class: keep-fp32}", "taken"),
    ("{name: a, op: linear, class: keep-fp32, class: safe-in-bf16}", "class"),
]


@pytest.mark.parametrize(("rule", "word"), CONTRADICTIONS)
def test_contradictory_fields_in_a_rule_are_rejected(rule: str, word: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    rules = f"rules:\n  - {rule}\n  - {{name: rest, class: follow}}\n"
    file.write_text(f"name: mine\nmode: inference\nformats: {{high: fp32, low: bf16}}\n{rules}")
    with pytest.raises(pa.InputError) as refused:
        pa.audit(nn.Linear(4, 4), (torch.randn(2, 4),), policy=file)
    message = str(refused.value)
    assert word in message and "mine.yaml:" in message and "\n" not in message


def test_no_rule_is_blamed_for_a_rule_of_a_shipped_policy_that_fits_nothing() -> None:
    found = made(nn.Linear(16, 4), (X,), "bf16-inference")
    assert found.said == []


def test_a_policy_that_allows_everything_is_no_finding() -> None:
    assert made(Net(), (X,), policy(rest="safe-in-bf16")).said == []
