"""Random ops draw alike in every format and layout; what they compute is unchanged."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from precision_audit.verify.draws import Draws

DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: functional.dropout(x, 0.3),
    "alpha dropout": lambda x: functional.alpha_dropout(x, 0.3),
    "normal": torch.randn_like,
    "uniform": torch.rand_like,
    "bernoulli of a number": lambda x: torch.bernoulli(x, 0.3),
    "factory": lambda x: torch.rand(x.shape, dtype=x.dtype),
    "exponential in place": lambda x: torch.empty_like(x).exponential_(),
    "normal, then dropout": lambda x: (torch.randn_like(x), functional.dropout(x, 0.5))[1],
    "attention": lambda x: functional.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.4),
}


def _draw(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    torch.manual_seed(1)
    with Draws():
        return function(x)


@pytest.mark.parametrize("transposed", [False, True], ids=["contiguous", "transposed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", DRAWS)
def test_same_draw(name: str, dtype: torch.dtype, transposed: bool) -> None:
    x = torch.linspace(0.5, 2, 40 * 33).reshape(40, 33)
    expected = _draw(DRAWS[name], x)
    low = x.to(dtype)
    found = _draw(DRAWS[name], low.t().contiguous().t() if transposed else low)
    assert found.dtype == dtype
    # 2^-8 is bf16's unit roundoff; another draw would be off by the size of the values
    assert float((found.float() - expected).norm() / expected.norm()) < 2 * 2.0**-8


def test_the_mask_is_a_draw_with_the_given_share() -> None:
    kept = _draw(lambda x: functional.dropout(x, 0.25), torch.ones(100_000))
    # standard deviation of the share: sqrt(0.25 · 0.75 / 1e5) = 0.0014
    assert float((kept == 0).float().mean()) == pytest.approx(0.25, abs=0.007)
    assert sorted(kept.unique().tolist()) == pytest.approx([0.0, 4 / 3])


def test_uniform_rounds_below_one() -> None:
    found = _draw(torch.rand_like, torch.zeros(100_000, dtype=torch.bfloat16))
    assert float(found.max()) == 1 - 2.0**-8  # the largest bf16 below one


def test_backward_uses_the_same_mask() -> None:
    x = torch.ones(1000, requires_grad=True)
    y = _draw(lambda x: functional.dropout(x, 0.5), x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient, y)


def test_a_generator_of_the_users_is_left_alone() -> None:
    expected = torch.rand(5, generator=torch.Generator().manual_seed(7))
    with Draws():
        assert torch.equal(torch.rand(5, generator=torch.Generator().manual_seed(7)), expected)


def test_two_draws_differ() -> None:
    first, second = _draw(lambda x: torch.stack([torch.rand_like(x), torch.rand_like(x)]), torch.zeros(100))
    assert not torch.equal(first, second)
