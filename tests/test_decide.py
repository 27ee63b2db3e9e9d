"""Decisions: whose word counts, what swapping leaves behind, and the reasons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from precision_audit import decide as decide_module
from precision_audit import policy
from precision_audit.decide import Decided, decide
from precision_audit.records import (
    Decision,
    Evidence,
    Finding,
    Graph,
    Hardware,
    Mode,
    Op,
    Operand,
    Refusal,
    Swap,
    Tensor,
)
from tests.backends.graphs import entering, graph, linear, state

CPU = Hardware("here", "", "", (("fp32", 1.0), ("bf16", 2.0)), 1.0, 0.0, "", "cpu")
GPU = Hardware("there", "", "9.0", (("fp32", 1.0), ("bf16", 2.0), ("fp8", 4.0)), 1.0, 0.0, "", "cuda")
HEADER = "name: mine\nmode: inference\nformats: {high: fp32, low: bf16}\nrules:\n"
REST = "  - {name: rest, class: follow}\n"


class FakeBackend:
    """Swaps what has a bias, refuses the rest."""

    NAME = "torchao"
    RECIPES = ("tensorwise", "rowwise")

    def __init__(self, constraints: tuple[str, ...] = ()) -> None:
        self.asked: list[tuple[str, str, Mode]] = []
        self.constraints = constraints

    def offer(self, op: Op, graph: Graph, recipe: str, mode: Mode, hardware: Hardware) -> Swap | Refusal:
        self.asked.append((op.key, recipe, mode))
        if len(op.operands) < 3:
            return Refusal(op.key, op.module, self.NAME, "it has no bias")
        return Swap(op.key, op.module, self.NAME, recipe, 64, 48, "B", self.constraints)

    def build(self, linear: Any, swap: Swap) -> Any:
        raise AssertionError("deciding builds nothing")


def _decide(
    text: str,
    *made: Op,
    hardware: Hardware = CPU,
    backend: FakeBackend | None = None,
    remedies: Mapping[str, Finding] | None = None,
    **changes: Any,
) -> Decided:
    backends = {"torchao": backend} if backend else {}
    whole = graph(entering((4, 64), (4, 64)), state("fc.weight", (48, 64)), state("fc.bias", (48,)), *made, **changes)
    return decide(whole, policy.parse(text, "mine.yaml"), hardware, backends, remedies or {})


def _one(rule: str, op: Op, **options: Any) -> Decision:
    decided = _decide(HEADER + f"  - {{name: it, {rule}}}\n" + REST, op, **options)
    assert [decision.op for decision in decided.decisions] == [op.key]  # one per computed op, none for state
    return decided.decisions[0]


def _op(name: str, kind: str = "pointwise_arith", **fields: Any) -> Op:
    given = {"outputs": (Tensor("fp32", (4, 64), (4, 64)),), "operands": (Operand("x", "self"),)} | fields
    target = given.pop("target", f"aten.{name}.default")
    return Op(f"block/{name}#0", target, name, kind, "block", "a.Block", **given)


@pytest.mark.parametrize(
    ("rule", "classification", "chosen"),
    [
        ("op: relu, class: safe-in-bf16", "safe-in-bf16", "bf16"),
        ("op: relu, class: keep-fp32", "keep-fp32", "fp32"),
        ("op: relu, class: follow", "follow", ""),
        ("op: relu, class: 'pin:fp16'", "pin:fp16", "fp16"),
        ("op: relu, class: 'pin:fp32'", "pin:fp32", "fp32"),
        ("op: gelu, class: keep-fp32", "follow", ""),  # falls to the rest
    ],
)
def test_classes(rule: str, classification: str, chosen: str) -> None:
    decision = _one(rule, _op("relu"))
    assert (decision.classification, decision.chosen) == (classification, chosen)
    assert decision.reason in ("policy mine.yaml:5 it", "policy mine.yaml:6 rest")


FIXED = [
    (_op("relu", fixed="explicit cast"), "fp32", "the model itself sets this format"),
    (_op("add", fixed="state", mutates="self"), "fp32", "updated in place"),
    (_op("linear", fixed="region", region="autocast cpu bf16"), "fp32", "own region (autocast cpu bf16)"),
    (_op("argmax", fixed="integer", outputs=(Tensor("int64", (4,), (4,)),)), "int64", "no float output"),
    (_op("argmax", outputs=(Tensor("int64", (4,), (4,)),)), "int64", "no float output"),
    (_op("relu", outputs=(Tensor("bf16", (4,), (4,)),)), "bf16", "captured in bf16, not the policy's fp32"),
    (_op("relu", outputs=(Tensor("fp64", (4,), (4,)),)), "fp64", "captured in fp64, not the policy's fp32"),
]


@pytest.mark.parametrize(("op", "chosen", "why"), FIXED, ids=[why for _, _, why in FIXED])
@pytest.mark.parametrize("rule", ["class: 'pin:bf16', module: block", "class: safe-in-bf16, module: block"])
def test_facts_beat_pins_and_classes(op: Op, chosen: str, why: str, rule: str) -> None:
    decision = _one(rule, op)
    assert (decision.classification, decision.chosen) == ("fixed", chosen)
    assert decision.reason.startswith("fact: ") and why in decision.reason


def test_reading_complex_numbers_keeps_the_captured_format() -> None:
    spectrum = Op("c", "placeholder", "placeholder", "input", "", "", (), (Tensor("complex64", (4,), (4,)),))
    magnitude = _op("abs", operands=(Operand("c", "self"),))
    decided = decide(graph(spectrum, magnitude), policy.load("bf16-inference"), CPU, {})
    assert (decided.decisions[0].chosen, decided.decisions[0].classification) == ("fp32", "fixed")


@pytest.mark.parametrize("rule", ["class: safe-in-bf16", "class: follow", "class: 'pin:bf16'"])
@pytest.mark.parametrize(
    ("lacking", "mode", "why"),
    [
        ((False, False), "inference", "no bf16 kernel of relu on cpu"),
        ((True, False), "training", "no bf16 backward kernel of relu on cpu"),
        ((True, False), "inference", ""),  # backward does not matter
        ((None, None), "training", ""),  # not known to lack one
    ],
)
def test_no_kernel_on_the_device_keeps_high(
    monkeypatch: pytest.MonkeyPatch, rule: str, lacking: tuple[bool | None, bool | None], mode: Mode, why: str
) -> None:
    def has_kernel(name: str, format: str, kernels: str, backward: bool) -> bool | None:
        assert (name, format, kernels) == ("relu", "bf16", "cpu")
        return lacking[backward]

    monkeypatch.setattr(decide_module.ops, "has_kernel", has_kernel)
    decision = _one(f"op: relu, {rule}", _op("relu"), mode=mode)
    if why:
        assert (decision.classification, decision.chosen) == ("keep-fp32", "fp32")
        assert decision.reason == f"fact: {why}, over policy mine.yaml:5 it"
    else:
        assert decision.classification == rule.removeprefix("class: ").strip("'")


def _remedy(op: Op) -> Mapping[str, Finding]:
    return {op.key: Finding("PA103", "error", op.key, op.module, "overflows", Evidence("PROVED", ""))}


@pytest.mark.parametrize(
    ("rule", "hazards", "chosen", "reason"),
    [
        ("class: safe-in-bf16", "", "fp32", "rule PA103 over policy mine.yaml:5 it"),
        ("class: follow", "", "fp32", "rule PA103 over policy mine.yaml:5 it"),
        ("class: keep-fp32", "", "fp32", "policy mine.yaml:5 it"),
        ("class: 'pin:bf16'", "", "bf16", "policy mine.yaml:5 it"),
        ("class: safe-in-bf16", "hazards: {PA103: off}\n", "bf16", "policy mine.yaml:5 it"),
        ("class: safe-in-bf16", "hazards: {PA103: note}\n", "fp32", "rule PA103 over policy mine.yaml:5 it"),
    ],
)
def test_remedies_stand_between_pin_and_class(rule: str, hazards: str, chosen: str, reason: str) -> None:
    relu = _op("relu")
    text = HEADER + f"  - {{name: it, op: relu, {rule}}}\n" + REST + hazards
    decision = _decide(text, relu, remedies=_remedy(relu)).decisions[0]
    assert (decision.chosen, decision.reason) == (chosen, reason)


def test_an_unknown_op_stays_high_and_is_reported_unless_named() -> None:
    odd = _unknown()
    decided = _decide(HEADER + REST, odd)
    assert decided.decisions[0].chosen == "fp32"
    assert decided.decisions[0].reason.startswith("rule PA504: lib::odd is not in the op table")
    assert [(finding.rule, finding.op) for finding in decided.findings] == [("PA504", odd.key)]
    named = _decide(HEADER + "  - {name: it, op: 'lib::odd', class: safe-in-bf16}\n" + REST, odd)
    assert named.decisions[0].chosen == "bf16" and named.findings == ()
    amp = decide(graph(entering((4, 64), (4, 64)), odd), policy.load("amp-cpu-bf16"), CPU, {})
    assert amp.decisions[0].classification == "inherit" and amp.findings == ()


def _unknown() -> Op:
    output = (Tensor("fp32", (4, 64), (4, 64)),)
    return Op(
        "block/lib::odd#0", "lib.odd.default", "lib::odd", "unknown", "block", "a.B", (Operand("x", "x"),), output
    )


ELIGIBLE = HEADER + "  - {name: it, op: linear, class: fp8-eligible, RECIPE}\n" + REST


def test_an_accepted_offer_becomes_a_swap() -> None:
    backend = FakeBackend(("B % 16 == 0 in backward, last batch included",))
    decided = _decide(ELIGIBLE.replace("RECIPE", "recipe: tensorwise"), linear(), backend=backend, hardware=GPU)
    assert backend.asked == [("fc/linear#0", "tensorwise", "inference")]
    decision = decided.decisions[0]
    assert (decision.classification, decision.chosen) == ("fp8-eligible", "fp8 tensorwise")
    assert decision.reason == "policy mine.yaml:5 it: swapped by torchao"
    assert [(swap.op, swap.constraints) for swap in decided.swaps] == [("fc/linear#0", backend.constraints)]
    assert decided.refusals == ()
    told = [finding.message for finding in decided.findings if finding.rule == "PA402"]
    assert told == ["fc: backward needs B % 16 == 0, last batch included"]


def test_the_default_recipe_and_backend() -> None:
    backend = FakeBackend()
    decided = _decide(ELIGIBLE.replace(", RECIPE", ""), linear(), backend=backend, hardware=GPU)
    assert decided.swaps[0].recipe == "rowwise" and decided.swaps[0].backend == "torchao"


def test_a_refused_linear_runs_in_the_low_format_and_says_why() -> None:
    decided = _decide(ELIGIBLE.replace(", RECIPE", ""), linear(bias=""), backend=FakeBackend(), hardware=GPU)
    decision = decided.decisions[0]
    assert (decision.classification, decision.chosen) == ("safe-in-bf16", "bf16")
    assert decision.reason == "backend torchao: it has no bias; policy mine.yaml:5 it"
    assert decided.refusals == (Refusal("fc/linear#0", "fc", "torchao", "it has no bias"),)
    assert [finding.rule for finding in decided.findings] == ["PA401", "PA505"]


def test_backends_and_devices_that_cannot() -> None:
    missing = _decide(ELIGIBLE.replace(", RECIPE", ""), linear())
    assert missing.refusals[0].reason == "backend torchao is not installed"
    old = Hardware("old", "", "7.0", (("fp32", 1.0), ("fp16", 1.0)), 1.0, 0.0, "", "cuda")
    refused = _decide(ELIGIBLE.replace(", RECIPE", ""), linear(), backend=FakeBackend(), hardware=old)
    reason = "fp8 rowwise needs compute capability 8.9 (Ada) or later; old (Volta) is 7.0"
    assert [refusal.reason for refusal in refused.refusals] == [reason]
    here = _decide(ELIGIBLE.replace(", RECIPE", ""), linear(), backend=FakeBackend())  # --device local on a CPU
    reason = "fp8 rowwise needs a GPU of compute capability 8.9 (Ada) or later; here is a CPU"
    assert [refusal.reason for refusal in here.refusals] == [reason] and here.swaps == ()
    assert here.decisions[0].chosen == "bf16"


def test_a_linear_that_misses_the_sizes_is_refused_too() -> None:
    text = HEADER + "  - {name: it, op: linear, where: {n: {multiple_of: 32}}, class: fp8-eligible}\n" + REST
    decided = _decide(text, linear(), backend=FakeBackend())
    assert decided.decisions[0].classification == "follow"
    assert decided.refusals == (Refusal("fc/linear#0", "fc", "torchao", "N=48 is not a multiple of 32"),)
    assert decided.findings[0].remedy == "pad N from 48 to 64 to make it eligible"


def test_what_the_policy_demands_of_symbols_is_added_once() -> None:
    text = HEADER + "  - {name: it, op: linear, where: {m: {multiple_of: 16}}, class: fp8-eligible}\n" + REST
    whole = graph(entering(("B", 64), (4, 64)), state("fc.weight", (48, 64)), state("fc.bias", (48,)), linear())
    made = policy.parse(text)
    for offered, stated in (
        ((), ("B % 16 == 0",)),
        (("B % 16 == 0 in backward, last batch included",),) * 2,
    ):
        assert decide(whole, made, GPU, {"torchao": FakeBackend(offered)}).swaps[0].constraints == stated


def test_constraints_of_other_classes_are_in_reason_and_evidence() -> None:
    text = HEADER + "  - {name: it, op: linear, where: {m: {multiple_of: 8}}, class: safe-in-bf16}\n" + REST
    whole = graph(entering(("B", 64), (4, 64)), state("fc.weight", (48, 64)), state("fc.bias", (48,)), linear())
    decision = decide(whole, policy.parse(text, "mine.yaml"), CPU, {}).decisions[0]
    assert decision.reason == "policy mine.yaml:5 it if B % 8 == 0"
    assert [(one.basis, one.text) for one in decision.evidence] == [("PROVED", "holds if B % 8 == 0")]


def test_same_input_same_output() -> None:
    text = ELIGIBLE.replace(", RECIPE", "")
    first, second = (_decide(text, linear(), _op("relu"), backend=FakeBackend()) for _ in range(2))
    assert first == second


# --- overrides --------------------------------------------------------------------------------------------------------


def test_exclude_by_op_by_module_and_include_before_a_broader_exclude() -> None:
    lines = [
        "  - {name: include, op: linear, module: blocks.0.mlp.gate, class: safe-in-bf16}",
        "  - {name: exclude-module, module: 'blocks.0.*', class: keep-fp32}",
        "  - {name: exclude-op, op: layer_norm, class: keep-fp32}",
        "  - {name: gemms, op: linear, class: safe-in-bf16}",
    ]
    made = policy.parse(HEADER + "\n".join(lines) + "\n" + REST)
    modules = ["blocks.0.mlp.gate", "blocks.0.mlp.gate_proj", "blocks.1.fc"]
    parts = [linear(module, f"{module}.weight", "") for module in modules]
    norm = Op("blocks.1.norm/layer_norm#0", "aten.layer_norm.default", "layer_norm", "norm", "blocks.1.norm", "N", (),
              (Tensor("fp32", (4, 64), (4, 64)),))  # fmt: skip
    states = [state(f"{module}.weight", (64, 64)) for module in modules]
    decided = decide(graph(entering((4, 64), (4, 64)), *states, *parts, norm), made, CPU, {})
    assert [decision.chosen for decision in decided.decisions] == ["bf16", "fp32", "bf16", "fp32"]
    assert decided.findings == ()
