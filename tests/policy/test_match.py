"""Which rule an op falls under: globs, sizes, symbols."""

from __future__ import annotations

from typing import Any

import pytest

from precision_audit import policy
from precision_audit.policy.match import Match, Matcher, bad_glob, glob
from precision_audit.records import Graph, Op, Operand, Tensor
from tests.backends.graphs import LINEAR, entering, graph, linear, state

HEADER = "name: mine\nmode: inference\nformats: {high: fp32, low: bf16}\nrules:\n"
REST = "  - {name: rest, class: follow}\n"


def _first(rule: str, op: Op, *before: Op) -> Match:
    """The match of `op` under one rule and a catch-all."""
    made = policy.parse(HEADER + f"  - {{name: it, {rule}}}\n" + REST)
    return Matcher(made, graph(*before, op)).first(op)


def _op(op: str, module: str = "", attributes: dict[str, object] | None = None, **fields: Any) -> Op:
    fields = {"target": f"aten.{op}.default", "kind": "pointwise", "module_type": "a.b.Block"} | fields
    given = {"operands": (), "outputs": (Tensor("fp32", (4, 8), (4, 8)),)} | fields
    return Op(key=f"{module}/{op}#0", op=op, module=module, attributes=tuple((attributes or {}).items()), **given)


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("mlp.gate", "mlp.gate", True),
        ("mlp.gate", "mlp.gate_proj", False),
        ("mlp.gate", "mlp.gate.inner", False),
        ("mlp.gate*", "mlp.gate_proj", True),
        ("mlp.*", "mlp.a.b.c", True),
        ("*.output", "encoder.3.output", True),
        ("*.output", "encoder.3.output.dense", False),
        ("*.output", "output", False),
        ("layer.?", "layer.3", True),
        ("layer.?", "layer.13", False),
        ("layer.[0-2].*", "layer.1.fc", True),
        ("layer.[0-2].*", "layer.3.fc", False),
        ("a.b", "a_b", False),  # a dot is a dot
        ("", "a", False),
    ],
)
def test_globs_cover_the_whole_path(pattern: str, path: str, matches: bool) -> None:
    assert bool(glob(pattern).match(path)) is matches
    if pattern:
        found = _first(f"module: '{pattern}', class: keep-fp32", _op("relu", path))
        assert (found.rule.name == "it") is matches


@pytest.mark.parametrize(
    ("pattern", "bad"), [("a[", True), ("a]", True), ("[]", True), (" a", True), ("a[bc]*", False)]
)
def test_bad_globs(pattern: str, bad: bool) -> None:
    assert bool(bad_glob(pattern)) is bad


POW = _op("pow", target="aten.pow.Tensor_Scalar", attributes={"exponent": 2})
NORM = _op("layer_norm", attributes={"eps": 1e-7, "normalized_shape": (8,)})


@pytest.mark.parametrize(
    ("rule", "op", "matches"),
    [
        ("op: pow", POW, True),
        ("op: pow.Tensor_Scalar", POW, True),
        ("op: pow.Tensor_Tensor", POW, False),
        ("op: 'po*'", POW, True),
        ("op: [exp, pow]", POW, True),
        ("op: exp", POW, False),
        ("op: 'custom::thing'", _op("custom::thing", target="custom.thing.default"), True),
        ("module_type: Block", POW, True),
        ("module_type: a.b.Block", POW, True),
        ("module_type: b.Block", POW, False),
        ("module_type: '*Block'", POW, True),
        ("op: pow, module_type: Other", POW, False),
        ("op: pow, where: {exponent: {equals: 2}}", POW, True),
        ("op: pow, where: {exponent: {equals: 3}}", POW, False),
        ("op: layer_norm, where: {eps: {max: 1e-7}}", NORM, True),
        ("op: layer_norm, where: {eps: {max: 9e-8}}", NORM, False),
        ("op: layer_norm, where: {eps: {min: 1e-7, max: 1}}", NORM, True),
        ("op: layer_norm, where: {normalized_shape: {equals: [8]}}", NORM, True),
        ("op: layer_norm, where: {normalized_shape: {equals: 8}}", NORM, True),
        ("op: layer_norm, where: {normalized_shape: {max: 9}}", NORM, False),
        ("op: layer_norm, where: {cudnn_enable: {equals: true}}", NORM, False),  # not given: no value to compare
        ("where: {rank: {equals: 2}}", POW, True),
        ("where: {rank: {min: 3}}", POW, False),
        ("where: {numel: {equals: 32}}", POW, True),
        ("where: {numel: {multiple_of: 5}}", POW, False),
        ("where: {k: {min: 1}}", POW, False),  # a pow has no K
        ("op: topk, where: {k: {max: 5}}", _op("topk", attributes={"k": 5}), True),  # its own argument
    ],
)
def test_conditions(rule: str, op: Op, matches: bool) -> None:
    assert (_first(f"{rule}, class: keep-fp32", op).rule.name == "it") is matches


def _gemm(name: str, *operands: tuple[str, tuple[int | str, ...]], out: tuple[int, ...] = (1,)) -> tuple[Op, list[Op]]:
    made = [state(f"v{i}", shape) for i, (_, shape) in enumerate(operands)]  # type: ignore[arg-type]
    op = _op(
        name,
        operands=tuple(Operand(f"v{i}", argument) for i, (argument, _) in enumerate(operands)),
        outputs=(Tensor("fp32", out, out),),
    )
    return op, made


# op, operands, output, its K, N, M by definition
GEMMS: list[tuple[str, list[tuple[str, tuple[int, ...]]], tuple[int, ...], tuple[int, int, int]]] = [
    ("linear", [("input", (4, 5, 6)), ("weight", (7, 6))], (4, 5, 7), (6, 7, 20)),
    ("linear", [("input", (6,)), ("weight", (7, 6))], (7,), (6, 7, 1)),
    ("mm", [("self", (3, 4)), ("mat2", (4, 5))], (3, 5), (4, 5, 3)),
    ("matmul", [("self", (9, 3, 4)), ("other", (9, 4, 5))], (9, 3, 5), (4, 5, 3)),
    ("matmul", [("self", (4,)), ("other", (4,))], (), (4, 1, 1)),
    ("bmm", [("self", (9, 3, 4)), ("mat2", (9, 4, 5))], (9, 3, 5), (4, 5, 3)),
    ("addmm", [("self", (5,)), ("mat1", (3, 4)), ("mat2", (4, 5))], (3, 5), (4, 5, 3)),
    ("conv2d", [("input", (2, 6, 9, 9)), ("weight", (8, 3, 3, 5))], (2, 8, 7, 5), (45, 8, 70)),  # two groups
    ("conv1d", [("input", (6, 9)), ("weight", (8, 6, 3))], (8, 7), (18, 8, 7)),  # no batch
]


@pytest.mark.parametrize(("name", "operands", "out", "sizes"), GEMMS)
def test_k_n_m(name: str, operands: Any, out: tuple[int, ...], sizes: tuple[int, int, int]) -> None:
    op, before = _gemm(name, *operands, out=out)
    for key, size in zip("knm", sizes, strict=True):
        for equal, matches in ((size, True), (size + 1, False)):
            found = _first(f"op: {name}, where: {{{key}: {{equals: {equal}}}}}, class: keep-fp32", op, *before)
            assert (found.rule.name == "it") is matches, (key, equal)


# leading dimensions of a linear's input and their example, condition on M, does it match, what is left to the user
SYMBOLS: list[tuple[tuple[int | str, ...], tuple[int, ...], str, bool, tuple[str, ...]]] = [
    ((32,), (32,), "multiple_of: 16", True, ()),
    ((24,), (24,), "multiple_of: 16", False, ()),
    (("B",), (64,), "multiple_of: 16", True, ("B % 16 == 0",)),
    (("B",), (10,), "multiple_of: 16", True, ("B % 16 == 0",)),  # left open, whatever the example
    (("16*s0",), (64,), "multiple_of: 16", True, ()),
    (("B", 16), (3, 16), "multiple_of: 16", True, ()),
    (("B", 8), (3, 8), "multiple_of: 16", True, ("B % 2 == 0",)),
    (("B", "T"), (2, 3), "multiple_of: 16", True, ("B*T % 16 == 0",)),
    (("16*B + 8",), (24,), "multiple_of: 16", False, ()),
    (("B",), (64,), "max: 64", True, ("B <= 64",)),
    (("B",), (64,), "max: 63", False, ()),  # a bound goes by the example
    (("B",), (64,), "min: 2", True, ("B >= 2",)),
    (("B",), (64,), "equals: 64", True, ("B == 64",)),
    (("B",), (64,), "multiple_of: 16, min: 16", True, ("B % 16 == 0", "B >= 16")),
]


@pytest.mark.parametrize(("lead", "hint", "condition", "matches", "left"), SYMBOLS)
def test_symbols_decide_or_become_constraints(
    lead: tuple[int | str, ...], hint: tuple[int, ...], condition: str, matches: bool, left: tuple[str, ...]
) -> None:
    op = linear(bias="")
    before = (entering((*lead, 64), (*hint, 64)), state("fc.weight", (48, 64)))
    found = _first(f"op: linear, where: {{m: {{{condition}}}}}, class: keep-fp32", op, *before)
    assert (found.rule.name == "it") is matches
    assert found.constraints == left


def test_an_eligible_rule_that_misses_by_a_size_says_which() -> None:
    op = linear(bias="")
    before = (entering((32, 60), (32, 60)), state("fc.weight", (10, 60)))
    where = "where: {k: {multiple_of: 16}, n: {multiple_of: 16}, m: {multiple_of: 16}}"
    found = _first(f"op: linear, {where}, class: fp8-eligible", op, *before)
    assert found.rule.name == "rest"
    assert [why for _, why in found.missed] == ["K=60 is not a multiple of 16; N=10 is not a multiple of 16"]
    assert _first(f"op: linear, {where}, class: safe-in-bf16", op, *before).missed == ()


def test_first_match_wins_and_fitting_ignores_the_order() -> None:
    made = policy.parse(
        HEADER
        + "  - {name: one, op: linear, module: a, class: keep-fp32}\n"
        + "  - {name: all, op: linear, class: safe-in-bf16}\n"
        + "  - {name: two, op: linear, module: b, class: keep-fp32}\n"
        + REST
    )
    a, b = (linear(module, f"{module}.weight", "", module_type=LINEAR) for module in "ab")
    whole: Graph = graph(entering((2, 64), (2, 64)), state("a.weight", (8, 64)), state("b.weight", (8, 64)), a, b)
    matcher = Matcher(made, whole)
    assert [matcher.first(op).rule.name for op in (a, b)] == ["one", "all"]
    assert {rule.name: [op.module for op in matcher.fitting(rule)] for rule in made.rules} == {
        "one": ["a"],
        "all": ["a", "b"],
        "two": ["b"],
        "rest": ["a", "b"],
    }


def test_the_place_of_an_op_is_a_percentage_among_those_of_its_name() -> None:
    linears = [_op("linear", module=f"layers.{number}") for number in range(11)]
    others = [_op("relu", module=f"layers.{number}") for number in range(5)]
    whole = Graph(tuple(each for pair in zip(linears, [*others, *others, others[0]], strict=True) for each in pair), (),
                  "inference")  # fmt: skip
    rule = "  - {name: middle, op: linear, where: {place: {min: 10, max: 84}}, class: safe-in-bf16}\n"
    matcher = Matcher(policy.parse(HEADER + rule + REST), whole)
    held = [each.module for each in linears if matcher.first(each).rule.name == "middle"]
    assert held == [f"layers.{number}" for number in range(1, 9)]  # 10 % … 80 %
    alone = _op("linear", module="only")
    assert (
        Matcher(policy.parse(HEADER + rule + REST), Graph((alone,), (), "inference")).first(alone).rule.name == "rest"
    )
