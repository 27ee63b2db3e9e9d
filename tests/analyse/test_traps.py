"""Traps against the truth: the eager model, converted in the usual way, raises or does not."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from precision_audit import hardware, policy
from precision_audit.analyse.branches import branches
from precision_audit.analyse.flags import FP16_SUMS, FP32_PRODUCTS, flags
from precision_audit.analyse.traps import traps
from precision_audit.capture import capture, private_copy
from precision_audit.formats import dtype_of
from precision_audit.records import Trap, shortened
from tests import models, trap_models

WAYS = {
    ("cast", "bf16"): "bf16-inference",
    ("cast", "fp16"): "fp16-inference",
    ("autocast", "bf16"): "amp-cpu-bf16",
    ("autocast", "fp16"): "amp-cpu-fp16",
}

# Models that raise and are not told of: (name, way). The doubt is stated in `traps`.
MISSED = {
    ("bilinear, one input upcast", "cast"),  # nothing tells x from x.float(), and the words differ
    ("finfo_mask", "autocast"),  # whose dtype the finfo was asked of is not in the graph
}


def _eager(model: nn.Module, args: Any, kwargs: Any, way: str, low: torch.dtype) -> str:
    """The first line of what eager PyTorch raises, "" if nothing."""

    def lowered(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(low) if tensor.is_floating_point() else tensor.clone()

    model, args, kwargs = copy.deepcopy((model.eval(), args, kwargs))
    try:
        with torch.no_grad():
            if way == "cast":
                args, kwargs = pytree.tree_map_only(torch.Tensor, lowered, (args, kwargs))
                model.to(low)(*args, **kwargs)
            else:
                with torch.autocast("cpu", low):
                    model(*args, **kwargs)
    except Exception as error:
        return (str(error).strip() or type(error).__name__).splitlines()[0]
    return ""


def _found(model: nn.Module, args: Any, kwargs: Any, name: str, device: str = "local") -> tuple[Trap, ...]:
    made = policy.load(name)
    captured = capture(private_copy(model), copy.deepcopy(args), copy.deepcopy(kwargs), mode="inference")
    return traps(captured, made, hardware.device(device))


def _agree(name: str, model: nn.Module, args: Any, kwargs: Any) -> None:
    captured = capture(private_copy(model.eval()), copy.deepcopy(args), copy.deepcopy(kwargs), mode="inference")
    for (way, low), policy_name in WAYS.items():
        found = traps(captured, policy.load(policy_name), hardware.device("local"))
        truth = _eager(model, args, kwargs, way, dtype_of(low))
        if (name, way) in MISSED:
            assert truth and not found
            continue
        assert bool(found) == bool(truth), (way, low, truth, found)
        if found:
            assert shortened(truth, 200) == found[0].text and found[0].way == way


@pytest.mark.parametrize("name", list(trap_models.MODELS))
def test_traps_are_what_eager_raises(name: str) -> None:
    model, args = trap_models.MODELS[name]()
    _agree(name, model, args, {})


def test_the_list_holds_both_kinds() -> None:
    raising = [bool(_eager(*trap_models.MODELS[name](), {}, "cast", torch.bfloat16)) for name in trap_models.MODELS]
    assert len(raising) >= 100 and 0.3 < sum(raising) / len(raising) < 0.7


@pytest.mark.parametrize("name", [name for name in models.MODELS if name not in models.NOT_FP32])
def test_traps_of_the_zoo(name: str) -> None:
    _agree(name, *models.build(name))


@pytest.mark.parametrize(
    ("name", "way", "op"),
    [
        ("layer_norm, input upcast", ("cast", "bf16"), "layer_norm"),
        ("sinusoid into linear", ("cast", "fp16"), "linear"),
        ("stack, then linear", ("cast", "bf16"), "linear"),
        ("index_put into zeros like", ("autocast", "bf16"), "index_put"),
        ("cache, plain attribute, index_copy", ("cast", "bf16"), "index_copy"),
        ("lstm, state of zeros", ("cast", "bf16"), "lstm"),
        ("view as complex", ("cast", "bf16"), "view_as_complex"),
        ("masked_fill with -1e9", ("cast", "fp16"), "masked_fill"),
    ],
)
def test_the_op_that_raises_is_named(name: str, way: tuple[str, str], op: str) -> None:
    model, args = trap_models.MODELS[name]()
    found = _found(model, args, {}, WAYS[way])
    assert found[0].op.rpartition("/")[2] == f"{op}#{1 if name.startswith('stack') else 0}"


def test_one_cause_is_told_once() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.second(self.first(torch.ones(2, 8))) + x
            return y

    found = _found(Twice(), (torch.ones(2, 8),), {}, "bf16-inference")
    assert [trap.op for trap in found] == ["first/linear#0"]
    assert found[0].formats == ("fp32", "bf16", "bf16")


@pytest.mark.parametrize(
    ("name", "raises"),
    [
        ("index_put out of place", False),  # CUDA's autocast promotes it
        ("index_put into zeros like", True),  # but not in place
        ("scatter into zeros like", True),  # and leaves scatter alone
        ("layer_norm, input upcast", False),
        ("median", False),
    ],
)
def test_autocast_of_a_device_that_is_not_here(name: str, raises: bool) -> None:
    model, args = trap_models.MODELS[name]()
    assert bool(_found(model, args, {}, "amp-cuda-bf16", "h100")) is raises


@pytest.mark.parametrize(
    ("name", "low", "raises"),
    [("fft", "bf16", True), ("fft", "fp16", False), ("cholesky", "bf16", True), ("resize, antialiased", "bf16", False)],
)
def test_kernels_of_a_device_that_is_not_here_come_from_the_table(name: str, low: str, raises: bool) -> None:
    model, args = trap_models.MODELS[name]()
    assert bool(_found(model, args, {}, f"{low}-inference", "h100")) is raises


class AskingNorm(nn.Module):
    """As public models have it: the norm gives its weight's format, if that is low."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.fc = nn.Parameter(torch.ones(8)), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.to(torch.float32)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        if self.weight.dtype in [torch.float16, torch.bfloat16]:
            y = y.to(self.weight.dtype)
        out: torch.Tensor = self.fc(self.weight * y)
        return out


def test_a_function_that_asks_for_a_format_is_in_doubt() -> None:
    _agree("asking norm", AskingNorm(), (torch.rand(2, 8),), {})


def test_symbolic_sizes_are_taken_as_in_the_example() -> None:
    model, args = trap_models.MODELS["sinusoid into linear"]()
    batch = torch.export.Dim("batch")
    captured = capture(private_copy(model), args, mode="inference", dynamic_shapes={"args": ({0: batch}, {0: batch})})
    found = traps(captured, policy.load("bf16-inference"), hardware.device("local"))
    assert [trap.op for trap in found] == ["fc/linear#0"]


def test_random_numbers_and_autocast_are_left_as_they_were() -> None:
    model, args = trap_models.MODELS["index_put into zeros like"]()
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    _found(model, args, {}, "amp-cpu-bf16")
    assert torch.equal(torch.rand(4), expected) and not torch.is_autocast_enabled("cpu")


# conditions on a format -----------------------------------------------------------------------------------------------


class Asking(nn.Module):
    def forward(self, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        y = x * 2
        if y.dtype == torch.float16 and x.shape[0] > 1:
            y = y.clamp(-6e4, 6e4)
        if keep.dtype != torch.bool:
            keep = keep > 0
        y = y if torch.float32 != x.dtype else y + 1
        if x.dtype in (torch.float16, torch.bfloat16) or x.dtype is torch.half:
            y = y - 1
        if not (y.dtype == torch.float64 or x.dtype == torch.int64):
            y = y * 3
        return torch.where(keep, y, y.abs())


class Unasked(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.abs()

    def other(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.dtype == torch.bfloat16 else x.float()


@pytest.mark.parametrize(
    ("low", "words"),
    [
        ("fp16", ["if y.dtype == torch.float16", "y = y if torch.float32 != x.dtype", "if x.dtype in (torch.float16"]),
        ("bf16", ["y = y if torch.float32 != x.dtype", "if x.dtype in (torch.float16"]),
    ],
)
def test_conditions_that_the_low_format_answers_otherwise(low: str, words: list[str]) -> None:
    captured = capture(Asking(), (torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bool)))
    found = branches(captured, "fp32", low)
    assert [each.text.startswith(word) for each, word in zip(found, words, strict=True)] == [True] * len(words)
    assert {each.function for each in found} == {"forward"} and {each.file for each in found} == {__file__}


def test_functions_that_made_nothing_are_not_read() -> None:
    assert branches(capture(Unasked(), (torch.ones(3),)), "fp32", "bf16") == ()


# flags of the process -------------------------------------------------------------------------------------------------


def test_flags_are_those_of_the_process() -> None:
    before = torch.get_float32_matmul_precision()
    assert FP16_SUMS not in dict(flags()) and FP32_PRODUCTS not in dict(flags())
    try:
        torch.backends.cuda.matmul.allow_fp16_accumulation = True
        torch.set_float32_matmul_precision("medium")
        assert dict(flags())[FP16_SUMS] == "true" and dict(flags())[FP32_PRODUCTS] == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
        torch.backends.cuda.matmul.allow_fp16_accumulation = False
