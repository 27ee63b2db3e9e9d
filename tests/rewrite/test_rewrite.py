"""Rewrite: plans written by hand, applied to small captured models."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from precision_audit.capture import Captured, capture, private_copy
from precision_audit.records import Cast, Fold, Mode, Plan
from precision_audit.rewrite import rewrite, unchanged
from precision_audit.rewrite.converted import Converted


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.relu(self.a(x)))


def make(
    model: nn.Module,
    args: tuple[Any, ...],
    formats: dict[str, str],
    casts: tuple[Cast, ...] = (),
    mode: Mode = "inference",
    low: str = "bf16",
    **options: Any,
) -> tuple[Converted, Captured]:
    captured = capture(private_copy(model), args, mode=mode)
    plan = Plan("hand", mode, "fp32", low, tuple(formats.items()), casts, **options)
    return rewrite({mode: captured}, {mode: plan}, signature=inspect.signature(model.forward)), captured


PARAMETERS = ("a.weight", "a.bias", "b.weight", "b.bias")
LOW = {"a/linear#0": "bf16", "/relu#0": "bf16", "b/linear#0": "bf16"}
READER = {name: f"{name[0]}/linear#0" for name in PARAMETERS}
EDGES = (Cast("x", "bf16", ("a/linear#0",)), Cast("b/linear#0", "fp32", ("output:0",)))


def test_folded_weights_compute_what_a_low_module_computes() -> None:
    model, x = Two(), torch.randn(4, 8)
    folds = tuple(Fold(name, "bf16", (READER[name],)) for name in PARAMETERS)
    converted, _ = make(model, (x,), LOW, EDGES, folds=folds)
    expected = copy.deepcopy(model).bfloat16()(x.bfloat16()).float()
    assert torch.equal(converted(x), expected)
    assert {name: value.dtype for name, value in converted.state_dict().items()} == dict.fromkeys(
        PARAMETERS, torch.bfloat16
    )
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


def test_training_keeps_fp32_parameters_and_their_gradients() -> None:
    model, x = Two(), torch.randn(4, 8)
    casts = EDGES + tuple(Cast(name, "bf16", (READER[name],)) for name in PARAMETERS)
    converted, _ = make(model, (x,), LOW, casts, "training")
    converted(x).sum().backward()
    twin = copy.deepcopy(model).bfloat16()
    twin(x.bfloat16()).float().sum().backward()
    for name, parameter in converted.named_parameters():
        assert parameter.dtype == parameter.grad.dtype == torch.float32
        assert torch.equal(parameter.grad, twin.get_parameter(name).grad.float()), name


def test_a_parameter_read_both_ways_is_kept_twice_and_follows_its_checkpoint() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 8))

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.weight) + self.weight.sum()

    model, x = Both(), torch.randn(4, 8)
    converted, _ = make(
        model,
        (x,),
        {"/linear#0": "bf16"},
        (Cast("x", "bf16", ("/linear#0",)), Cast("/linear#0", "fp32", ("/add#0",))),
        folds=(Fold("weight", "bf16", ("/linear#0",), copy=True, bytes=128),),
    )

    def expected(weight: Tensor) -> Tensor:
        return F.linear(x.bfloat16(), weight.bfloat16()).float() + weight.sum()

    assert list(converted.state_dict()) == ["weight"]
    assert torch.equal(converted(x), expected(model.weight))
    other = Both()
    converted.load_state_dict(other.state_dict())
    assert torch.equal(converted(x), expected(other.weight))


def test_readers_before_and_after_a_write_see_different_numbers() -> None:
    class Writes(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = x * 2
            before = y.exp()
            y.add_(1)
            return before, y.cos()

    x = torch.randn(4, 8)
    cast = Cast("/mul#0", "bf16", ("/exp#0",))
    later = Cast("/add#0", "bf16", ("/cos#0",))
    up = (Cast("/exp#0", "fp32", ("output:0",)), Cast("/cos#0", "fp32", ("output:1",)))
    converted, _ = make(Writes(), (x,), {"/exp#0": "bf16", "/cos#0": "bf16"}, (cast, later, *up))
    before, after = converted(x)
    assert torch.equal(before, (x * 2).bfloat16().exp().float())
    assert torch.equal(after, (x * 2 + 1).bfloat16().cos().float())


def test_one_output_of_several_is_cast() -> None:
    class Largest(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            values, indices = x.max(-1)
            return values.exp(), indices

    x = torch.randn(4, 8)
    converted, _ = make(
        Largest(),
        (x,),
        {"/exp#0": "bf16"},
        (Cast("/max#0:0", "bf16", ("/exp#0",)), Cast("/exp#0", "fp32", ("output:0",))),
    )
    values, indices = converted(x)
    assert torch.equal(values, x.max(-1).values.bfloat16().exp().float())
    assert torch.equal(indices, x.max(-1).indices)


class Masks(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        keep = x > 0
        follows = x.masked_fill(keep, torch.finfo(x.dtype).min)
        beyond = x.masked_fill(keep, -1e9)
        endless = x.masked_fill(keep, float("-inf"))
        zeros = torch.zeros(2, dtype=x.dtype)
        made = torch.ones(2)
        return follows, beyond, endless, zeros, made


@pytest.mark.parametrize(("low", "lowest"), [("fp16", -65504.0), ("bf16", -(2.0 - 2.0**-7) * 2.0**127)])
def test_literals_are_those_of_the_chosen_format(low: str, lowest: float) -> None:
    x = torch.ones(1, 4)
    fills = ("/masked_fill#0", "/masked_fill#1", "/masked_fill#2")
    formats = dict.fromkeys((*fills, "/zeros#0", "/ones#0"), low)
    converted, _ = make(Masks(), (x,), formats, (Cast("x", low, fills),), low=low)
    follows, beyond, endless, zeros, made = converted(x)
    kind = {"fp16": torch.float16, "bf16": torch.bfloat16}[low]
    assert {value.dtype for value in (follows, beyond, endless, zeros, made)} == {kind}
    assert follows.float().unique().item() == lowest
    rounded = -65504.0 if low == "fp16" else torch.tensor(-1e9).bfloat16().item()  # in range: rounded as any number is
    assert beyond.float().unique().item() == rounded
    assert endless.unique().item() == float("-inf")


def test_nodes_say_what_they_now_hold_and_why() -> None:
    converted, _ = make(Two(), (torch.randn(4, 8),), LOW, EDGES)
    values = {node.name: node.meta["val"].dtype for node in converted.graph.nodes if "val" in node.meta}
    assert values["linear"] == values["relu"] == values["linear_1"] == torch.bfloat16
    casts = [node for node in converted.graph.nodes if "cast" in node.meta]
    assert [node.meta["val"].dtype for node in casts] == [torch.bfloat16, torch.float32]
    assert all(node.meta["decision"].startswith("cast to") for node in casts)


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.bn = nn.Linear(8, 8), nn.BatchNorm1d(8)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return F.dropout(self.bn(self.fc(x)), 0.5, self.training) * scale


def both() -> tuple[nn.Module, Converted, Tensor]:
    model, x = Normed(), torch.randn(4, 8)
    private = private_copy(model)
    captures = {mode: capture(private, (x,), mode=mode) for mode in ("training", "inference")}
    return model, unchanged(captures, signature=inspect.signature(model.forward)), x


def test_training_and_evaluation_share_state_and_switch() -> None:
    model, converted, x = both()
    for training in (True, False, True):
        model.train(training)
        converted.train(training)
        torch.manual_seed(0)
        expected = model(x)
        torch.manual_seed(0)
        assert torch.equal(converted(x), expected)
    state = model.state_dict()
    assert list(converted.state_dict()) == list(state)
    assert all(torch.equal(value, state[name]) for name, value in converted.state_dict().items())
    assert converted.get_buffer("bn.num_batches_tracked").item() == 2


def test_it_compiles_copies_and_is_called_as_the_original() -> None:
    model, converted, x = both()
    converted.eval()
    expected = model.eval()(x)
    assert torch.equal(copy.deepcopy(converted)(x), expected)
    assert torch.equal(converted(x=x), expected)
    assert torch.equal(converted(x, 1.0), expected)
    compiled = torch.compile(converted, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), expected)
    with pytest.raises(TypeError, match="called with 3 positional arguments, but captured with 1"):
        converted(x, x, x)


def test_a_mode_that_was_not_captured_says_so() -> None:
    converted, _ = make(Two(), (torch.randn(4, 8),), {})
    converted.train()
    with pytest.raises(RuntimeError, match="captured in evaluation mode only"):
        converted(torch.randn(4, 8))


def test_parameters_are_cloned_unless_shared() -> None:
    model, x = Two(), torch.randn(4, 8)
    captured = capture(model.eval(), (x,))
    plan = Plan("", "inference", "fp32", "bf16", (), ())
    alone = rewrite({"inference": captured}, {"inference": plan})
    shared = rewrite({"inference": captured}, {"inference": plan}, share_parameters=True)
    assert alone.get_parameter("a.weight") is not model.a.weight
    assert shared.get_parameter("a.weight") is model.a.weight


class Likened(nn.Module):
    """A norm as Gemma and ESM write it: in fp32, then back to whatever its input has."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.a, self.b, self.way = nn.Linear(8, 8), nn.Linear(8, 8), way

    def forward(self, x: Tensor) -> Tensor:
        stream = x + self.a(x)
        wide = stream.float() * stream.float().square().mean(-1, keepdim=True).rsqrt()
        return stream + self.b(wide.type_as(stream) if self.way == "type_as" else wide.to(stream))


@pytest.mark.parametrize("way", ["type_as", "to"])
@pytest.mark.parametrize(("stream", "normed"), [("fp32", "bf16"), ("bf16", "fp32"), ("bf16", "bf16")])
def test_a_cast_to_the_format_of_another_value_makes_the_chosen_one(way: str, stream: str, normed: str) -> None:
    model, x = Likened(way), torch.randn(4, 8)
    plan = {"/add#0": stream, f"/{way}#{2 if way == 'to' else 0}": normed, "b/linear#0": normed}
    weights = (Cast("b.weight", normed, ("b/linear#0",)), Cast("b.bias", normed, ("b/linear#0",)))
    first = (Cast("a/linear#0", stream, ("/add#0",)), Cast("x", stream, ("/add#0",))) if stream == "bf16" else ()
    last = tuple(Cast(value, "fp32", ("/add#1",)) for value in ("/add#0", "b/linear#0") if plan[value] == "bf16")
    converted, captured = make(model, (x,), plan, (*first, *(weights if normed == "bf16" else ()), *last))
    assert [op.fixed for op in captured.graph.ops if op.key in plan] == ["", "", ""]
    y = (x.to(dtype(stream)) + model.a(x).to(dtype(stream))) if stream == "bf16" else x + model.a(x)
    wide = (y.float() * y.float().square().mean(-1, keepdim=True).rsqrt()).to(dtype(normed))
    branch = F.linear(wide, model.b.weight.to(wide.dtype), model.b.bias.to(wide.dtype))
    assert torch.equal(converted(x), y.float() + branch)


def dtype(name: str) -> torch.dtype:
    return {"bf16": torch.bfloat16, "fp32": torch.float32}[name]
