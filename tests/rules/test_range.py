"""Range rules PA101 to PA113: what they find in many spellings, what they leave alone, what converting makes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import precision_audit as pa
from precision_audit import hardware, policy
from precision_audit.analyse import analyse
from precision_audit.capture import capture, private_copy
from precision_audit.decide import decide
from precision_audit.formats import FORMATS
from precision_audit.records import Evidence, Facts, Finding, Inner
from precision_audit.rules.limits import overflows_at, share_beyond
from tests.rules import range_bad_masks, range_bad_overflow, range_bad_vanish, range_good
from tests.rules.range_models import BAD, GOOD, Around, noise, padded, scores_of, spiked

MODELS = (range_bad_overflow, range_bad_masks, range_bad_vanish, range_good)  # imported to fill BAD and GOOD
RANGE = tuple(f"PA{number}" for number in range(101, 114))


def _run(
    model: nn.Module, args: tuple[Any, ...], name: str, batches: int = 1, more: tuple[Any, ...] = ()
) -> tuple[Finding, ...]:
    """Findings of the range rules without a conversion."""
    made = policy.load(name)
    captured = capture(private_copy(model), args, mode=made.mode)
    device = hardware.device(made.device or "local")
    facts = analyse(captured, made, device, [*[(args, {})] * batches, *more])
    return _of_range(decide(captured.graph, made, device, {}, facts=facts).findings)


def _of_range(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    return tuple(each for each in findings if each.rule in RANGE)


def _serious(findings: tuple[Finding, ...]) -> list[tuple[str, str, str]]:
    return [(each.rule, each.op, each.message) for each in _of_range(findings) if each.severity != "note"]


def _error(made: Any, expected: Any) -> float:
    """The largest relative L2 over outputs; infinite where one is not finite."""
    worst = 0.0
    for one, other in zip(pytree.tree_leaves(made), pytree.tree_leaves(expected), strict=True):
        if not bool(torch.isfinite(one).all()):
            return float("inf")
        worst = max(worst, float((one.double() - other.double()).norm() / other.double().norm()))
    return worst


@pytest.mark.parametrize("name", BAD)
def test_the_hazard_is_named_at_its_line_and_converting_resolves_it(name: str) -> None:
    codes, make, args = BAD[name]
    model = make()
    with torch.no_grad():
        expected = model(*args)
        conversion = pa.convert(model, args, policy="fp16-inference", verify=False)
        made = conversion.module(*args)
    told = [each for each in _of_range(conversion.report.findings) if each.severity != "note"]
    assert told and {each.rule for each in told} <= set(codes)
    for each in told:
        assert each.source is not None and each.source.text.endswith("# guilty")
        assert each.resolved and each.pins and each.remedy and each.evidence.text
    assert _error(made, expected) < 1e-2
    runs_low = [key for key, chosen in conversion.plan.formats if "/" in key and chosen == "fp16"]
    assert runs_low  # what is harmless in it still does


@pytest.mark.parametrize("name", BAD)
def test_fp16_as_a_whole_fails_where_a_hazard_is_claimed(name: str) -> None:
    """The models are bad indeed. A mask of -1e9 that only becomes -inf does well on these inputs."""
    _, make, args = BAD[name]
    with torch.no_grad():
        expected = make()(*args)
        try:
            low = make().half()(*(each.half() if each.is_floating_point() else each for each in args))
        except RuntimeError:
            return
    masks_that_only_become_infinite = name.startswith("mask_")
    assert _error(low, expected) > 0.1 or masks_that_only_become_infinite


@pytest.mark.parametrize("name", GOOD)
def test_harmless_neighbours_are_left_alone_in_fp16(name: str) -> None:
    make, args = GOOD[name]
    assert _serious(_run(make(), args, "fp16-inference")) == []


# bf16 has the range of fp32; numbers next to one are all that is at stake there.
IN_BF16 = [pytest.param(name, marks=pytest.mark.slow) for name, row in BAD.items() if "PA108" not in row[0]]


@pytest.mark.parametrize("name", [*GOOD, *IN_BF16])
def test_bf16_is_not_condemned(name: str) -> None:
    make, args = GOOD[name] if name in GOOD else BAD[name][1:]
    assert _serious(_run(make(), args, "bf16-inference")) == []


@pytest.mark.parametrize("name", [name for name, (codes, _, _) in BAD.items() if "PA108" in codes])
def test_next_to_one_is_at_stake_in_bf16_too(name: str) -> None:
    _, make, args = BAD[name]
    assert {rule for rule, _, _ in _serious(_run(make(), args, "bf16-inference"))} == {"PA108"}


@pytest.mark.parametrize("name", ["rms_norm_by_square", "mask_by_masked_fill", "eps_beside_a_norm"])
def test_nothing_is_said_where_nothing_runs_low(name: str) -> None:
    _, make, args = BAD[name]
    assert _run(make(), args, "fp32") == ()


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("mask_by_masked_fill", "PA104"),
        ("mask_by_full", "PA104"),
        ("eps_beside_a_norm", "PA107"),
        ("eps_as_a_floor", "PA107"),
        ("log_with_eps", "PA109"),
        ("log_of_one_minus_a_probability", "PA108"),
    ],
)
def test_what_is_written_in_the_code_is_proved_without_inputs(name: str, code: str) -> None:
    _, make, args = BAD[name]
    told = [each for each in _run(make(), args, "fp16-inference", batches=0) if each.severity != "note"]
    assert [each.rule for each in told] == [code] and told[0].evidence.basis == "PROVED"


@pytest.mark.parametrize("name", GOOD)
def test_harmless_neighbours_without_inputs(name: str) -> None:
    make, args = GOOD[name]
    proved = _run(make(), args, "fp16-inference", batches=0)
    exempt = ("eps_beside_a_sum_of_probabilities", "clamp_next_to_one_that_guards_nothing")  # only inputs tell
    assert _serious(proved) == [] or name in exempt or name.startswith("settled_")


@pytest.mark.parametrize(
    ("name", "kept"),
    [("settled_mask_by_where", []), ("saturated_tanh", ["into/linear#0", "/tanh#0"])],
)
def test_a_mask_runs_low_and_a_result_out_of_range_does_not(name: str, kept: list[str]) -> None:
    """The range of an op's own result decides, even where every reader takes it back."""
    make, args = GOOD[name]
    formats = pa.convert(make(), args, policy="fp16-inference").plan.formats
    assert [key for key, chosen in formats if "/" in key and chosen != "fp16"] == kept


# What a number of 65520 and more would have given is another thing here.
UNSAFE: dict[str, Callable[[Tensor], Tensor]] = {
    "scaled back before the clamp": lambda x: torch.clamp(x * 1e-4, -100.0, 100.0),
    "clamped on one side only": lambda x: torch.clamp(x, min=-5.0) / 1e4,
    "shifted by as much": lambda x: torch.tanh(x - 65536.0),
    "subtracted from its like": lambda x: torch.tanh(x - x.flip(0) * 1.01),
    "a bound beyond the range": lambda x: torch.clamp(x, -70000.0, 70000.0) / 1e4,
    "weighed by itself": lambda x: F.silu(-x),
    "also returned": lambda x: torch.stack([torch.tanh(x), x / 1e5]),
    "two such numbers divided": lambda x: torch.tanh(x / (1 + x.abs())),
}


@pytest.mark.parametrize("name", UNSAFE)
def test_what_does_not_saturate_is_told(name: str) -> None:
    def forward(self: Any, x: Tensor) -> Any:
        return UNSAFE[name](x)

    found = _run(Around(forward, 300.0), (noise(4, 16) * 300,), "fp16-inference")
    finding = next(each for each in found if each.rule == "PA101")
    assert finding.severity != "note" and finding.pins


@pytest.mark.parametrize("name", ["true infinities beside it", "from the inputs", "no element is left"])
def test_a_mask_that_may_fill_a_row_stays_a_hazard(name: str) -> None:
    def forward(self: Any, x: Tensor, keep: Tensor) -> Any:
        if name == "from the inputs":
            return (scores_of(x) + (1 - keep) * -1e9).softmax(-1)
        future = torch.ones(6, 6).triu(0 if name == "no element is left" else 1).bool()
        scores = torch.where(future, -1e9, scores_of(x))
        if name == "true infinities beside it":
            scores = scores.masked_fill(keep == 0, -torch.inf)
        return scores.softmax(-1)

    keep = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    told = _serious(_run(Around(forward), (noise(2, 6, 16), keep), "fp16-inference"))
    assert [rule for rule, _, _ in told] == ["PA104"]


@pytest.mark.parametrize(("height", "told"), [(170.0, []), (200.0, ["note"]), (250.0, ["note"]), (256.5, ["error"])])
def test_headroom_is_a_note_and_overflow_an_error(height: float, told: list[str]) -> None:
    """Squares 28900, 40000, 62500 and 65792 against a limit of 65504, of which half is 32752."""

    def forward(self: Any, x: Tensor) -> Any:
        return (x / x.abs().max() * height).square().mean(-1)

    findings = _run(Around(forward), (torch.eye(16) + 0.001,), "fp16-inference")
    assert [each.severity for each in findings] == told


def test_a_later_batch_tells_what_the_example_does_not() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)

    more: tuple[Any, ...] = (((noise(5, 16),), {}), ((spiked(),), {}))
    assert _serious(_run(Around(forward), (noise(5, 16),), "fp16-inference")) == []
    (finding,) = _run(Around(forward), (noise(5, 16),), "fp16-inference", more=more)
    assert finding.rule == "PA101" and dict(finding.evidence.numbers)["batch"] == 2
    assert dict(finding.evidence.numbers)["amax"] == pytest.approx(420.0**2)
    assert dict(finding.evidence.numbers)["share"] == pytest.approx(5 / 240)


def test_a_fingerprint_does_not_depend_on_what_was_measured() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)

    (one,) = _run(Around(forward), (spiked(420.0),), "fp16-inference")
    (other,) = _run(Around(forward), (spiked(700.0),), "fp16-inference")
    assert one.message != other.message and one.fingerprint == other.fingerprint


def test_several_calls_of_one_module_are_told_one_by_one() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        return self.into(self.into(x * 300.0).square() / 90000.0) * 300.0 * 300.0

    findings = [each for each in _run(Around(forward), (noise(4, 16),), "fp16-inference") if each.severity == "error"]
    assert [each.op for each in findings] == ["/mul#2", "/square#0"]  # sorted by key


@pytest.mark.parametrize(("name", "limit"), [("fp16", 65520.0), ("bf16", 2.0**128 - 2.0**119), ("fp8_e5m2", 61440.0)])
def test_the_smallest_number_that_rounds_to_infinity(name: str, limit: float) -> None:
    """Half a step above the largest: steps of 32, of 2**120 and of 8192."""
    assert overflows_at(FORMATS[name]) == limit


def test_the_share_beyond_the_limit_comes_from_the_histogram() -> None:
    from precision_audit.records import Range

    seen = Range("/x#0", "OBSERVED", 100, 2e5, 1.0, 0.0, 2e5, histogram=((0, 90), (15, 6), (16, 3), (17, 1)))
    assert share_beyond(seen, 65504.0) == pytest.approx(0.04)


# -- inside an op, on facts made by hand -------------------------------------------------------------------------------


def _inside(inner: tuple[Inner, ...], device: str, model: nn.Module, args: tuple[Tensor, ...]) -> tuple[Finding, ...]:
    made = policy.load("fp16-inference")
    captured = capture(private_copy(model), args, mode=made.mode)
    found = decide(captured.graph, made, hardware.device(device), {}, facts=Facts(batches=1, inner=inner)).findings
    return tuple(each for each in found if each.rule == "PA102")


class Norm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.layer_norm(x, (16,))


@pytest.mark.parametrize(
    ("held", "amax", "kernels", "found"),
    [
        ("own", 7e4, "", True),
        ("own", 6e4, "", False),
        ("accumulator", 7e9, "", False),  # layer_norm sums in fp32 on every device
        ("own", 7e4, "cuda", True),
        ("own", 7e4, "cpu", False),  # of another device's kernels
    ],
)
def test_an_inner_number_counts_in_the_format_it_is_held_in(held: Any, amax: float, kernels: str, found: bool) -> None:
    inner = (Inner("/layer_norm#0", "sum of squares", amax, 1.0, held, 3, kernels),)
    told = _inside(inner, "h100", Norm(), (noise(4, 16),))
    assert bool(told) == found
    if found:
        assert told[0].op == "/layer_norm#0" and told[0].pins == ("/layer_norm#0",)
        assert "sum of squares" in told[0].message and dict(told[0].evidence.numbers)["batch"] == 3


# -- autocast ----------------------------------------------------------------------------------------------------------


def test_what_autocast_keeps_high_is_no_finding_under_it() -> None:
    """torch.autocast runs pow in fp32 on CUDA, but not a matmul."""
    kept = pa.audit(BAD["rms_norm_by_square"][1](), (spiked(),), policy="amp-cuda-bf16")
    assert _serious(kept.findings) == []


def test_zero_rows_decide_between_error_and_note() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        return x / (x.norm(dim=-1, keepdim=True) + 1e-12)

    (zero,) = _run(Around(forward), (padded(),), "fp16-inference")
    (full,) = _run(Around(forward), (noise(5, 16),), "fp16-inference")
    assert (zero.severity, full.severity) == ("error", "note")
    assert isinstance(zero.evidence, Evidence) and zero.fingerprint == full.fingerprint


def test_nan_is_told_at_its_first_producer_and_counts_in_no_range() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        return torch.log(x) * 2

    more: tuple[Any, ...] = (((torch.full((2, 16), -1.0),), {}),)
    (finding,) = _run(Around(forward), (torch.ones(2, 16),), "fp16-inference", more=more)
    assert (finding.rule, finding.op, finding.severity) == ("PA113", "/log#0", "note")
    assert dict(finding.evidence.numbers) == {"nan": 32.0, "count": 64.0, "batch": 1.0}


# -- a mask that is the same for all inputs, and what is not -----------------------------------------------------------

CAUSAL = torch.ones(6, 6).triu(1) * -1e9


def _with_mask(forward: Callable[..., Any], *more: Tensor) -> list[tuple[str, str]]:
    found = _run(Around(forward, mask=CAUSAL), (noise(2, 6, 16), *more), "fp16-inference")
    return [(each.rule, each.severity) for each in found if each.rule in ("PA104", "PA106")]


def test_a_causal_mask_beside_scores_is_a_note() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        return torch.softmax(scores_of(x) * 2 + self.mask[None], -1) @ x

    assert _with_mask(forward) == [("PA106", "note")]


KEEP = torch.ones(6)
MEETS: dict[str, Callable[[Any, Tensor, Tensor], Tensor]] = {
    "a second mask": lambda self, x, keep: torch.softmax(scores_of(x) + self.mask + (1 - keep) * -1e4, -1),
    "a mask before the scores": lambda self, x, keep: torch.softmax(scores_of(x) + (self.mask + (1 - keep)), -1),
    "a second reader": lambda self, x, keep: (scores_of(x) + self.mask).softmax(-1) + (self.mask * keep).exp(),
    "a gate": lambda self, x, keep: torch.softmax((scores_of(x) + self.mask) * keep, -1),
    "an index": lambda self, x, keep: torch.softmax(scores_of(x) + self.mask[:, keep.argsort()], -1),
    "numbers that are no scores": lambda self, x, keep: torch.softmax(keep.log() + self.mask, -1),
}


@pytest.mark.parametrize("name", MEETS)
def test_a_causal_mask_that_meets_more_than_scores_stays_a_hazard(name: str) -> None:
    def forward(self: Any, x: Tensor, keep: Tensor) -> Any:
        return MEETS[name](self, x, keep)

    (told, *_) = _with_mask(forward, KEEP)
    assert told[1] in ("warning", "error")


@pytest.mark.parametrize("name", ["product", "where"])
def test_a_mask_that_masks_nothing_on_these_inputs(name: str) -> None:
    """Every row is whole here; one that is masked as a whole is NaN in a model that is cast, and right if converted."""

    def forward(self: Any, x: Tensor, keep: Tensor) -> Any:
        if name == "where":
            return torch.where(keep > 0, scores_of(x), -1e9).softmax(-1) @ x
        return (scores_of(x) + (1 - keep) * -1e9).softmax(-1) @ x

    model, args = Around(forward).eval(), (noise(2, 6, 16), KEEP)
    result = pa.convert(model, args, policy="fp16-inference")
    (told,) = [each for each in result.report.findings if each.rule == "PA104"]
    assert (told.severity, told.resolved) == ("warning", True)
    masked = (args[0], torch.zeros(6))
    assert _error(result.module(*masked), model(*masked)) < 1e-2


@pytest.mark.parametrize("name", ["softplus of little", "leaky without a slope"])
def test_what_keeps_an_infinity_that_is_none(name: str) -> None:
    """softplus(-67000, beta=1e-4) is 12 and more; zero times infinity is NaN."""

    def forward(self: Any, x: Tensor) -> Any:
        if name == "softplus of little":
            return F.softplus(-x.abs() * 3, beta=1e-4)
        return F.leaky_relu(-x.abs() * 3, 0.0).tanh()

    found = _run(Around(forward), (noise(4, 16) * 22000,), "fp16-inference")
    assert next(each.severity for each in found if each.rule == "PA101") != "note"


def test_infinities_of_a_model_that_is_given_in_fp16() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-4)

    model, x = Around(forward).half().eval(), noise(4, 16).half() * 300
    (told,) = [each for each in pa.audit(model, (x,), policy="fp16-inference").findings if each.rule == "PA101"]
    assert (told.op, told.severity, told.resolved) == ("/pow#0", "warning", False)
    assert dict(told.evidence.numbers)["infinite"] == float((x.float() ** 2 > 65519).sum())
    assert not pa.audit(model, (x / 300,), policy="fp16-inference").findings
