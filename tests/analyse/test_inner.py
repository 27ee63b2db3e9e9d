"""Inner numbers of composite ops: each row run on numbers for which numpy tells what the op hides."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from precision_audit import ops
from precision_audit.analyse.forward import forward
from precision_audit.analyse.inner import ROWS
from precision_audit.capture import capture
from precision_audit.records import Inner

aten = torch.ops.aten
RANDOM = np.random.default_rng(0)


def numbers(*shape: int, scale: float = 1.0, shift: float = 0.0) -> Tensor:
    return torch.from_numpy((RANDOM.standard_normal(shape) * scale + shift).astype(np.float32))


class Call(nn.Module):
    def __init__(self, function: Callable[..., Any], *fixed: Any, **named: Any) -> None:
        super().__init__()
        self.function, self.fixed, self.named = function, fixed, named

    def forward(self, *args: Tensor) -> Any:
        result = self.function(*args, *self.fixed, **self.named)
        return result[0] if isinstance(result, tuple) else result


def inner_of(function: Callable[..., Any], *args: Tensor, **named: Any) -> dict[str, Inner]:
    captured = capture(Call(function, **named), args)
    _, found = forward(captured, [(args, {})])
    return {each.what: each for each in found}


def wide(tensor: Tensor) -> NDArray[np.float64]:
    return tensor.double().numpy()


X, Y = numbers(6, 4, 8, scale=30.0, shift=5.0), numbers(6, 4, 8, scale=20.0)
ROW, OTHER = numbers(40, 12, scale=9.0), numbers(30, 12, scale=7.0)
Q, K, V = numbers(2, 4, 5, 8, scale=6.0), numbers(2, 4, 7, 8, scale=6.0), numbers(2, 4, 7, 8)
A, B, C = numbers(5, 9, scale=40.0), numbers(9, 3, scale=40.0), numbers(5, 3, scale=1000.0)
LOGITS, CLASSES = numbers(50, 7, scale=3.0), torch.arange(50) % 7
SIGNS = torch.where(numbers(20) > 0, 1.0, -1.0)


def squares(x: NDArray[np.float64], axis: Any) -> NDArray[np.float64]:
    return np.square(x).sum(axis=axis)


def deviations(x: NDArray[np.float64], axis: Any) -> NDArray[np.float64]:
    return np.square(x - x.mean(axis=axis, keepdims=True)).sum(axis=axis)


def losses(log_probability: NDArray[np.float64], kept: NDArray[np.bool_], weight: NDArray[np.float64]) -> float:
    picked = -log_probability[np.arange(50), CLASSES.numpy()] * weight[CLASSES.numpy()]
    return float(picked[kept].sum())


x, y, row, other = wide(X), wide(Y), wide(ROW), wide(OTHER)
LOG = wide(LOGITS) - np.log(np.exp(wide(LOGITS)).sum(1, keepdims=True))
WEIGHT = numbers(7).abs() + 0.5
SCORES = np.einsum("bhqd,bhkd->bhqk", wide(Q), wide(K))
HUBER = np.where(abs(x - y) < 50, 0.5 * (x - y) ** 2, 50 * (abs(x - y) - 25))
ALL, EVEN = np.ones(50, bool), CLASSES.numpy() != 3
SMALL = X / 10

CASES: list[tuple[str, Callable[..., Any], tuple[Tensor, ...], dict[str, Any], str, str, Any]] = [
    # op, function, arguments, further ones, what, held, all such numbers
    ("layer_norm", F.layer_norm, (X,), {"normalized_shape": (4, 8)}, "sum of squared deviations", "accumulator",
     deviations(x, (1, 2))),
    ("rms_norm", F.rms_norm, (X,), {"normalized_shape": (8,)}, "sum of squares", "accumulator", squares(x, 2)),
    ("group_norm", F.group_norm, (X,), {"num_groups": 2}, "sum of squared deviations", "accumulator",
     deviations(x.reshape(6, 2, 16), 2)),
    ("instance_norm", F.instance_norm, (X,), {}, "sum of squared deviations", "accumulator", deviations(x, 2)),
    ("batch_norm", lambda t: F.batch_norm(t, None, None, training=True), (X,), {}, "sum of squared deviations",
     "accumulator", deviations(x, (0, 2))),
    ("linalg_vector_norm", torch.linalg.vector_norm, (X,), {"dim": 1}, "sum of squares", "accumulator", squares(x, 1)),
    ("linalg_vector_norm", torch.linalg.vector_norm, (X,), {"ord": 3, "dim": (0, 1)}, "sum of powers", "accumulator",
     (abs(x) ** 3).sum((0, 1))),
    ("linalg_vector_norm", torch.norm, (X,), {"p": 4, "dim": 2}, "sum of powers", "accumulator", (x**4).sum(2)),
    ("linalg_vector_norm", F.normalize, (X,), {"dim": -1}, "sum of squares", "accumulator", squares(x, 2)),
    ("norm", aten.norm.Scalar, (X,), {"p": 2}, "sum of squares", "accumulator", squares(x, None)),
    ("frobenius_norm", aten.frobenius_norm.dim, (X,), {"dim": [1, 2]}, "sum of squares", "accumulator",
     squares(x, (1, 2))),
    ("linalg_norm", torch.linalg.norm, (X,), {"dim": 2}, "sum of squares", "accumulator", squares(x, 2)),
    ("linalg_matrix_norm", torch.linalg.matrix_norm, (X,), {}, "sum of squares", "accumulator", squares(x, (1, 2))),
    ("dist", torch.dist, (X, Y), {}, "sum of squares", "accumulator", squares(x - y, None)),
    ("pairwise_distance", F.pairwise_distance, (ROW, ROW.flip(0)), {"eps": 0.0}, "sum of squares", "accumulator",
     squares(row - row[::-1], 1)),
    ("pdist", F.pdist, (ROW,), {}, "sum of squares", "accumulator",
     np.array([squares(row[i] - row[j], None) for i in range(40) for j in range(i)])),
    ("cdist", torch.cdist, (ROW, OTHER), {}, "sum of squares", "own",
     np.concatenate((squares(row, 1), squares(other, 1)))),
    ("var", torch.var, (X,), {"dim": (1, 2)}, "sum of squared deviations", "accumulator", deviations(x, (1, 2))),
    ("var", torch.var, (X,), {"unbiased": False}, "sum of squared deviations", "accumulator", deviations(x, None)),
    ("std", torch.std, (X,), {"dim": 1, "correction": 2}, "sum of squared deviations", "accumulator", deviations(x, 1)),
    ("var_mean", torch.var_mean, (X,), {"dim": 0}, "sum of squared deviations", "accumulator", deviations(x, 0)),
    ("std_mean", torch.std_mean, (X,), {"dim": 0}, "sum of squared deviations", "accumulator", deviations(x, 0)),
    ("cosine_similarity", F.cosine_similarity, (X, Y), {"dim": 2}, "norm", "own",
     np.sqrt(np.concatenate((squares(x, 2), squares(y, 2))))),
    ("logsumexp", torch.logsumexp, (X,), {"dim": (0, 2)}, "sum of exponentials", "own",
     np.exp(x - x.max((0, 2), keepdims=True)).sum((0, 2))),
    ("mse_loss", F.mse_loss, (X, Y), {}, "loss of one element", "own", (x - y) ** 2),
    ("huber_loss", F.huber_loss, (X, Y), {"delta": 50.0}, "loss of one element", "own", HUBER),
    ("smooth_l1_loss", F.smooth_l1_loss, (X, Y), {"beta": 50.0}, "loss of one element", "own", HUBER / 50),
    ("poisson_nll_loss", F.poisson_nll_loss, (SMALL, Y.abs()), {}, "exp", "own", np.exp(wide(SMALL))),
    ("soft_margin_loss", F.soft_margin_loss, (SMALL[0, 0, :], SIGNS[:8]), {}, "exp", "own",
     np.exp(-wide(SMALL[0, 0]) * wide(SIGNS[:8]))),
    ("cross_entropy_loss", F.cross_entropy, (LOGITS, CLASSES), {}, "sum of the losses", "own",
     losses(LOG, ALL, np.ones(7))),
    ("cross_entropy_loss", lambda t, c, w: F.cross_entropy(t, c, w, ignore_index=3), (LOGITS, CLASSES, WEIGHT), {},
     "sum of the losses", "own", losses(LOG, EVEN, wide(WEIGHT))),
    ("nll_loss_nd", F.nll_loss, (F.log_softmax(LOGITS, 1), CLASSES), {}, "sum of the losses", "own",
     losses(LOG, ALL, np.ones(7))),
    ("nanmean", torch.nanmean, (X,), {"dim": 1}, "sum before the division", "own", x.sum(1)),
    ("addmm", torch.addmm, (C, A, B), {"beta": 2.0, "alpha": 0.5}, "product before the sum", "accumulator",
     0.5 * wide(A) @ wide(B)),
    ("baddbmm", torch.baddbmm, (C[None], A[None], B[None]), {}, "product before the sum", "accumulator",
     wide(A) @ wide(B)),
    ("addmv", torch.addmv, (C[:, 0], A, B[:, 0]), {}, "product before the sum", "accumulator", wide(A) @ wide(B[:, 0])),
    ("addr", torch.addr, (C, A[:, 0], B[0]), {}, "product before the sum", "own", np.outer(wide(A[:, 0]), wide(B[0]))),
    ("cosine_embedding_loss", F.cosine_embedding_loss, (ROW[:20], OTHER[:20], SIGNS), {}, "sum of squares", "own",
     np.concatenate((squares(row[:20], 1), squares(other[:20], 1)))),
    ("triplet_margin_loss", F.triplet_margin_loss, (ROW[:20], OTHER[:20], ROW[20:]), {"eps": 0.0}, "distance", "own",
     np.sqrt(np.concatenate((squares(row[:20] - other[:20], 1), squares(row[:20] - row[20:], 1))))),
    ("scaled_dot_product_attention", F.scaled_dot_product_attention, (Q, K, V), {}, "q·k before the scale",
     "accumulator", SCORES),
    ("scaled_dot_product_attention", F.scaled_dot_product_attention, (Q, K, V), {}, "scaled scores", "accumulator",
     SCORES / math.sqrt(8)),
    ("scaled_dot_product_attention", F.scaled_dot_product_attention, (Q, K, V), {"scale": 2.0}, "scaled scores",
     "accumulator", SCORES * 2),
    ("scaled_dot_product_attention", F.scaled_dot_product_attention, (Q, K[:, :2], V[:, :2]), {"enable_gqa": True},
     "q·k before the scale", "accumulator",
     np.einsum("bhqd,bhkd->bhqk", wide(Q), np.repeat(wide(K[:, :2]), 2, axis=1))),
]  # fmt: skip
IDS = [f"{case[0]}-{case[4]}-{index}" for index, case in enumerate(CASES)]


@pytest.mark.parametrize(("op", "function", "args", "named", "what", "held", "expected"), CASES, ids=IDS)
def test_inner_number(
    op: str, function: Any, args: tuple[Tensor, ...], named: dict[str, Any], what: str, held: str, expected: Any
) -> None:
    found = inner_of(function, *args, **named)
    assert what in found, f"found {sorted(found)}"
    assert f"/{op}#0" == found[what].op
    magnitudes = np.abs(np.asarray(expected))
    assert found[what].amax == pytest.approx(float(magnitudes.max()), rel=2e-4)
    assert found[what].smallest == pytest.approx(float(magnitudes[magnitudes > 0].min()), rel=2e-2, abs=1e-3)
    assert found[what].held == held


# Rows that no training IR of the cases above reaches: inner forms of ops that have a case.
SAME = {
    "_native_batch_norm_legit", "_native_batch_norm_legit_functional", "_scaled_dot_product_attention_math",
    "_scaled_dot_product_flash_attention_for_cpu", "native_batch_norm", "native_group_norm", "native_layer_norm",
    "native_norm", "nll_loss", "nll_loss2d", "special_logsumexp",
}  # fmt: skip


def test_every_row_has_a_case_and_is_an_op_of_the_table() -> None:
    assert {case[0] for case in CASES} | SAME == set(ROWS)
    assert all(ops.row(name) is not None for name in ROWS)


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (lambda t: torch.softmax(t, 1), (X,)),
        (lambda t: torch.log_softmax(t, 1), (X,)),
        (lambda t: torch.linalg.vector_norm(t, math.inf), (X,)),
        (lambda t: torch.linalg.vector_norm(t, 1), (X,)),
        (lambda t: torch.linalg.matrix_norm(t, "nuc"), (X,)),
        (lambda t: t.mean(1), (X,)),
        (lambda a, b: a @ b, (A, B)),
        (lambda t, u: F.mse_loss(t, u, reduction="none"), (X, Y)),
        (lambda t: F.batch_norm(t, torch.zeros(4), torch.ones(4)), (X,)),
        (lambda t, u: torch.cdist(t[:5], u[:5]), (ROW, OTHER)),
        (lambda t, c: F.cross_entropy(t, c, reduction="sum"), (LOGITS, CLASSES)),
        (lambda t: torch.zeros(3, 3).var() + t.sum(), (X,)),
        (lambda t: F.layer_norm(t[:0], (8,)), (X,)),
    ],
)
def test_nothing_is_hidden(function: Any, args: tuple[Tensor, ...]) -> None:
    assert inner_of(function, *args) == {}


def test_what_fp32_does_not_hold_either_is_infinite() -> None:
    assert inner_of(torch.linalg.vector_norm, torch.full((4,), 1e25))["sum of squares"].amax == math.inf


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_model_in_a_low_format_shows_what_its_format_cannot_hold(dtype: torch.dtype) -> None:
    low = torch.full((2, 256), 300.0, dtype=dtype)
    found = inner_of(lambda t: F.rms_norm(t, (256,)), low)
    assert found["sum of squares"].amax == pytest.approx(256 * 300.0**2, rel=1e-2)


def test_the_extreme_of_all_batches_and_where() -> None:
    captured = capture(Call(lambda t: F.rms_norm(t, (4,))), (torch.ones(1, 4),))
    batches = [((torch.full((1, 4), size),), {}) for size in (1.0, 300.0, 0.5)]
    (found,) = forward(captured, batches)[1]
    assert (found.amax, found.smallest, found.batch) == (pytest.approx(360_000), pytest.approx(1.0), 1)


def test_long_attention_is_looked_at_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    from precision_audit.analyse import inner_numbers

    monkeypatch.setattr(inner_numbers, "_CHUNK", 36)
    found = inner_of(F.scaled_dot_product_attention, Q, K, V)
    assert found["q·k before the scale"].amax == pytest.approx(float(abs(SCORES).max()), rel=1e-4)


def test_masked_and_infinite_operands_leave_a_number() -> None:
    query = Q.clone()
    query[0, 0, 0, 0] = math.inf
    found = inner_of(F.scaled_dot_product_attention, query, K, V)
    assert math.isfinite(found["q·k before the scale"].amax)
