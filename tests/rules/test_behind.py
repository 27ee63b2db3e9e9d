"""Hazards behind a hazard: what the low model does behind elements that it lost is found, named and mended too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import precision_audit as pa
from precision_audit import policy as policies
from precision_audit.analyse import analyse
from precision_audit.capture import capture, private_copy
from precision_audit.hardware import device
from precision_audit.records import Evidence, Finding
from precision_audit.rules.rounds import added


class Behind(nn.Module):
    """Squares of about 300 exceed 65504; then a linear, and what `hazard` makes of numbers between 0 and 2."""

    def __init__(self, hazard: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.into, self.mid, self.out = (nn.Linear(16, 16, bias=False) for _ in range(3))
        with torch.no_grad():
            self.into.weight.copy_(torch.eye(16))
            self.mid.weight.copy_(torch.eye(16) + 0.01)
            self.out.weight.copy_(torch.eye(16).roll(1, 0))
        self.hazard = hazard

    def forward(self, x: Tensor) -> Tensor:
        squares = self.into(x) ** 2
        unit = squares / squares.amax(-1, keepdim=True)
        y: Tensor = self.out(self.hazard(self.mid(unit)))
        return y


def harmless(h: Tensor) -> Tensor:
    return torch.relu(h - 0.2)


def overflow(h: Tensor) -> Tensor:
    """1e-10 is zero in fp16, and over zero the quotient of 1e3 becomes infinite: only the low model shows it."""
    small = h * 1e-5
    return (small * 1e-2) / (small * small)


def visible_overflow(h: Tensor) -> Tensor:
    return (h * 400.0) ** 2 / 1e5


def cancellation(h: Tensor) -> Tensor:
    """Squares near 80 have steps of 1/16 in fp16; their variance is below 0.1."""
    high = h + 8
    variance = (high * high).mean(-1, keepdim=True) - high.mean(-1, keepdim=True) ** 2
    return h * torch.sqrt(variance)


def cancellation_behind_an_overflow(h: Tensor) -> Tensor:
    return cancellation(torch.tanh(overflow(h) / 1e3))


def _args() -> Tensor:
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(0)) * 20 + 300


# hazard behind the first → the rules one of which must name what it does, by the ops they name
BEHIND: dict[Callable[[Tensor], Tensor], dict[str, tuple[str, ...]]] = {
    overflow: {"/mul#1": ("PA110",), "/div#1": ("PA107", "PA110", "PA207")},
    visible_overflow: {"/pow#1": ("PA101",)},
    cancellation: {"/sub#0": ("PA204",)},
    cancellation_behind_an_overflow: {"/sub#0": ("PA204",)},
}


@pytest.mark.parametrize("hazard", BEHIND, ids=lambda each: each.__name__)
def test_what_lies_behind_an_overflow_is_named_and_mended(hazard: Callable[[Tensor], Tensor]) -> None:
    model, x = Behind(hazard), _args()
    result = pa.convert(model, (x,), policy="fp16-inference")
    told = {(each.op, each.rule): each for each in result.report.findings}
    assert told["/pow#0", "PA101"].severity == "error"
    behind = [told[op, rule] for op, rules in BEHIND[hazard].items() for rule in rules if (op, rule) in told]
    assert behind and all(each.resolved and each.severity != "note" for each in behind)
    with torch.no_grad():
        wanted, given = model(x), result.module(x)
    assert torch.isfinite(given).all()
    assert float((given - wanted).norm() / wanted.norm()) < 1e-2
    assert result.report.verdict == "READY"
    assert dict(result.plan.formats)["into/linear#0"] == "fp16"


@pytest.mark.parametrize(
    ("hazard", "further"),
    [(harmless, 1), (visible_overflow, 1), (cancellation, 2), (cancellation_behind_an_overflow, 2)],
    ids=lambda each: getattr(each, "__name__", str(each)),
)
def test_the_low_model_is_run_again_as_often_as_something_new_was_lost(
    hazard: Callable[[Tensor], Tensor], further: int
) -> None:
    """Once behind the first loss; again where that run lost something, or an output is off (the variance has lost its
    digits, no element), and a rule has named it. Twice at most."""
    model, x = Behind(hazard), _args()
    captured = capture(private_copy(model), (x,), mode="inference")
    facts = analyse(captured, policies.load("fp16-inference"), device("cpu-amx"), [((x,), {})])
    assert len(facts.again) == further
    assert "/pow#0" in facts.again[0].kept
    assert any(each.lost for each in facts.beside)
    assert set(facts.again[0].kept) <= set(facts.again[-1].kept)


def test_where_nothing_is_lost_nothing_is_run_again() -> None:
    model, x = Behind(harmless), _args() / 100
    captured = capture(private_copy(model), (x,), mode="inference")
    facts = analyse(captured, policies.load("fp16-inference"), device("cpu-amx"), [((x,), {})])
    assert facts.beside and not any(each.lost for each in facts.beside)
    assert facts.again == ()


def _said(fingerprint: str, severity: str, *pins: str) -> Finding:
    seen = Evidence("OBSERVED", "seen")
    return Finding("PA205", severity, "/op#0", "", "", seen, fingerprint=fingerprint, pins=pins)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("new", "kept", "expected"),
    [
        (_said("b", "note"), (), [("a", "note", ("x",)), ("b", "note", ())]),
        (_said("a", "note", "y"), (), [("a", "note", ("x",))]),  # known
        (_said("a", "error", "y"), (), [("a", "error", ("y", "x"))]),  # worse than could be seen
        (_said("a", "error", "y"), ("x",), [("a", "note", ("x",))]),  # out of the way in this run
        (_said("a", "error", "y"), ("/op#0",), [("a", "note", ("x",))]),
    ],
)
def test_what_a_later_run_adds(new: Finding, kept: tuple[str, ...], expected: list[object]) -> None:
    before = _said("a", "note", "x")
    found = added([before], [new], {"a": before}, frozenset(kept))
    assert [(each.fingerprint, each.severity, each.pins) for each in found] == expected


def test_what_was_kept_high_and_is_told_again_was_not_enough() -> None:
    before, new = _said("a", "error", "x"), _said("a", "warning", "x", "y")
    (found,) = added([before], [new], {"a": before}, frozenset({"/op#0"}))
    assert (found.severity, found.pins) == ("error", ("x", "y"))
