"""The plan's file: written so that people can review it, read back whole, checked against model and policy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from precision_audit.plan import file as plan_file
from precision_audit.plan import plan, settle
from precision_audit.plan.digest import digest
from precision_audit.policy import parse
from precision_audit.records import Cast, Fold, InputError, Plan, Predicted, Refusal, Swap
from tests.sketches import H100, WIDE, Sketch

_RULES = """\
name: sketch
description: a policy of the tests
formats: {high: fp32, low: bf16}
mode: inference
device: h100
rules:
  - {name: products, op: matmul, class: safe-in-bf16}
  - {name: logs, op: log, class: keep-fp32}
  - {name: rest, class: follow}
"""
POLICY = parse(_RULES, "sketch.yaml")

FULL = Plan(
    policy="sketch",
    mode="training",
    high="fp32",
    low="bf16",
    formats=(("x", "fp32"), ("a.b/linear#0", "bf16"), ("on", "fp16"), ('odd: "key"', "fp32"), ("/é#1", "fp64")),
    casts=(Cast("a.b/topk#0:1", "bf16", ("a.b/linear#0", "output:0"), 96), Cast("x", "bf16", (), 0)),
    folds=(Fold("w", "bf16", ("a.b/linear#0",), True, 12), Fold("v", "bf16")),
    swaps=(Swap("a.b/linear#0", "a.b", "torchao", "rowwise", 64, 32, "16*B", ("B % 16 == 0",)),),
    refusals=(Refusal("c/linear#0", "c", "torchao", "N=10 is not a multiple of 16"),),
    autocast=("gru/gru#0",),
    autocast_device="cuda",
    environment=(("torch.backends.cuda.matmul.allow_tf32", "true"),),
    predicted=Predicted(1.25e-5, 3e-05, 1e-7, 108, 0.0),
    graph_digest="sha256:0123456789abcdef",
)
EMPTY = Plan("", "inference", "fp32", "bf16", (), ())


def model(product="matmul", factor=1024, extra=False):
    """sin → product → log, as captured."""
    sketch = Sketch()
    x, w = sketch.input("x", 4096, factor), sketch.parameter("w", factor, factor)
    y = sketch.op("sin", x)
    y = sketch.op(product, y, w)
    y = sketch.op("log", y)
    return sketch.graph(sketch.op("exp", y) if extra else y)


def made(graph, policy=POLICY):
    from precision_audit.backends import listed
    from precision_audit.decide import decide

    return plan(graph, decide(graph, policy, H100, listed()), policy, H100)


@pytest.mark.parametrize("each", [FULL, EMPTY], ids=["full", "empty"])
def test_what_is_written_is_read(each, tmp_path):
    plan_file.write(each, tmp_path / "plan.yaml")
    assert plan_file.read(tmp_path / "plan.yaml") == each


def test_the_text_is_the_same_every_time_and_shows_one_thing_per_line():
    text = plan_file.text(made(model()))
    assert text == plan_file.text(made(model()))
    lines = text.splitlines()
    assert "ops:" in lines and "  /matmul#0: bf16" in lines and "  /log#0: fp32" in lines
    assert any(line.startswith("  - {value: w, to: bf16, copy: false") for line in lines)
    assert lines[0].startswith("# ") and "--check-plan" in lines[0]
    assert str(WIDE) not in text


@pytest.mark.parametrize(
    ("change", "line", "words"),
    [
        (("version: 1", "version: 7"), 2, "version 7 is not known; expected version 1"),
        (("mode: training", "mode: trainig"), 4, "mode 'trainig' is not known; expected training or inference"),
        (("high: fp32", "high: fp23"), 5, "format 'fp23' is not known; did you mean fp32"),
        (("policy: sketch\n", ""), 2, "plan lacks the key 'policy'"),
        (("casts:\n", "cast:\n"), 0, "plan has no key 'cast'; did you mean casts"),
        (("  x: fp32", "  x: fp99"), 0, "format 'fp99' is not known"),
        (("  x: fp32", "  x: fp32\n  x: bf16"), 0, "'x' stands twice in ops"),
        (("bytes: 96", "bytes: many"), 0, "bytes 'many' is no number"),
        (("bytes: 96", "bytes: -96"), 0, "bytes is -96; expected a number that is not negative"),
        (("copy: true", "copy: maybe"), 0, "copy 'maybe' is not known; expected true or false"),
        (("value: x, ", ""), 0, "cast lacks the key 'value'"),
        (("recipe: rowwise, ", ""), 0, "swap lacks the key 'recipe'"),
        (("for: []", "for: x"), 0, "for is no list"),
        (("version: 1", "version: [1"), 0, "not valid YAML"),
    ],
)
def test_a_bad_file_is_one_line_with_file_and_line(change, line, words, tmp_path):
    text = plan_file.text(FULL)
    assert change[0] in text
    path = tmp_path / "plan.yaml"
    path.write_text(text.replace(*change, 1), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        plan_file.read(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:{line or ''}") and words in message and "\n" not in message


@pytest.mark.parametrize(
    ("content", "words"), [(None, "cannot be read"), ("", "plan is no mapping"), ("- 1", "mapping")]
)
def test_a_missing_or_empty_file_says_so(content, words, tmp_path):
    path = tmp_path / "plan.yaml"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=words):
        plan_file.read(path)


def test_a_plan_fits_the_model_it_was_made_for():
    assert plan_file.check(made(model()), model(), POLICY) == []


def test_another_batch_and_another_file_are_the_same_structure():
    graph = model()
    moved = replace(
        graph,
        ops=tuple(
            replace(op, outputs=tuple(replace(t, hint=tuple(2 * size for size in t.hint)) for t in op.outputs))
            for op in graph.ops
        ),
    )
    assert digest(moved) == digest(graph)


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        (model(extra=True), ["1 op (/exp#0) of the model is not in the plan"]),
        (model("mm"), ["(/matmul#0) of the plan is not in the model", "(/mm#0) of the model is not in the plan"]),
        (model(factor=512), ["shapes or arguments changed"]),
        (replace(model(), mode="training"), ["the plan is for inference, the model was captured for training"]),
    ],
)
def test_a_changed_model_is_a_problem(graph, words):
    problems = plan_file.check(made(model()), graph, POLICY)
    assert len(problems) == len(words)
    for problem, word in zip(problems, words, strict=True):
        assert word in problem


def edited(key, name):
    whole = made(model())
    return replace(whole, formats=tuple((k, name if k == key else f) for k, f in whole.formats))


@pytest.mark.parametrize(
    ("plan_", "words"),
    [
        (edited("/log#0", "bf16"), "/log#0 is pinned by policy sketch to fp32, the plan has bf16"),
        (edited("/matmul#0", "fp32"), "/matmul#0 needs w in fp32 and would read bf16: the plan lacks a cast"),
        (edited("x", "bf16"), "x cannot leave fp32, the plan has bf16"),
        (edited("/sin#0", "fp8_e4m3fn"), "needs x in fp8_e4m3fn"),
        (replace(made(model()), casts=()), "needs x in bf16 and would read fp32: the plan lacks a cast"),
        (replace(made(model()), folds=()), "needs w in bf16"),
        (replace(made(model()), casts=(*made(model()).casts, Cast("gone", "bf16", ("/sin#0",)))), "casts name gone"),
        (replace(made(model()), low="fp16"), "the plan's formats are fp32 and fp16"),
        (
            replace(made(model()), swaps=(Swap("/matmul#0", "m", "torchao", "rowwise", 16, 16, 16),)),
            "/matmul#0 cannot be swapped: the policy does not ask for it",
        ),
    ],
)
def test_an_edited_plan_is_judged_as_it_stands(plan_, words):
    problems = plan_file.check(plan_, model(), POLICY)
    if words == "needs w in bf16":
        plan_ = replace(plan_, formats=tuple((k, "fp32" if k == "w" else f) for k, f in plan_.formats))
        problems = plan_file.check(plan_, model(), POLICY)
    assert any(words in problem for problem in problems), problems


@pytest.mark.parametrize("asks", ["safe-in-bf16", "pin:bf16"])
def test_what_evidence_kept_high_fits_unless_a_pin_wants_it_low(asks):
    """The plan of a policy that keeps products high, as a finding's remedy does, under one that lowers them."""
    kept = parse(_RULES.replace("safe-in-bf16", "keep-fp32"), "sketch.yaml")
    whole = made(model(), kept)
    assert dict(whole.formats)["/matmul#0"] == "fp32"
    problems = plan_file.check(whole, model(), parse(_RULES.replace("safe-in-bf16", asks), "sketch.yaml"))
    pinned = ["/matmul#0 is pinned by policy sketch to bf16, the plan has fp32"]
    assert problems[:1] == (pinned if asks == "pin:bf16" else [])


def test_a_format_without_a_kernel_is_a_problem():
    sketch = Sketch()
    x = sketch.input("x", 8, 8)
    graph = sketch.graph(sketch.op("linalg_inv", x, arguments=("A",)))
    good = made(graph)
    assert plan_file.check(good, graph, POLICY) == []
    bad = replace(good, formats=(("x", "fp32"), ("/linalg_inv#0", "bf16")))
    problems = plan_file.check(bad, graph, POLICY)
    assert any("linalg_inv has no kernel for bf16" in problem for problem in problems), problems


def test_a_dearer_choice_that_is_consistent_fits():
    """sin may follow either way: the plan that keeps it high costs more and is no problem."""
    whole = made(model())
    dear = replace(
        edited("/sin#0", "fp32"),
        casts=(Cast("/sin#0", "bf16", ("/matmul#0",)), *(cast for cast in whole.casts if cast.value != "x")),
    )
    assert plan_file.check(dear, model(), POLICY) == []


@pytest.mark.parametrize(("seconds", "note"), [(2.0, "50% faster"), (1.0, ""), (0.5, ""), (1.005, "")])
def test_a_cheaper_plan_is_a_note(seconds, note):
    fresh = replace(EMPTY, formats=(("/sin#0", "bf16"),), predicted=Predicted(1.0, 1.0, 0.0, 0))
    text = plan_file.cheaper(replace(EMPTY, predicted=Predicted(seconds, 1.0, 0.0, 0)), fresh)
    assert (note in text) and bool(text) is bool(note)


def test_the_same_plan_priced_for_other_sizes_is_not_called_cheaper():
    large, small = (replace(EMPTY, predicted=Predicted(seconds, 1.0, 0.0, 0)) for seconds in (2.0, 1.0))
    assert plan_file.cheaper(large, small) == ""


def test_plans_without_a_prediction_get_no_note():
    assert plan_file.cheaper(EMPTY, EMPTY) == ""


def test_apply_hands_over_what_was_written(tmp_path):
    graph = model()
    path = tmp_path / "plan.yaml"
    plan_file.write(made(graph), path)
    applied = plan_file.apply(path, graph, POLICY)
    assert applied == made(graph)
    with pytest.raises(InputError, match=r"plan.yaml: 1 op .* not in the plan; write the plan again"):
        plan_file.apply(path, model(extra=True), POLICY)


def test_settled_decisions_follow_the_committed_plan():
    from precision_audit.decide import decide

    graph = model()
    dear = edited("/sin#0", "fp32")
    settled = settle(decide(graph, POLICY, H100, {}).decisions, dear)
    assert {decision.op: decision.chosen for decision in settled}["/sin#0"] == "fp32"


def test_a_plan_nested_too_deeply_is_refused():
    with pytest.raises(InputError, match="plan"):
        plan_file.parse("[" * 100_000 + "]" * 100_000)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"autocast": ("nope",), "autocast_device": "cuda"}, "casts name nope"),
        ({"autocast": ("/sin#0",), "autocast_device": "tpu"}, "autocast_device is tpu; expected cpu or cuda"),
        ({"folds": (Fold("x", "bf16", ("/sin#0",)),)}, "folds name x, which is no parameter"),
    ],
)
def test_places_that_a_plan_cannot_name(change, words):
    problems = plan_file.check(replace(made(model()), **change), model(), POLICY)
    assert any(words in problem for problem in problems), problems


def test_a_refusal_keeps_which_verdict_it_was() -> None:
    refusals = (Refusal("a", "a", "torchao", "N=15 is no multiple"), Refusal("b", "b", "torchao", "slower", True))
    made = Plan("p", "inference", "fp32", "bf16", (("a", "bf16"), ("b", "bf16")), (), refusals=refusals)
    assert plan_file.parse(plan_file.text(made)).refusals == refusals
