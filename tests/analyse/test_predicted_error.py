"""From shares to a plan's error and to the fewest ops that must run high: by arithmetic, trying all, doing it."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

from precision_audit.analyse.predicted_error import error_when_low, heaviest, needless, predicted_error
from precision_audit.records import Cast, Fold, Graph, Op, Operand, Plan, Share, Swap
from precision_audit.records import Tensor as Shape
from tests.analyse.small import seen

SHAPE = Shape("fp32", (2,), (2,))


def _op(key: str, *reads: str, kind: str = "pointwise_arith") -> Op:
    operands = tuple(Operand(value, "self") for value in reads)
    return Op(key, "", key.strip("/").partition("#")[0], kind, "", "", operands, (SHAPE,))


GRAPH = Graph(
    (
        _op("x", kind="input"),
        _op("w", kind="parameter"),
        _op("/a#0", "x", "w"),
        _op("/b#0", "/a#0"),
        _op("/c#0", "/a#0"),
    ),
    ("/b#0", "/c#0"),
    "inference",
)
SHARES = (
    Share("cast:x", 1.0, "/a#0"),
    Share("cast:w", 2.0, "/a#0"),
    Share("/a#0", 4.0),
    Share("swap:/a#0", 400.0),
    Share("cast:/a#0", 8.0, "/b#0"),
    Share("cast:/a#0", 16.0, "/c#0"),
    Share("cast:/a#0", 3.0, "/b#0", "/c#0"),
    Share("/b#0", 32.0),
    Share("/c#0", 64.0),
    Share("cast:/c#0", 0.0, "output:1", known=False),
)


def _plan(low: tuple[str, ...], casts: tuple[Cast, ...] = (), folds: tuple[Fold, ...] = (), **options: object) -> Plan:
    formats = tuple((op.key, "bf16" if op.key in low else "fp32") for op in GRAPH.ops)
    return Plan("p", "inference", "fp32", "bf16", formats, casts, folds, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (_plan(()), 0.0),
        (_plan(("/b#0",), (Cast("/a#0", "bf16", ("/b#0",)),)), 32 + 8),
        (_plan(("/b#0", "/c#0"), (Cast("/a#0", "bf16", ("/b#0", "/c#0")),)), 32 + 64 + 8 + 16 + 3),
        # autocast casts once per consumer: the same rounding all the same
        (_plan(("/b#0", "/c#0"), (Cast("/a#0", "bf16", ("/b#0",)), Cast("/a#0", "bf16", ("/c#0",)))), 123),
        (_plan(("/a#0", "w"), (Cast("x", "bf16", ("/a#0",)),), (Fold("w", "bf16", ("/a#0",)),)), 1 + 2 + 4),
        (_plan(("/a#0",), (Cast("x", "bf16", ("/a#0",)), Cast("/a#0", "fp32", ("/b#0", "/c#0")))), 1 + 4),
        (_plan(("/a#0",), swaps=(Swap("/a#0", "a", "torchao", "rowwise", 2, 2, 2),)), 400),
    ],
)  # fmt: skip
def test_error_of_a_plan(plan: Plan, expected: float) -> None:
    assert predicted_error(SHARES, plan, GRAPH) == pytest.approx(math.sqrt(expected))


@pytest.mark.parametrize(
    ("low", "swapped", "expected"),
    [
        ((), (), 0),
        (("/a#0",), (), 1 + 2 + 4),
        (("/a#0", "/b#0"), (), 1 + 2 + 4 + 32),
        (("/b#0", "/c#0"), (), 123),
        (("/a#0",), ("/a#0",), 1 + 2 + 400),  # what its fp8 product reads low, it reads low
    ],
)
def test_error_of_a_set_of_ops(low: tuple[str, ...], swapped: tuple[str, ...], expected: float) -> None:
    assert error_when_low(SHARES, low, GRAPH, swapped) == pytest.approx(math.sqrt(expected))


ALL = ("/a#0", "/b#0", "/c#0")


@pytest.mark.parametrize("target", [0.0, 2.7, 3.0, 5.0, 6.0, 7.0, 9.9, 10.2, 11.0])
def test_fewest_ops_against_all_sets(target: float) -> None:
    kept = heaviest(SHARES, ALL, GRAPH, target)
    enough = [
        some
        for count in range(len(ALL) + 1)
        for some in itertools.combinations(ALL, count)
        if error_when_low(SHARES, [key for key in ALL if key not in some], GRAPH) <= target
    ]
    assert kept in enough and len(kept) == len(enough[0])


class Steep(nn.Module):
    """A sum that loses what the norm after it magnifies, between products that are harmless."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.third = (nn.Linear(64, 64) for _ in range(3))
        self.norm = nn.LayerNorm(64)

    def forward(self, x: Tensor) -> Tensor:
        stream = torch.tanh(self.first(x))
        stream = self.norm(self.second(stream) + 40.0)
        y: Tensor = self.third(torch.relu(stream))
        return y


@pytest.mark.parametrize("low", ["bf16", "fp16"])
def test_keeping_the_heaviest_high_removes_what_it_claims(low: str) -> None:
    found = seen(Steep(), torch.randn(32, 64, generator=torch.Generator().manual_seed(0)), low=low)
    graph, plain = found.captured.graph, found.all_low()
    before = predicted_error(found.shares, plain, graph)
    assert 0.5 < before / found.error(plain) < 2.0
    kept = heaviest(found.shares, plain, graph, before / 10)
    assert set(kept) == {"/add#0", "norm/layer_norm#0"}  # the sum, and the norm that would read it rounded
    mended = found.without(kept)
    after = predicted_error(found.shares, mended, graph)
    assert after <= before / 10
    assert 0.5 < after / found.error(mended) < 2.0


def test_nothing_to_keep_where_the_target_is_met() -> None:
    found = seen(Steep(), torch.randn(8, 64))
    plain = found.all_low()
    assert heaviest(found.shares, plain, found.captured.graph, 1.0) == ()
    everything = heaviest(found.shares, plain, found.captured.graph, 0.0)
    assert predicted_error(found.shares, found.without(everything), found.captured.graph) == 0.0


@pytest.mark.parametrize(
    ("target", "idle"),
    [
        (0.5, set()),  # 0.6 with all of them high: nothing can be given away
        (0.6, {"/b#0"}),
        (1.0, {"/b#0", "/d#0"}),  # 0.36 + 0.64
        (5.0, {"/b#0", "/d#0", "/c#0"}),
    ],
)
def test_what_need_not_be_kept(target: float, idle: set[str]) -> None:
    """Ops in a row, a low with a share of 0.36; b adds 0, c 16, d 0.64 when it runs low too."""
    keys = ["/a#0", "/b#0", "/c#0", "/d#0"]
    row = (_op(key, read) for key, read in zip(keys, ("x", *keys), strict=False))
    graph = Graph((_op("x", kind="input"), *row), ("/d#0",), "inference")
    shares = [Share("/a#0", 0.36), Share("/c#0", 16.0), Share("/d#0", 0.64)]
    assert needless(shares, keys, graph, keys[1:], keys[1:], target) == idle
