"""Verification: what passes, what fails, and that every figure is the one that arithmetic gives."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from precision_audit.records import Graph, InputError, Mode, Op, Policy, Verification
from precision_audit.records import Tensor as Shape
from precision_audit.verify import verify

Batch = tuple[tuple[Any, ...], dict[str, Any]]


def _policy(mode: Mode = "inference", low: str = "bf16", keep: bool = True, **tolerances: float) -> Policy:
    return Policy(
        "p", "p.yaml", "", mode, "fp32", low, (), keep_io_types=keep, tolerances=tuple(sorted(tolerances.items()))
    )


def _check(
    reference: Callable[..., Any], converted: Callable[..., Any], policy: Policy, **options: Any
) -> Verification:
    batches = options.pop("batches", [((torch.tensor([[3.0, 4.0], [4.0, 3.0]]),), {})])
    return verify(reference, converted, options.pop("plain", None), batches, policy, **options)


class Scaled(nn.Module):
    """y = weight · x; the conversion under test is another weight."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x


@pytest.mark.parametrize(("error", "passed"), [(0.009, True), (0.011, False)])
def test_output_against_its_limit_and_beside_plain(error: float, passed: bool) -> None:
    found = _check(lambda x: x, lambda x: x * (1 + error), _policy(relative_l2=0.01), plain=lambda x: x * 1.02)
    (output,) = found.outputs
    assert found.passed == output.passed == passed
    assert output.name == "output"
    assert output.relative_l2 == pytest.approx(error, rel=1e-3)
    assert output.plain_relative_l2 == pytest.approx(0.02, rel=1e-3)
    assert output.limit == 0.01
    assert output.flip_rate == 0
    assert found.reference == "bitwise equal to itself"
    assert found.noise == 0


def test_the_worst_batch_counts() -> None:
    batches: list[Batch] = [((torch.full((2, 2), size),), {}) for size in (1.0, 10.0, 2.0)]
    # 0.1 is added: relative 0.1, 0.01, 0.05; difference 0.1 in each
    found = _check(lambda x: x, lambda x: x + 0.1, _policy(relative_l2=0.06), batches=batches)
    assert found.outputs[0].relative_l2 == pytest.approx(0.1, rel=1e-5)
    assert not found.passed


def test_every_output_has_its_own_limit() -> None:
    policy = _policy(**{"relative_l2": 1e-3, "relative_l2:output['b']": 0.2})
    found = _check(lambda x: {"a": x, "b": x}, lambda x: {"a": x, "b": x * 1.1}, policy)
    assert [each.passed for each in found.outputs] == [True, True]
    assert [each.name for each in found.outputs] == ["output['a']", "output['b']"]


@pytest.mark.parametrize(
    ("key", "mode", "note"),
    [
        ("relative_l2:output['logit']", "inference", "no output output['logit'] (did you mean output['logits']?)"),
        ("relative_l2:logits", "inference", "no output logits (did you mean output['logits']?)"),
        ("flip_rate:xyz", "inference", "no output xyz; there are output['logits']"),
        ("gradient_relative_l2:wieght", "training", "no parameter wieght (did you mean weight?)"),
        ("gradient_relative_l2:wieght", "inference", ""),  # nothing has a gradient there
        ("relative_l2:output['logits']", "inference", ""),
        ("gradient_relative_l2:weight", "training", ""),
    ],
)
def test_a_limit_of_nothing_is_said(key: str, mode: Mode, note: str) -> None:
    class Named(Scaled):
        def forward(self, x: Tensor) -> Any:
            return {"logits": super().forward(x)}

    found = _check(Named(2.0), Named(2.0), _policy(mode, **{key: 0.1}))
    said = [each for each in found.notes if each.startswith("tolerance")]
    assert said == ([f"tolerance {key} limits nothing: there is {note}"] if note else [])


def _two(x: Tensor) -> dict[str, Tensor]:
    return {"all": x, "large": x[x > 100]}


@pytest.mark.parametrize(
    ("batches", "model", "compared", "note"),
    [
        ([torch.zeros(0, 2)], lambda x: x, [False], "output has no element in any batch: nothing of it was compared"),
        ([torch.zeros(0, 2), torch.ones(1, 2)], lambda x: x, [True], ""),
        ([torch.ones(2), torch.ones(2)], _two, [True, False], "output['large'] has no element in any batch"),
        ([torch.ones(2), torch.ones(2) * 101], _two, [True, True], ""),
        ([torch.ones(2)], lambda x: x / 0, [False], "output has no finite element in the reference: nothing of it"),
        ([torch.ones(2) * -1], lambda x: (x.log() > 0).nonzero(), [False], "output has no element in any batch"),
    ],
)  # fmt: skip
def test_what_was_not_compared_is_said(batches: list[Tensor], model: Any, compared: list[bool], note: str) -> None:
    found = _check(model, model, _policy(), batches=[((each,), {}) for each in batches])
    assert [each.compared for each in found.outputs] == compared
    assert any(each.startswith(note) for each in found.notes) if note else found.notes == ()


@pytest.mark.parametrize(("limit", "passes"), [({}, False), ({"flip_rate": 0.2}, False), ({"flip_rate": 0.5}, True)])
def test_integer_outputs_count_changed_elements(limit: dict[str, float], passes: bool) -> None:
    policy = _policy(**limit)
    found = _check(lambda x: (x, x.long()), lambda x: (x, x.long() // 4 * 4), policy)
    changed = found.outputs[1]
    assert (changed.figure, changed.relative_l2) == ("elements changed", 0.5)  # 3 → 0 twice, 4 → 4 twice
    assert changed.passed == found.passed == passes
    assert any("output[1] (int64): 50.00% of its elements differ" in note for note in found.notes)


def test_argmax_flips_are_counted() -> None:
    found = _check(lambda x: x, lambda x: x + torch.tensor([0.0, 2.0]), _policy(relative_l2=1.0))
    assert found.outputs[0].flip_rate == 0.5  # of (3, 4) and (4, 3) only the second row changes its largest


def test_identity_must_be_bitwise() -> None:
    assert _check(lambda x: x, lambda x: x + 0, _policy(low="fp32")).passed
    assert not _check(lambda x: x, lambda x: x * (1 + 2.0**-23), _policy(low="fp32")).passed


@pytest.mark.parametrize(
    ("spoil", "passed", "judged"),
    [
        (lambda x: x, True, True),
        (lambda x: torch.full_like(x, math.nan), False, True),
        (lambda x: torch.where(x > 3.5, math.inf, x), False, True),
    ],
)
def test_what_is_not_finite_only_when_converted_fails(spoil: Any, passed: bool, judged: bool) -> None:
    found = _check(lambda x: x, spoil, _policy())
    assert found.passed == passed
    assert (found.noise < 1) == judged


def test_nan_of_the_reference_is_said_and_not_blamed() -> None:
    def broken(x: Tensor) -> Tensor:
        return torch.where(x > 3.5, math.nan, x)

    maker = Op("/where#0", "", "where", "", "", "", (), (Shape("fp32", (2, 2), (2, 2)),))
    found = _check(broken, broken, _policy(), graph=Graph((maker,), ("/where#0",), "inference"))
    assert found.passed
    assert found.noise == math.inf  # nothing can be judged
    assert (found.outputs[0].nonfinite, found.outputs[0].reference_nonfinite) == (2, 2)
    assert "the reference itself is not finite: 2 of 4 elements of output, made by /where#0" in found.notes


def test_noise_of_the_reference_is_a_floor() -> None:
    calls = iter(range(100))

    def noisy(x: Tensor) -> Tensor:
        return x * (1 + 0.02 * (next(calls) % 2))

    found = _check(noisy, lambda x: x * 1.015, _policy(relative_l2=0.01))
    assert found.outputs[0].limit == pytest.approx(0.02, rel=1e-3)
    assert found.noise == pytest.approx(2.0, rel=1e-3)  # of 0.02 against a limit of 0.01
    assert found.reference.startswith("differs from itself by 2.0e-02 (relative L2) at output")


@pytest.mark.parametrize(("error", "passed"), [(0.05, True), (0.2, False)])
def test_gradients_of_every_parameter(error: float, passed: bool) -> None:
    class Converted(Scaled):
        def forward(self, x: Tensor) -> Tensor:
            value = self.weight * x
            # same output, another gradient
            return value + error * (value - value.detach())

    batches = [((torch.tensor([1.0, 2.0, 4.0, 8.0]),), {})]  # no choice of signs sums to zero
    policy = _policy("training", gradient_relative_l2=0.1)
    found = _check(Scaled(2.0), Converted(2.0), policy, plain=Scaled(2.0), batches=batches)
    (gradient,) = found.gradients
    assert (gradient.name, gradient.passed, found.passed) == ("weight", passed, passed)
    assert gradient.relative_l2 == pytest.approx(error, rel=1e-4)
    assert gradient.plain_relative_l2 == 0
    assert found.outputs[0].relative_l2 == 0


def test_gradients_of_the_given_loss() -> None:
    found = _check(Scaled(1.0), Scaled(1.1), _policy("training", relative_l2=1.0), loss=lambda y: y.square().sum())
    # d/dw Σ(wx)² = 2w Σx²: proportional to the weight
    assert found.gradients[0].relative_l2 == pytest.approx(0.1, rel=1e-4)


def test_a_gradient_that_is_zero_but_for_rounding_is_judged_by_the_largest() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU())

    class Low(nn.Module):
        def __init__(self, inner: nn.Sequential) -> None:
            super().__init__()
            for name, child in inner.named_children():
                self.add_module(name, child)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                for child in self.children():
                    x = child(x)
            return x.float()

    batches = [((torch.randn(8, 2, 8, 8),), {})]
    found = _check(model, Low(copy.deepcopy(model)), _policy("training"), batches=batches)
    bias = {each.name: each for each in found.gradients}["0.bias"]
    assert bias.sqnr_db < 0  # the difference is larger than the gradient itself
    assert bias.passed
    assert any("1 gradient (0.bias)" in note for note in found.notes)
    assert int(model[1].num_batches_tracked) == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_dropout_masks_agree_whatever_the_format(dtype: torch.dtype) -> None:
    def dropped(x: Tensor) -> Tensor:
        return torch.dropout(x + torch.randn_like(x) * 0, 0.5, True).float()

    batches = [((torch.rand(64, 65) + 0.5,), {})]
    found = _check(dropped, lambda x: dropped(x.to(dtype).t().contiguous().t()), _policy(), batches=batches)
    assert found.passed
    assert found.outputs[0].relative_l2 < 2.0**-8
    assert any("masks agree" in note for note in found.notes)


@pytest.mark.parametrize(
    ("converted", "note"),
    [
        (lambda x: (x, x), "output[0] is only in the converted model"),
        (lambda x: x.bfloat16(), "output is bfloat16, the reference float32"),
        (lambda x: x[:1], "output has shape (1, 2), the reference (2, 2)"),
        (lambda x: x @ torch.ones(3), "the converted model failed on batch 0: RuntimeError"),
    ],
)
def test_another_structure_fails_and_is_named(converted: Any, note: str) -> None:
    found = _check(lambda x: x, converted, _policy())
    assert not found.passed
    assert any(note in each for each in found.notes)


def test_low_outputs_are_right_where_the_policy_wants_them() -> None:
    assert _check(lambda x: x, lambda x: x.bfloat16(), _policy(keep=False)).passed


def test_plain_that_cannot_run_is_a_note_only() -> None:
    def refuses(x: Tensor) -> Tensor:
        raise NotImplementedError('"linalg" not implemented for BFloat16\nand more')

    found = _check(lambda x: x, lambda x: x, _policy(), plain=refuses)
    assert found.passed
    assert found.outputs[0].plain_relative_l2 is None
    assert 'plain bf16 failed on batch 0: NotImplementedError: "linalg" not implemented for BFloat16' in found.notes


@pytest.mark.parametrize(
    ("text", "passed"),
    [("pass", True), ("fc1: size 24 is not divisible by 16", False), ("not checked: M depends on data", True)],
)
def test_shapes_check(text: str, passed: bool) -> None:
    found = _check(lambda x: x, lambda x: x, _policy(), shapes_check=lambda: text)
    assert (found.shapes, found.passed) == (text, passed)


@pytest.mark.parametrize(("error", "expected"), [(0.0, ""), (0.5, "fc/linear#0")])
def test_first_parting_is_asked_for_failures_only(error: float, expected: str) -> None:
    found = _check(lambda x: x, lambda x: x * (1 + error), _policy(), first_parting=lambda _: "fc/linear#0")
    assert found.first_parting == expected


def test_fp16_gradients_are_taken_under_a_loss_scale() -> None:
    class Half(Scaled):
        def forward(self, x: Tensor) -> Tensor:
            return (self.weight.half() * x.half()).float()

    # 1e-8 in fp16 is zero; under a loss scale of 2^16 it is not
    found = _check(Scaled(1.0), Half(1.0), _policy("training", "fp16"), loss=lambda y: y.sum() * 1e-9)
    assert found.passed
    assert found.gradients[0].relative_l2 < 1e-3
    assert "gradients of the converted model under loss scale 65536, the first that leaves them finite" in found.notes


def test_no_batch_is_an_input_error() -> None:
    with pytest.raises(InputError, match="at least one"):
        _check(lambda x: x, lambda x: x, _policy(), batches=[])


def test_two_verifications_are_equal() -> None:
    model = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    low = copy.deepcopy(model)
    with torch.no_grad():
        low[0].weight.mul_(1.001)
    first, second = (_check(model, low, _policy("training"), plain=low) for _ in range(2))
    assert first == second
    assert first.outputs[0].relative_l2 > 0


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_a_reference_that_fails_is_one_line_with_the_batch(mode: Mode) -> None:
    def narrow(x: Tensor) -> Tensor:
        if x.shape[0] != 2:
            raise ValueError("two rows\nand no more")
        return x

    batches = [((torch.ones(2),), {}), ((torch.ones(3),), {})]
    with pytest.raises(InputError, match=r"fails on batch 1 \(forward.*\): ValueError: two rows; mend it"):
        _check(narrow, narrow, _policy(mode), batches=batches)


class Floors(torch.nn.Module):
    """On small numbers fp16 decides alike; on 1900.7 and its like it rounds up to the next whole number."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shifted = x - 0.3
        return torch.floor(shifted) - torch.floor(shifted / 16) * 16


def test_the_first_parting_is_looked_for_on_the_batch_that_failed() -> None:
    import precision_audit as pa

    numbers = torch.arange(1.0, 17.0).repeat(2, 1)
    report = pa.audit(Floors(), (numbers,), policy="fp16-everywhere", calibration=[(numbers + 1900,)])
    found = report.verification
    assert found is not None and not found.passed
    assert found.first_parting.startswith("/floor#") or found.first_parting.startswith("/sub#")
    assert not any("backward" in note for note in found.notes)
