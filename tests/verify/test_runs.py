"""One run: names of outputs, gradients, and that nothing is left changed."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from precision_audit.records import InputError
from precision_audit.verify.runs import Conditions, flatten, run, run_scaled

Pair = namedtuple("Pair", ["mean", "scale"])
ONE = torch.ones(2)


@dataclass
class Answer:
    logits: Tensor
    states: tuple[Tensor, ...]


@pytest.mark.parametrize(
    ("output", "names"),
    [
        (ONE, ["output"]),
        ((ONE, None, [ONE]), ["output[0]", "output[2][0]"]),
        ({"logits": ONE, "more": (ONE, ONE)}, ["output['logits']", "output['more'][0]", "output['more'][1]"]),
        (Pair(ONE, ONE), ["output.mean", "output.scale"]),
        (Answer(ONE, (ONE, ONE)), ["output.logits", "output.states[0]", "output.states[1]"]),
        ({"answer": Answer(ONE, ())}, ["output['answer'].logits"]),
        ((2.5, True), ["output[0]", "output[1]"]),
        ("text", []),
    ],
)
def test_names_of_outputs(output: Any, names: list[str]) -> None:
    assert list(flatten(output)) == names


def test_given_names_replace_derived_ones_where_they_fit() -> None:
    assert list(flatten((ONE, ONE), ("a", "b"))) == ["a", "b"]
    assert list(flatten((ONE, ONE), ("a",))) == ["output[0]", "output[1]"]


class Counting(nn.Module):
    """Draws, counts its calls, writes into its input and holds a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.unused = nn.Parameter(torch.ones(2))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        x.add_(1)
        return torch.dropout(self.second(self.first(x)), 0.5, True) * self.calls


def test_a_run_leaves_no_trace() -> None:
    model, x = Counting(), torch.zeros(4, 3)
    state = torch.get_rng_state()
    conditions = Conditions(training=True)
    first, second = (run(model, ((x,), {}), conditions) for _ in range(2))
    assert torch.equal(first.outputs["output"], second.outputs["output"])
    assert first.moved
    assert float(model.calls) == 0
    assert torch.equal(x, torch.zeros(4, 3))
    assert torch.equal(state, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_gradients_by_every_name_and_zero_where_the_loss_does_not_reach() -> None:
    x = torch.linspace(-1, 2, 12).reshape(4, 3)
    found = run(Counting(), ((x,), {}), Conditions(training=True)).gradients
    assert torch.equal(found["first.weight"], found["second.weight"])
    assert torch.equal(found["unused"], torch.zeros(2))
    assert float(found["first.weight"].abs().sum()) > 0


def test_gradient_of_the_users_loss() -> None:
    linear = nn.Linear(2, 1, bias=False)
    found = run(linear, ((torch.tensor([[2.0, 3.0]]),), {}), Conditions(True, loss=lambda y: 5 * y.sum()), scale=8.0)
    assert torch.equal(found.gradients["weight"], torch.tensor([[10.0, 15.0]]))


def test_projection_weighs_every_output_alike() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.small, self.large = nn.Parameter(torch.full((9,), 1e-3)), nn.Parameter(torch.full((9,), 1e3))

        def forward(self) -> tuple[Tensor, Tensor]:
            return self.small * 1.0, self.large * 1.0

    found = run(Two(), ((), {}), Conditions(training=True)).gradients
    # the gradient of r·y/‖y‖ is r/‖y‖: magnitudes 1/(1e-3·3) and 1/(1e3·3)
    assert torch.allclose(found["small"].abs(), torch.full((9,), 1e3 / 3))
    assert torch.allclose(found["large"].abs(), torch.full((9,), 1e-3 / 3))


def test_inference_has_no_gradients() -> None:
    assert run(nn.Linear(2, 2), ((torch.ones(1, 2),), {}), Conditions(training=False)).gradients == {}


@pytest.mark.parametrize(("factor", "scale"), [(1.0, 2.0**12), (1e-3, 2.0**16), (4000.0, 2.0**4), (5000.0, 1.0)])
def test_loss_scale_steps_down_until_fp16_gradients_are_finite(factor: float, scale: float) -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self) -> Tensor:
            return (self.weight.half() * 1.0).float()

    # the gradient factor·scale passes through fp16, whose largest number is 65504
    conditions = Conditions(training=True, loss=lambda y: (y * factor).sum())
    found = run_scaled(Half(), ((), {}), conditions, {}, 2.0**16)
    assert found.scale == scale
    assert found.gradients["weight"].item() == pytest.approx(factor, rel=1e-3)


@pytest.mark.parametrize(
    ("value", "words"), [(1.0, "a float"), (ONE, r"a tensor of shape \(2,\)"), (None, "a NoneType")]
)
def test_a_loss_that_is_no_scalar_is_refused(value: Any, words: str) -> None:
    conditions = Conditions(training=True, loss=lambda _: value)
    with pytest.raises(InputError, match=f"loss returned {words}"):
        run(nn.Linear(2, 2), ((ONE,), {}), conditions)


def test_sparse_gradients_are_compared_densely() -> None:
    table = nn.Embedding(4, 2, sparse=True)
    gradient = run(table, ((torch.tensor([1]),), {}), Conditions(training=True)).gradients["weight"]
    assert gradient.layout == torch.strided
    assert gradient[[0, 2, 3]].abs().sum() == 0 < gradient[1].abs().sum()


def test_complex_outputs_have_gradients() -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.full((2,), 3 + 4j))

        def forward(self) -> Tensor:
            return self.weight * 1j

    found = run(Turned(), ((), {}), Conditions(training=True))
    assert found.norms["output"] == pytest.approx(50**0.5)
    # real and imaginary part each get ±1 over the norm
    assert torch.allclose(torch.view_as_real(found.gradients["weight"]).abs(), torch.tensor(50**-0.5))


class Remembers(nn.Module):
    """Writes what has a gradient into a buffer, as a cache does, and changes a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        seen = self.get_buffer("seen")
        seen.copy_(x * self.weight)
        with torch.no_grad():
            self.weight.data.mul_(2)
        return seen * 2


def test_a_buffer_keeps_no_history_and_a_written_parameter_its_value() -> None:
    model = Remembers()
    conditions = Conditions(training=True, written=frozenset({"weight"}))
    first, second = (run(model, ((ONE,), {}), conditions) for _ in range(2))
    assert torch.equal(first.gradients["weight"], second.gradients["weight"])
    assert not model.get_buffer("seen").requires_grad
    assert (model.get_buffer("seen").tolist(), model.weight.tolist()) == ([0.0, 0.0], [1.0, 1.0])
