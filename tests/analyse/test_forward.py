"""Forward statistics on small models: ranges against arithmetic, proofs without inputs, losses with their first
producer, batches that do not fit, and memory that does not grow."""

from __future__ import annotations

import gc
import math
import tracemalloc
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from precision_audit.analyse.batches import spoiled
from precision_audit.analyse.constants import independent
from precision_audit.analyse.forward import forward
from precision_audit.capture import capture
from precision_audit.capture.origins import as_fake
from precision_audit.formats import is_float
from precision_audit.records import InputError, Range
from tests.benchmarks import cost_of_evidence
from tests.models import build


def ranges_of(
    module: nn.Module, *batches: tuple[Any, ...], example: tuple[Any, ...] | None = None, **options: Any
) -> dict[str, Range]:
    captured = capture(module.eval(), example or batches[0], **options)
    found, _ = forward(captured, [(batch, {}) for batch in batches])
    return {each.value: each for each in found}


class Chain(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x * 2).relu().view(-1).flip(0)


def test_extremes_over_all_batches_whichever_sign() -> None:
    batches = [torch.tensor([[1.0, -2.0]]), torch.tensor([[0.5, -700.0]]), torch.tensor([[3.0, 0.0]])]
    found = ranges_of(Chain(), *((batch,) for batch in batches))
    product = found["/mul#0"]
    assert (product.lowest, product.highest, product.amax, product.batch) == (-1400.0, 6.0, 1400.0, 1)
    assert (product.count, product.zeros, product.smallest) == (6, 1, 1.0)
    assert product.histogram == ((0, 1), (1, 1), (2, 2), (10, 1))  # 1; 2; 4 and 6; 1400
    assert product.whole and product.basis == "OBSERVED"
    relu = found["/relu#0"]
    assert (relu.amax, relu.zeros, relu.batch, relu.lowest) == (6.0, 3, 2, 0.0)
    for view in ("/view#0", "/flip#0"):  # the same elements, so the same counts
        assert found[view].histogram == relu.histogram == ((0, 1), (1, 1), (2, 1))
        assert (found[view].count, found[view].amax, found[view].batch) == (6, 6.0, 2)


@pytest.mark.parametrize("name", ["transformer_encoder", "convnet", "lstm", "vmap_inside", "complex_fft", "fp16_model"])
def test_every_float_value_has_a_range_that_numpy_agrees_with(name: str) -> None:
    module, args, kwargs = build(name)
    captured = capture(module, args, kwargs)
    found = {each.value: each for each in forward(captured, [(args, kwargs)])[0]}
    expected = {
        v for op in captured.graph.ops for v, t in zip(op.values, op.outputs, strict=True) if is_float(t.format)
    }
    assert set(found) == expected
    with torch.no_grad():
        result = module(*args, **kwargs)
    output = captured.graph.outputs[0]
    first = next(leaf for leaf in torch.utils._pytree.tree_leaves(result) if isinstance(leaf, Tensor))
    numbers = np.abs(first.double().numpy())
    assert found[output].count == numbers.size
    assert found[output].amax == pytest.approx(float(numbers.max()), rel=1e-5)
    assert sum(n for _, n in found[output].histogram) == int((numbers > 0).sum())


class InPlace(nn.Module):
    """What a name holds after it was overwritten must not count for the op that read it before, nor the reverse."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * 1
        first = y.view(-1)
        y.mul_(1000)
        return first.reshape(2, 2) + y


def test_a_view_read_after_it_was_overwritten_is_counted_again() -> None:
    found = ranges_of(InPlace(), (torch.tensor([[1.0, 2.0], [3.0, 4.0]]),))
    assert found["/mul#0"].amax == found["/view#0"].amax == 4.0
    assert found["/mul#1"].amax == found["/reshape#0"].amax == 4000.0 and found["/add#0"].amax == 8000.0


class Positions(nn.Module):
    """Angles that depend on no input but on its length."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("speed", torch.tensor(299_792_458.0))
        self.weight = nn.Parameter(torch.tensor([3.0, -0.25]))

    def forward(self, x: Tensor) -> Tensor:
        angles = torch.outer(torch.arange(x.shape[1], dtype=torch.float32), self.weight)
        return x.unsqueeze(-1) * angles.sin() / self.speed


def test_what_depends_on_no_input_is_proved_without_a_batch() -> None:
    captured = capture(Positions(), (torch.randn(2, 8),))
    found = {each.value: each for each in forward(captured, ())[0]}
    assert {each.basis for each in found.values()} == {"PROVED"}
    assert set(found) == {"speed", "weight", "/arange#0", "/outer#0", "/sin#0"}
    assert found["speed"].amax == 299_792_448.0 and found["speed"].whole  # what fp32 makes of it
    assert (found["/arange#0"].amax, found["/arange#0"].zeros, found["/arange#0"].whole) == (7.0, 1, True)
    assert (found["/outer#0"].highest, found["/outer#0"].lowest) == (21.0, -1.75)
    assert found["/sin#0"].amax == pytest.approx(max(abs(math.sin(n * w)) for n in range(8) for w in (3.0, -0.25)))


def test_symbolic_sizes_count_at_the_examples_value_and_at_every_batchs() -> None:
    length = torch.export.Dim("T", min=2, max=4096)
    captured = capture(Positions(), (torch.randn(2, 8),), dynamic_shapes={"x": {1: length}})
    alone = {each.value: each for each in forward(captured, ())[0]}
    assert (alone["/arange#0"].amax, alone["/arange#0"].basis) == (7.0, "PROVED")
    batches = [((torch.randn(2, n),), {}) for n in (8, 100, 50)]
    found = {each.value: each for each in forward(captured, batches)[0]}
    assert (found["/arange#0"].amax, found["/arange#0"].batch, found["/arange#0"].basis) == (99.0, 1, "PROVED")
    assert found["/arange#0"].count == 8 + 100 + 50 and found["speed"].count == 1


def test_without_weights_only_what_needs_none_is_known() -> None:
    with torch.device("meta"):
        module = Positions()
    module, args, kwargs = as_fake(module, (torch.randn(2, 8),), {})
    found = {each.value: each for each in forward(capture(module, args, kwargs), ())[0]}
    assert set(found) == {"/arange#0"} and found["/arange#0"].amax == 7.0


class Cache(nn.Module):
    """A buffer that the input is written into, and a counter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.full((4,), 2.0))
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        before = self.kept * 3
        self.kept.copy_(x)
        self.steps.add_(1)
        return before + self.kept[:4] * 5 + self.steps


def test_a_buffer_is_proved_until_an_input_is_written_into_it() -> None:
    module = Cache()
    captured = capture(module, (torch.ones(4),))
    batches = [((torch.full((4,), 10.0),), {}), ((torch.full((4,), 100.0),), {})]
    found = {each.value: each for each in forward(captured, batches)[0]}
    assert (found["kept"].basis, found["kept"].amax, found["kept"].count) == ("PROVED", 2.0, 4)
    assert (found["/mul#0"].basis, found["/mul#0"].amax) == ("PROVED", 6.0)
    assert (found["/mul#1"].basis, found["/mul#1"].amax, found["/mul#1"].batch) == ("OBSERVED", 500.0, 1)
    assert found["/add#0"].amax == 1.0 and found["/add#0"].basis == "PROVED"  # the counter: the same in every call
    assert {"/mul#0", "kept"} <= independent(captured.graph) and "/mul#1" not in independent(captured.graph)
    assert module.kept.tolist() == [2.0] * 4 and module.steps.item() == 0.0  # put back


class Drawn(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand(3) + torch.empty(3).fill_(2.0)


def test_draws_and_unwritten_memory_are_not_proved() -> None:
    captured = capture(Drawn(), (torch.ones(3),))
    assert not any("/" in each.value for each in forward(captured, ())[0])
    state = torch.get_rng_state()
    torch.full((1000,), 7.0)  # leaves something in memory that `empty` may hand out
    once, again = (forward(captured, [((torch.ones(3),), {})]) for _ in range(2))
    assert once == again and torch.equal(state, torch.get_rng_state())
    found = {each.value: each for each in once[0]}
    assert found["/rand#0"].count == 3 and found["/empty#0"].count == 0 and found["/fill_#0"].amax == 2.0


class Masked(nn.Module):
    """A true -inf mask, and a row that is masked whole."""

    def forward(self, scores: Tensor, keep: Tensor) -> Tensor:
        masked = scores.masked_fill(~keep, float("-inf"))
        return F.softmax(masked, dim=-1) * 2


def test_infinities_and_nan_have_their_first_producer() -> None:
    scores, keep = torch.ones(2, 2), torch.tensor([[True, False], [True, True]])
    found = ranges_of(Masked(), (scores, keep), (scores, keep & False))
    masked = found["/masked_fill#0"]
    assert (masked.infinite, masked.negative_infinite, masked.nan, masked.origin) == (1 + 4, 5, 0, "infinity")
    assert (masked.lost_in, masked.nan_in) == (0, -1)
    softmax = found["/softmax#0"]
    assert (softmax.nan, softmax.origin, softmax.lost_in, softmax.nan_in) == (4, "nan", 1, 1)
    product = found["/mul#0"]
    assert (product.nan, product.origin, product.nan_in) == (4, "", 1)  # inherits it


class Overflows(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x.exp() - x.exp()).mean()


def test_overflow_is_where_it_begins_and_nan_where_it_is_made() -> None:
    found = ranges_of(Overflows(), (torch.tensor([1.0, 2.0]),), (torch.tensor([1.0, 100.0]),))
    assert [found[f"/exp#{i}"].origin for i in (0, 1)] == ["infinity", "infinity"]
    assert (found["/sub#0"].origin, found["/sub#0"].nan, found["/sub#0"].lost_in) == ("nan", 1, 1)
    assert found["/mean#0"].origin == "" and found["/mean#0"].nan == 1
    assert found["x"].origin == ""


def test_nan_in_a_batch_is_a_fact_and_no_error() -> None:
    found = ranges_of(Chain(), (torch.tensor([[1.0, 2.0]]),), (torch.tensor([[math.nan, 8.0]]),))
    x = found["x"]
    assert (x.nan, x.nan_in, x.lost_in, x.origin, x.amax, x.count) == (1, 1, 1, "nan", 8.0, 4)
    assert found["/mul#0"].origin == "" and sum(n for _, n in x.histogram) == 3


def test_what_is_said_of_inputs_that_are_not_finite() -> None:
    captured = capture(Chain(), (torch.ones(1, 2),))
    found, _ = forward(captured, [((torch.tensor([[1.0, x]]),), {}) for x in (2.0, 3.0, math.nan, -math.inf)])
    assert spoiled(captured.graph, found) == (
        "calibration batch 1: x holds NaN or infinities (1 NaN and 1 infinite of 8 elements over all batches), which "
        "count in no range",
    )
    assert spoiled(captured.graph, forward(captured, [((torch.ones(1, 2),), {})])[0]) == ()


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (((torch.ones(1, 3),), {}), "x has shape (1, 3); expected (1, 2)"),
        (((torch.ones(0, 2),), {}), "x has no samples (shape (0, 2))"),
        (((torch.ones(1, 2, dtype=torch.long),), {}), "x is int64; expected fp32"),
        (((), {"y": torch.ones(1, 2)}), "captured with 1 positional arguments"),
        (((3,), {}), "x is an int; expected a tensor"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused_in_one_line(batch: Any, said: str) -> None:
    captured = capture(Chain(), (torch.ones(1, 2),))
    with pytest.raises(InputError) as error:
        forward(captured, [((torch.ones(1, 2),), {}), ((torch.ones(1, 2),), {}), batch])
    assert str(error.value).startswith("calibration batch 1: ") and said in str(error.value)
    assert "\n" not in str(error.value)


class Lookup(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.table(ids)


def test_a_batch_on_which_the_model_raises_is_named() -> None:
    captured = capture(Lookup(), (torch.tensor([1]),))
    with pytest.raises(InputError, match=r"calibration batch 0: the model does not run on it.*index out of range"):
        forward(captured, [((torch.tensor([1]),), {}), ((torch.tensor([7]),), {})])


class Batches(Sequence[Any]):
    """Different batches, made when they are asked for."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, index: Any) -> Any:
        if index >= self._number:
            raise IndexError(index)
        return (torch.full((16, 64), 1.5 * 2.0 ** (index % 40)),), {}

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(self._number))


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU()) for _ in range(3)))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x) + x


@pytest.mark.slow
def test_counters_do_not_grow_with_batches_and_all_500_count() -> None:
    captured = capture(Deep(), (torch.ones(16, 64),))

    def peak(number: int) -> tuple[int, dict[str, Range]]:
        gc.collect()
        tracemalloc.start()
        found, _ = forward(captured, Batches(number))
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most, {each.value: each for each in found}

    peak(1)  # imports and caches
    (some, _), (many, found) = peak(100), peak(500)  # from batch 40 on no new power of two
    assert many <= 1.2 * some + 2e5  # bytes that wait for the collector; 400 records of each value would be a megabyte
    assert found["x"].count == 500 * 16 * 64
    assert (found["x"].amax, found["x"].batch) == (1.5 * 2.0**39, 39)
    assert dict(found["x"].histogram)[3] == 16 * 64 * 13  # 500 = 12 * 40 + 20: batches 3, 43, …, 483


@pytest.mark.slow
def test_a_process_that_sees_200_batches_is_no_larger_than_one_that_sees_one() -> None:
    assert cost_of_evidence.peak("bert", 200) <= 1.2 * cost_of_evidence.peak("bert", 1)


class Watched(Batches):
    """Counts the tensors that are alive when a batch is asked for."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.alive: dict[int, int] = {}

    def __getitem__(self, index: Any) -> Any:
        if index in (5, 50):
            gc.collect()
            self.alive[index] = sum(issubclass(type(each), Tensor) for each in gc.get_objects())
        return super().__getitem__(index)


def test_no_tensor_of_a_batch_is_kept() -> None:
    batches = Watched(60)
    forward(capture(Deep(), (torch.ones(16, 64),)), batches)
    assert batches.alive[50] == batches.alive[5]


def test_the_users_module_is_left_as_it_was() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout())
    before = {name: value.clone() for name, value in module.state_dict().items()}
    captured = capture(module, (torch.randn(8, 4),), mode="training")
    found, _ = forward(captured, [((torch.randn(8, 4) + 100,), {})])
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert {each.value: each for each in found}["1.running_mean"].amax == 0.0
