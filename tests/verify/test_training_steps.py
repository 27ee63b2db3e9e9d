"""Training steps side by side: losses and errors by arithmetic, dropout's noise, loss scales and what fails."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from precision_audit.pipeline import Request, run
from precision_audit.policy import load
from precision_audit.records import InputError, Steps
from precision_audit.report import as_full, as_json, steps
from precision_audit.verify.runs import Batch
from precision_audit.verify.training_steps import training_steps

BF16, FP16 = load("bf16-training"), load("fp16-training")
RATE = 0.25


def sgd(rate: float = RATE) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.SGD(parameters, lr=rate)


def batch(*args: Tensor) -> Batch:
    return args, {}


class Scaled(nn.Module):
    """factor · w · x."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.w, self.factor = nn.Parameter(torch.tensor([3.0, 4.0], dtype=torch.float64)), factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * self.w * x


ONES = batch(torch.ones(2, dtype=torch.float64))


def half_of_squares(output: Tensor) -> Tensor:
    return 0.5 * (output**2).sum()


def test_a_quadratic_with_sgd() -> None:
    """w shrinks by 1 - rate per step; one whose output is f times as large by 1 - rate·f²."""
    f = 1.01
    found = training_steps(Scaled(), Scaled(f), Scaled(2.0), [ONES], BF16, half_of_squares, sgd(), 4)
    assert len(found.steps) == 4 and found.passed and found.optimizer == "SGD" and found.objective == "loss"
    for k, step in enumerate(found.steps):
        reference, other = (1 - RATE) ** k, (1 - RATE * f**2) ** k  # w relative to its start
        loss, converted = 12.5 * reference**2, 12.5 * f**2 * other**2
        assert step.loss == pytest.approx(loss, rel=1e-12)
        assert step.converted_loss == pytest.approx(converted, rel=1e-12)
        assert step.loss_error == pytest.approx(abs(converted / loss - 1), rel=1e-9)
        assert step.gradient == "w"
        assert step.gradient_error == pytest.approx(abs(f**2 * other / reference - 1), rel=1e-9)
        assert step.plain_loss == pytest.approx(50.0 if k == 0 else 0.0, abs=1e-12)  # 1 - 0.25 · 4 is none
        assert (step.loss_noise, step.gradient_noise, step.skipped, step.scale) == (0.0, 0.0, False, 1.0)


def test_without_an_optimizer_the_weights_stay_and_each_batch_is_one_step() -> None:
    twice = batch(torch.full((2,), 2.0, dtype=torch.float64))
    found = training_steps(Scaled(), Scaled(), None, [ONES, twice], BF16, half_of_squares)
    assert [step.loss for step in found.steps] == [12.5, 50.0] and found.optimizer == ""
    assert [step.plain_loss for step in found.steps] == [None, None]


def test_batches_go_round() -> None:
    none = batch(torch.zeros(2, dtype=torch.float64))
    found = training_steps(Scaled(), Scaled(), None, [ONES, none], BF16, half_of_squares, sgd(), 3)
    assert [step.loss for step in found.steps] == pytest.approx([12.5, 0.0, 12.5 * 0.75**2])


class Dropping(nn.Module):
    def __init__(self, share: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.drop = nn.Linear(8, 64), nn.Linear(64, 2), nn.Dropout(share)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.drop(torch.relu(self.first(x))))
        return y


X = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("share", [0.5, 0.0])
def test_noise_is_of_dropout_alone(share: float) -> None:
    model = Dropping(share)
    found = training_steps(model, model, None, [batch(X)], BF16, half_of_squares, sgd(1e-3), 3)
    assert all(step.loss_error == step.gradient_error == 0.0 for step in found.steps)  # the same draws
    noisy = [step.loss_noise > 0 and step.gradient_noise > 0 for step in found.steps]
    assert noisy == [share > 0] * 3


def test_masks_differ_from_step_to_step() -> None:
    found = training_steps(Dropping(0.5), Dropping(0.5), None, [batch(X)], BF16, half_of_squares, sgd(0.0), 3)
    assert len({step.loss for step in found.steps}) == 3


class Single(nn.Module):
    """w · x, the product in a format of its own."""

    def __init__(self, low: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.w, self.low = nn.Parameter(torch.tensor([1.0])), low

    def forward(self, x: Tensor) -> Tensor:
        return (self.w.to(self.low) * x.to(self.low)).float()


def total(output: Tensor) -> Tensor:
    return output.sum()


def in_fp16(second: float, scale: float | None = None) -> Steps:
    batches = [batch(torch.tensor([size])) for size in (1.0, second, 1.0)]
    low = Single(torch.float16)
    return training_steps(Single(), low, None, batches, FP16, total, sgd(2.0**-10), 3, scale=scale)


def test_an_update_that_overflows_is_left_out() -> None:
    """The scale settles at 2^12, since 2^16 is no fp16 number; 100 · 2^12 is none either, in step 2 alone."""
    found = in_fp16(100.0)
    w = 1 - 2.0**-10
    assert found.passed and found.skipped == 1 and [step.skipped for step in found.steps] == [False, True, False]
    assert [step.scale for step in found.steps] == [2.0**12, 2.0**12, 2.0**11]
    assert [step.loss for step in found.steps] == pytest.approx([1.0, 100 * w, w - 100 * 2.0**-10], rel=1e-6)
    # 100 w = 99.90234375; fp16 counts in steps of 2^-4 there
    assert [step.converted_loss for step in found.steps] == [1.0, 99.875, w]


def test_a_scale_that_is_given_is_begun_with() -> None:
    found = in_fp16(100.0, scale=2.0**5)
    assert found.skipped == 0 and {step.scale for step in found.steps} == {2.0**5}


def test_a_loss_that_overflows_fails() -> None:
    found = in_fp16(1e5)
    assert not found.passed and found.notes == ("step 2: the loss of the converted model is inf",)
    assert found.steps[1].skipped and found.steps[2].converted_loss == 1 - 2.0**-10


class Rooted(nn.Module):
    """√(w - w) · w: its value is zero and its gradient is not a number."""

    def __init__(self, broken: bool) -> None:
        super().__init__()
        self.w, self.broken = nn.Parameter(torch.tensor([1.0])), broken

    def forward(self, x: Tensor) -> Tensor:
        y = self.w * x
        return y + torch.sqrt(self.w - self.w.detach()) if self.broken else y


def test_a_parameter_that_is_lost_fails() -> None:
    found = training_steps(Rooted(False), Rooted(True), None, [batch(torch.ones(1))], BF16, total, sgd(), 2)
    assert not found.passed
    assert found.notes[0] == "step 1: a parameter of the converted model is not finite"


def test_a_model_that_raises_is_a_note() -> None:
    class Raising(Single):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("no kernel")

    found = training_steps(Single(), Raising(), None, [batch(torch.ones(1))], BF16, total, sgd(), 2)
    assert not found.passed and found.steps == () and found.notes == ("step 1 failed: RuntimeError: no kernel",)


def test_the_models_are_as_they_were() -> None:
    models = [Dropping(0.5), Dropping(0.5), Dropping(0.5)]
    before = [copy.deepcopy(model.state_dict()) for model in models]
    state = torch.get_rng_state()
    training_steps(models[0], models[1], models[2], [batch(X)], BF16, half_of_squares, sgd(1.0), 2)
    assert torch.equal(state, torch.get_rng_state())
    for model, kept in zip(models, before, strict=True):
        assert all(torch.equal(kept[name], value) for name, value in model.state_dict().items())
        assert all(parameter.grad is None for parameter in model.parameters())


OTHERS = Dropping(0.0)


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        (lambda parameters: None, "optimizer returned a NoneType; expected a torch.optim.Optimizer"),
        (
            lambda parameters: torch.optim.SGD(OTHERS.parameters(), lr=1.0),
            "that are not those it was given",
        ),
        (torch.optim.LBFGS, "optimizer LBFGS cannot take a step by itself"),
    ],
)
def test_optimizers_that_cannot_be_used(optimizer: Any, words: str) -> None:
    with pytest.raises(InputError) as error:
        training_steps(Scaled(), Scaled(), None, [ONES], BF16, half_of_squares, optimizer, 2)
    assert words in str(error.value) and "\n" not in str(error.value)


def test_in_the_report() -> None:
    asked = Request(
        Dropping(0.5), (X,), policy="bf16-training", device="cpu-amx", loss=half_of_squares, optimizer=sgd(1e-3)
    )
    report = run(asked)[0]
    found = report.verification.steps if report.verification else None
    assert found is not None and len(found.steps) == 3 and found.passed
    # rounding is far below what another dropout mask does
    assert all(0 < step.gradient_error < 0.1 * step.gradient_noise for step in found.steps)
    assert all(step.plain_loss is not None for step in found.steps)
    assert as_json.read(as_json.render(report)).verification == report.verification
    short, long = as_full.render(report), as_full.render(report, verbose=True)
    assert "3 training steps with SGD, loss: fp32" in short and "fp32, other dropout seed: " in short
    assert "step 3: fp32" in long and "step 3: fp32" not in short
    assert len(list(steps.lines(report))) == 2


def test_without_loss_and_optimizer_nothing_is_trained() -> None:
    report = run(Request(Dropping(0.5), (X,), policy="bf16-training", device="cpu-amx"))[0]
    assert report.verification is not None and report.verification.steps is None
    assert list(steps.lines(report)) == []
