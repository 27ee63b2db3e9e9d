"""Every hazard rule: documented, found by listing, and its own examples executed. Then what single rules must tell."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import nn

from precision_audit import backends, hardware, policy, rules, suppressions
from precision_audit.analyse import analyse
from precision_audit.analyse.functions import differing, functions
from precision_audit.analyse.training import Lesson
from precision_audit.capture import capture, private_copy, sources
from precision_audit.capture.origins import as_fake, has_weights
from precision_audit.decide import Decided, decide
from precision_audit.records import Finding, Mode
from precision_audit.rules.pa401_fp8_refused import _pads

MODELS = [code for code in rules.codes() if rules.offers(code, "check")]  # the others: tests/script
CODES = ["PA306", "PA401", "PA402", "PA403", "PA417", "PA501", "PA502", "PA503", "PA504", "PA505"]


def _run(
    model: nn.Module,
    args: tuple[Any, ...],
    text: str,
    dynamic_shapes: Any = None,
    loss: Any = None,
    optimizer: Any = None,
) -> Decided:
    made = policy.parse(text, "mine.yaml") if "\n" in text else policy.load(text)
    device = hardware.device(made.device or "local")
    if not has_weights(model):  # too large to be run: judged by its shapes
        fake, fakes, _ = as_fake(private_copy(model), args, {})
        captured = capture(fake, fakes, mode=made.mode, dynamic_shapes=dynamic_shapes)
        return decide(captured.graph, made, device, backends.listed(), facts=analyse(captured, made, device, ()))
    captured = capture(private_copy(model), args, mode=made.mode, dynamic_shapes=dynamic_shapes)
    lesson = Lesson(captured, loss, optimizer) if loss else None
    facts = analyse(captured, made, device, [(args, {})], lesson, loss)
    copied, batch = private_copy(model), (args, {})
    measured = differing(copied, captured, batch) if made.mode == "training" else ()
    measured = functions(copied, captured, made, batch, measured, loss)
    facts = replace(facts, suppressions=suppressions.read(captured.graph, model), functions=measured)
    return decide(captured.graph, made, device, backends.listed(), facts=facts)


def _findings(example: rules.Example) -> tuple[Finding, ...]:
    shapes, loss, optimizer = example.dynamic_shapes, example.loss, example.optimizer
    return _run(example.model, example.args, example.policy, shapes, loss, optimizer).findings


def test_listing_finds_the_files_of_the_folder() -> None:
    assert set(CODES) <= set(rules.listed())
    assert list(rules.listed()) == sorted(rules.listed())
    files = [path.stem for path in Path(rules.__file__).parent.glob("pa*.py")]
    assert sorted(rules.code_of(name) for name in files) == list(rules.listed())  # unique, none left out
    for code, rule in rules.listed().items():
        offered = [what for what in ("check", "lint") if rules.offers(code, what)]
        assert offered and offered == [what for what in ("check", "lint") if hasattr(rule, what)]


@pytest.mark.parametrize("code", sorted(rules.listed()))
def test_rule_is_documented(code: str) -> None:
    text = rules.listed()[code].__doc__ or ""
    assert text.startswith(f"{code} ") and rules.title(code)
    for part in ("What it does:", "Why it is a hazard:", "What to do:", "References:"):
        assert part in text


@pytest.mark.parametrize("code", MODELS)
def test_rule_condemns_bad_and_leaves_good(code: str) -> None:
    rule = rules.listed()[code]
    bad = [finding for finding in _findings(rule.bad()) if finding.rule == code]
    assert bad
    assert code not in {finding.rule for finding in _findings(rule.good())}
    for finding in bad:
        assert finding.message and "\n" not in finding.message and finding.evidence.text
        assert re.fullmatch(r"[0-9a-f]{16}", finding.fingerprint)


@pytest.mark.parametrize("code", MODELS)
def test_the_marked_line_is_the_guilty_one(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The finding's source line carries the mark, in the model or in the policy; PA505's is a size, marked in bad()."""
    monkeypatch.setattr(sources, "_OURS", "nowhere")  # lines of the package are never the user's, save here
    sources.source_of.cache_clear()
    rule = rules.listed()[code]
    source = inspect.getsource(rule)  # type: ignore[arg-type]
    assert f"# {code}" in source
    example = rule.bad()
    (finding, *_) = [finding for finding in _findings(example) if finding.rule == code]
    if finding.op:
        assert finding.source is not None and finding.source.text.strip().endswith(f"# {code}")
    elif "\n" in example.policy:
        assert finding.source is not None
        assert example.policy.splitlines()[finding.source.line - 1].endswith(f"# {code}")


def test_severities_and_off_come_from_the_policy() -> None:
    example = rules.listed()["PA501"].bad()
    for word, expected in (("error", ["error"]), ("note", ["note"]), ("off", [])):
        text = example.policy + f"hazards: {{PA501: {word}}}\n"
        found = _run(example.model, example.args, text).findings
        assert [finding.severity for finding in found if finding.rule == "PA501"] == expected


class Mlp(nn.Module):
    def __init__(self, classes: int = 16) -> None:
        super().__init__()
        self.mlp = nn.ModuleDict({"gate": nn.Linear(32, 32), "gate_proj": nn.Linear(32, 32)})
        self.layer = nn.ModuleList([nn.Linear(32, 32) for _ in range(11)])
        self.head = nn.Linear(32, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.mlp["gate"](x) * self.mlp["gate_proj"](x)
        for layer in self.layer:
            x = torch.relu(layer(x))
        y: torch.Tensor = self.head(x)
        return y


MINE = "name: mine\nextends: bf16-inference\nrules:\n"
X = (torch.randn(16, 32),)


def _told(*lines: str) -> list[tuple[str, str]]:
    found = _run(Mlp(), X, MINE + "".join(f"  - {line}\n" for line in lines)).findings
    return [(finding.rule, finding.message) for finding in found]


def test_a_typo_in_a_module_path_is_reported_and_only_it() -> None:
    told = _told(
        "{name: typo, module: mlp.gaet, class: keep-fp32}",
        "{name: right, module: mlp.gate, class: keep-fp32}",
        "{name: by-op, op: relu, class: follow}",
    )
    assert told == [("PA501", "rule 'typo' matches no op of this model (did you mean mlp.gate?)")]


def test_a_module_that_computes_nothing_itself_points_below() -> None:
    (told,) = _told("{name: all, module: mlp, class: keep-fp32}")
    assert told[0] == "PA501" and "mlp.* is what lies below it" in told[1]


def test_shipped_rules_are_not_reported_when_they_match_nothing() -> None:
    captured = {mode: capture(Mlp(), X, mode=mode).graph for mode in get_args(Mode)}
    for made in map(policy.load, policy.shipped()):
        if not made.autocast:
            found = decide(
                captured[made.mode], made, hardware.device(made.device or "local"), backends.listed()
            ).findings
            assert [one.rule for one in found if one.rule in ("PA501", "PA502", "PA503")] == []


def test_a_rule_that_an_earlier_one_shadows() -> None:
    told = _told(
        "{name: everything, op: linear, class: safe-in-bf16}",
        "{name: late, module: 'layer.*', op: linear, class: keep-fp32}",
    )
    assert told == [("PA502", "rule 'late' never decides: 'everything' (mine.yaml:4) comes first")]


@pytest.mark.parametrize(
    ("pattern", "also"),
    [
        ("mlp.gate*", ["mlp.gate_proj"]),
        ("*.gate*", ["mlp.gate_proj"]),
        ("layer.1*", ["layer.10"]),
        ("mlp.gate", []),
        ("mlp.*", []),
        ("layer.*", []),
        ("*.gate", []),
        ("mlp.gate_pro*", []),  # an abbreviation of the only module it can mean
        ("*gate*", ["mlp.gate_proj"]),
        ("head*", []),
        ("mlp.ga*", ["mlp.gate", "mlp.gate_proj"]),  # spells nothing, takes both
    ],
)
def test_patterns_that_take_a_sibling(pattern: str, also: list[str]) -> None:
    told = [
        message for rule, message in _told(f"{{name: it, module: '{pattern}', class: keep-fp32}}") if rule == "PA503"
    ]
    assert len(told) == bool(also)
    for name in also:
        assert name in told[0].partition("also takes ")[2].split(" beside ")[0].split(", ")


def test_fp8_policy_on_a_model_reports_each_refusal_once() -> None:
    decided = _run(Mlp(classes=10), X, "fp8-training-hopper")
    assert [finding.op for finding in decided.findings if finding.rule == "PA401"] == ["head/linear#0"]
    (finding,) = [finding for finding in decided.findings if finding.rule == "PA401"]
    assert finding.message == "head: stays bf16: N=10 is not a multiple of 16"
    assert finding.remedy == "pad N from 10 to 16 to make it eligible" and finding.severity == "note"
    assert len(decided.swaps) == 13


@pytest.mark.parametrize(
    ("reason", "pads"),
    [
        ("N=10 is not a multiple of 16", "pad N from 10 to 16"),
        ("K=100 is not a multiple of 16; N=33 is not a multiple of 16", "pad K from 100 to 112, pad N from 33 to 48"),
        ("K=48 is not a multiple of 32", "pad K from 48 to 64"),
        ("it has no bias", ""),
    ],
)
def test_the_padding_that_would_mend_it(reason: str, pads: str) -> None:
    assert _pads(reason) == pads


def test_symbolic_batch_under_each_recipe() -> None:
    batch = {"x": {0: torch.export.Dim("B")}}
    torch.manual_seed(0)
    model = Mlp()
    found = _run(model, X, "fp8-training-hopper", batch).findings
    told = [finding for finding in found if finding.rule == "PA402"]
    assert len(told) == 14 and {finding.severity for finding in told} == {"warning"}
    assert told[0].message.startswith("head: backward needs B % 16 == 0, last batch included")
    assert "drop_last=True" in told[0].remedy and "rowwise_with_gw_hp" in told[0].remedy
    without = "  - {name: it, op: linear, class: fp8-eligible, recipe: rowwise_with_gw_hp}\n"
    text = "name: mine\nextends: bf16-training\ndevice: h100\nhazards: {PA410: off}\nrules:\n" + without
    decided = _run(model, X, text, batch)
    # what remains is that layers of 32 x 32 gain nothing
    assert len(decided.swaps) == 14 and {finding.rule for finding in decided.findings} == {"PA403", "PA417"}


@pytest.mark.parametrize("name", ["fp8-training-hopper", "fp8-training-hopper-fast", "fp8-inference-hopper"])
def test_fp8_on_a_model_without_linears_is_a_warning(name: str) -> None:
    decided = _run(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), (torch.randn(2, 3, 8, 8),), name)
    (finding,) = [finding for finding in decided.findings if finding.rule.startswith(("PA4", "PA5"))]
    assert (finding.rule, finding.severity) == ("PA505", "warning")
    assert finding.message == "fp8 was asked for and nothing swapped: the model has no linear"
    assert "a policy without fp8" in finding.remedy


def test_where_nothing_is_worth_it_the_remedy_is_no_padding() -> None:
    decided = _run(Mlp(), X, "fp8-training-hopper-fast")
    assert not decided.swaps and all(refusal.not_worth for refusal in decided.refusals)
    assert {finding.rule for finding in decided.findings} == {"PA403", "PA505"}
    (finding,) = [finding for finding in decided.findings if finding.rule == "PA505"]
    assert "swap: eligible to have it all the same" in finding.remedy and "pad" not in finding.remedy
    assert finding.severity == "note" and finding.message.startswith("none of 14 linears is worth it on h100")
    # 32 x 32: what torchao's filter skips pays at no M
    assert finding.message.endswith("no larger batch pays") and dict(finding.evidence.numbers)["rows"] == 0


@pytest.mark.parametrize(
    ("name", "k", "n"), [("fp8-training-hopper-fast", 4096, 8192), ("fp8-inference-hopper-fast", 2048, 2048)]
)
def test_where_nothing_is_worth_it_the_rows_at_which_it_would_be_are_told(name: str, k: int, n: int) -> None:
    """At that many rows it is swapped; at half of them not yet."""
    model = nn.Sequential(nn.Linear(k, n, device="meta"), nn.ReLU(), nn.Linear(n, 64, device="meta"))

    def decided(rows: int) -> Decided:
        return _run(model, (torch.empty(rows, k, device="meta"),), name)

    (finding,) = [each for each in decided(16).findings if each.rule == "PA505"]
    rows = int(dict(finding.evidence.numbers)["rows"])
    assert finding.severity == "note" and "(M=16)" in finding.message
    assert rows > 16 and f"at M={rows} linear 0 would be 1." in finding.message
    assert decided(rows).swaps and not decided(rows // 2).swaps


def test_swaps_are_told_to_be_compiled_once() -> None:
    decided = _run(Mlp(), X, "fp8-training-hopper")
    (finding,) = [finding for finding in decided.findings if finding.rule == "PA417"]
    assert finding.message.startswith("14 Float8Linear: uncompiled,") and "torch.compile" in finding.remedy
    # 14 inputs of 16 x 32 in bf16, four times over 3.35 TB/s, and two launches of 2 µs each
    expected = 14 * (2 * 2e-6 + 4 * 16 * 32 * 2 / 3350e9)
    assert dict(finding.evidence.numbers)["seconds"] == pytest.approx(expected)


@pytest.mark.parametrize("recipe", ["float8wo", "int8wo"])
def test_weights_alone_are_widened_by_a_kernel_of_their_own_where_nothing_is_compiled(recipe: str) -> None:
    text = "name: mine\nextends: bf16-inference\ndevice: h100\nrules:\n  - {name: it, op: linear, class: fp8-eligible, "
    decided = _run(
        nn.Sequential(nn.Linear(48, 32)),
        (torch.randn(4, 48),),
        f"{text}backend: torchao_quantize, recipe: {recipe}}}\n",
    )
    (finding,) = [each for each in decided.findings if each.rule == "PA417"]
    assert "each widens its weight in a kernel of its own" in finding.message
    # read narrow (as the fused kernel reads it), written and read again in bf16: 2 x 2 bytes an element, one launch
    assert dict(finding.evidence.numbers)["seconds"] == pytest.approx(2e-6 + 2 * 2 * 48 * 32 / 3350e9)


def test_the_projections_of_multihead_attention_are_functional() -> None:
    attention = nn.MultiheadAttention(32, 4, batch_first=True)
    for parameter in attention.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(2, 8, 32)
    decided = _run(attention, (x, x, x), "fp8-training-hopper")
    told = [finding for finding in decided.findings if finding.rule == "PA306"]
    assert told and {finding.severity for finding in told} == {"note"}
    assert any("in_proj_weight" in finding.message for finding in told)
    assert not [finding for finding in decided.findings if finding.rule == "PA401"]
    assert [finding.rule for finding in decided.findings if finding.rule == "PA505"] == ["PA505"]
