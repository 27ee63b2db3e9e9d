"""Shares of the outputs' error: against arithmetic in fp64, against errors that were measured, and their laws."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from precision_audit.analyse.predicted_error import predicted_error
from precision_audit.analyse.sensitivity import PROBES
from precision_audit.analyse.twin import Twin, probed_values
from precision_audit.records import Graph, Op, Operand
from precision_audit.records import Tensor as Shape
from tests.analyse.small import Seen, seen


class Diagonal(nn.Module):
    """y = (x + 1) * w: the gradient at x + 1 is w, at w it is x + 1, whatever the probe's signs."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = (x + 1.0) * self.weight
        return y


def _bf16(value: Tensor) -> Tensor:
    return value.bfloat16().double()


@pytest.fixture(scope="module")
def diagonal() -> tuple[Seen, Tensor, Tensor]:
    torch.manual_seed(0)
    weight, x = torch.rand(500) + 0.5, torch.rand(500) + 0.5
    return seen(Diagonal(weight), x), weight, x


def test_shares_of_a_linear_chain_by_hand(diagonal: tuple[Seen, Tensor, Tensor]) -> None:
    found, weight, x = diagonal
    w, stream = weight.double(), x.double() + 1.0
    norm = float((stream * w).norm())
    rounded = _bf16(x)
    low_stream = _bf16((rounded + 1.0).float())
    low_weight = _bf16(weight)
    product = _bf16((low_stream * low_weight).float())
    by_hand = {
        ("cast:x", "/add#0"): (_bf16(x) - x.double()) * w,
        ("/add#0", ""): (low_stream - (rounded + 1.0)) * w,
        ("cast:weight", "/mul#0"): (low_weight - w) * stream,
        ("cast:/add#0", "/mul#0"): (_bf16(stream.float()) - stream) * w,
        ("/mul#0", ""): product - low_stream * low_weight,
    }
    for (source, reader), error in by_hand.items():
        assert found.share(source, reader).share == pytest.approx(float(error.square().sum()) / norm**2, rel=1e-3)


def test_a_plan_adds_up_the_sources_it_has(diagonal: tuple[Seen, Tensor, Tensor]) -> None:
    found, _, _ = diagonal
    graph, shares = found.captured.graph, found.shares
    sources = [("cast:x", "/add#0"), ("/add#0", ""), ("cast:weight", "/mul#0"), ("/mul#0", "")]
    whole = sum(found.share(source, reader).share for source, reader in sources)
    assert predicted_error(shares, found.all_low(), graph) == pytest.approx(math.sqrt(whole))
    kept = found.without(("/add#0",))  # its sum is rounded for the product all the same
    sources = [("cast:/add#0", "/mul#0"), ("cast:weight", "/mul#0"), ("/mul#0", "")]
    part = sum(found.share(source, reader).share for source, reader in sources)
    assert predicted_error(shares, kept, graph) == pytest.approx(math.sqrt(part))
    assert predicted_error(shares, found.without(("/add#0", "/mul#0")), graph) == 0.0


class TwoReaders(nn.Module):
    """y = 3x - 2x, read by two ops: errors of the one rounding cancel where both read low, as the cross term says."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x * 4.0 - x * 2.0
        return y


def test_readers_of_one_rounding_have_a_cross_term() -> None:
    torch.manual_seed(0)
    x = torch.randn(300)
    found = seen(TwoReaders(), x)
    exact = 2 * x.double()
    error = float((_bf16(x) - x.double()).square().sum() / exact.square().sum())
    assert found.share("cast:x", "/mul#0").share == pytest.approx(16 * error, rel=1e-3)
    assert found.share("cast:x", "/mul#1").share == pytest.approx(4 * error, rel=1e-3)
    assert found.share("cast:x", "/mul#0", "/mul#1").share == pytest.approx(-16 * error, rel=1e-3)
    assert predicted_error(found.shares, found.all_low(), found.captured.graph) == pytest.approx(
        found.error(found.all_low()), rel=0.05
    )


class Coherent(nn.Module):
    """The mean of numbers that are all rounded the same way: 1 + 2^-9 becomes 1 in bf16, everywhere."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * 1.0).mean(0, keepdim=True)


def test_errors_that_go_together_are_counted_together() -> None:
    found = seen(Coherent(), torch.full((1024, 1), 1 + 2.0**-9))
    one = 2.0**-9 / (1 + 2.0**-9)  # every element is off by this much, and so is their mean
    assert found.share("cast:x", "/mul#0").share == pytest.approx(one**2, rel=1e-3)
    assert found.error(found.all_low()) == pytest.approx(one, rel=1e-3)


class Random(nn.Module):
    """A network of a seed: linears, norms, gates and sums in an order of its own."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.linears = nn.ModuleList(nn.Linear(32, 32) for _ in range(6))
        self.norm = nn.LayerNorm(32)
        self.order = torch.randint(0, 4, (6,)).tolist()

    def forward(self, x: Tensor) -> Tensor:
        for which, linear in zip(self.order, self.linears, strict=True):
            y = linear(x)
            if which == 0:
                x = x + torch.relu_(y)
            elif which == 1:
                x = self.norm(y) * torch.sigmoid(x)
            elif which == 2:
                x = torch.softmax(y, -1) @ y.transpose(0, 1) @ x
            else:
                x = torch.cat((y[:, :16].exp().clamp(max=4.0), x[:, 16:]), -1)
        return x


@pytest.mark.parametrize("low", ["bf16", "fp16"])
@pytest.mark.parametrize("seed", range(4))
def test_predicted_beside_measured_error(seed: int, low: str) -> None:
    found = seen(Random(seed), torch.randn(24, 32, generator=torch.Generator().manual_seed(seed)), low=low)
    assert all(share.known for share in found.shares) and found.notes == ()
    some = tuple(op.key for op in found.captured.graph.ops if "/" in op.key)[seed % 3 :: 3]
    for plan in (found.all_low(), found.without(some)):
        predicted = predicted_error(found.shares, plan, found.captured.graph)
        assert 0.5 < predicted / found.error(plan) < 2.0


class Written(nn.Module):
    """In place, on a view, under no_grad, behind a detach, with statistics: no plain backward pass sees it all."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc, self.norm = nn.Linear(16, 16), nn.BatchNorm1d(16)
        self.total: Tensor
        self.register_buffer("total", torch.zeros(16))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.fc(x))
        with torch.no_grad():
            scale = (x * 2.0).exp()
        y = torch.zeros_like(x)
        y[:, :8] = x[:, :8] * scale[:, :8].detach()
        y[:, 8:].add_(x[:, 8:])
        self.total += y.mean(0)
        z: Tensor = y.mul_(3.0) + self.total
        return z


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_what_is_written_in_place_or_detached_counts(mode: Any) -> None:
    model = Written()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = seen(model, torch.randn(32, 16, generator=torch.Generator().manual_seed(1)), mode=mode)
    assert all(share.known for share in found.shares) and found.notes == ()
    assert found.share("/exp#0").share > 0  # made under no_grad, read behind a detach: the output has it all the same
    assert found.share("cast:fc.weight", "fc/linear#0").share > 0
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert not any(parameter.grad is not None for parameter in model.parameters())


def test_measured_too_where_values_are_written_in_place() -> None:
    found = seen(Written().eval(), torch.randn(32, 16, generator=torch.Generator().manual_seed(1)))
    predicted = predicted_error(found.shares, found.all_low(), found.captured.graph)
    assert 0.5 < predicted / found.error(found.all_low()) < 2.0


class Decides(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(x)
        return y.argmax(-1)


def test_of_an_integer_output_the_last_float_is_probed() -> None:
    found = seen(Decides(), torch.randn(20, 16))
    assert probed_values(found.captured.graph) == ("fc/linear#0",)
    share = found.share("fc/linear#0")
    drift = found.by_value("fc/linear#0").fresh  # of the scores, relative to their norm: nothing is amplified
    assert share.known and math.sqrt(share.share) == pytest.approx(drift, rel=0.02)
    (flip,) = found.deltas.flips
    assert flip.op == "/argmax#0" and flip.sigma > 0 and flip.margin > 0


class Steps(nn.Module):
    """The product reaches the output only by a comparison: nothing can be said of its error by a gradient."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = ((x * 3.0) > 1.0).float() * 2.0
        return y


def test_what_no_gradient_leads_from_is_unknown() -> None:
    found = seen(Steps(), torch.rand(50))
    assert not found.share("/mul#0").known
    assert not found.share("cast:x", "/mul#0").known
    assert found.share("/mul#1").known


@pytest.mark.parametrize("function", [torch.special.bessel_j0, lambda x: torch.heaviside(x, torch.ones(()))])
def test_a_path_that_an_op_without_derivative_cuts_is_unknown(function: Any) -> None:
    class Cut(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = function(x * 3.0) + x * 5.0
            return y

    found = seen(Cut(), torch.rand(50))
    assert not found.share("/mul#0").known
    assert not found.share("cast:x", "/mul#1").known  # what else x does is seen, what it does to mul#0 is not
    assert found.share("/mul#1").known and found.share("/add#0").known


def test_a_count_of_decisions_cuts_nothing() -> None:
    """A router: the tokens of each expert are counted, and neither the count nor its kernel has a gradient."""

    class Router(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.gate = nn.Linear(16, 4)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            weights, chosen = torch.softmax(self.gate(x), -1).max(-1)
            counts = torch.histc(chosen.float(), bins=4, min=0, max=3).cumsum(0, dtype=torch.int32)
            return x * weights[:, None], counts

    found = seen(Router(), torch.randn(32, 16))
    assert found.notes == () and found.share("gate/linear#0").known and found.share("gate/linear#0").share > 0


def test_zero_outputs_are_taken_absolutely_and_it_is_said() -> None:
    class Zero(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x * 1.1) * 0.0

    found = seen(Zero(), torch.rand(10))
    assert any("absolute" in note for note in found.notes)
    assert predicted_error(found.shares, found.all_low(), found.captured.graph) == 0.0


def test_outputs_are_each_relative_to_their_norm() -> None:
    class Pair(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x * 1.1, (x * 1.1) * 1024.0  # a power of two: same relative error, a thousand times the norm

    found = seen(Pair(), torch.rand(200) + 1.0)
    first = found.by_value("/mul#0").drift
    assert found.by_value("/mul#2").drift == pytest.approx(first)
    predicted = predicted_error(found.shares, found.all_low(), found.captured.graph)
    assert predicted == pytest.approx(math.sqrt(2) * first, rel=0.2)


def test_lost_elements_count_as_lost_and_masked_ones_as_nothing() -> None:
    class Masked(nn.Module):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return torch.softmax(x + mask, -1)

    mask = torch.tensor([0.0, 0.0, -1e9])  # beyond fp16, and without influence on the softmax
    found = seen(Masked(), torch.randn(4, 3), mask, low="fp16")
    assert found.share("cast:mask", "/add#0").share == 0.0
    overflow = seen(Diagonal(torch.tensor([1.0, 7e4])), torch.ones(2), low="fp16")
    assert math.isinf(overflow.share("cast:weight", "/mul#0").share)


def test_at_most_eight_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One lockstep run, one forward run of the twin, the rest backward."""
    passes: list[str] = []
    original, forward = torch.autograd.grad, Twin.run

    def grad(*args: Any, **kwargs: Any) -> Any:
        passes.append("backward")
        return original(*args, **kwargs)

    def run(self: Twin, inputs: list[Any]) -> None:
        passes.append("forward")
        forward(self, inputs)

    monkeypatch.setattr(torch.autograd, "grad", grad)
    monkeypatch.setattr(Twin, "run", run)
    found = seen(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)), torch.randn(4, 8))
    assert passes == ["forward"] + ["backward"] * PROBES
    assert 1 + len(passes) <= 8 and found.shares


def test_values_that_reach_no_output_add_nothing() -> None:
    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen: Tensor
            self.register_buffer("seen", torch.zeros(10))

        def forward(self, x: Tensor) -> Tensor:
            self.seen.copy_(x * 3.3)
            return x * 1.1

    found = seen(Idle(), torch.rand(10))
    shares = {share.source: share for share in found.shares if not share.reader}
    assert shares["/mul#0"].known and shares["/mul#0"].share == 0.0
    assert shares["/mul#1"].share > 0


def test_ancestors_lead_through_integers() -> None:
    shape = Shape("fp32", (2,), (2,))
    ops = (
        Op("x", "placeholder", "input", "input", "", "", (), (shape,)),
        Op("/mul#0", "", "mul", "", "", "", (Operand("x", "self"),), (shape,)),
        Op("/argmax#0", "", "argmax", "", "", "", (Operand("/mul#0", "self"),), (Shape("int64", (), ()),)),
    )
    graph = Graph(ops, ("/argmax#0",), "inference")
    assert probed_values(graph) == ("/mul#0",)
