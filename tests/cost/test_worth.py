"""Whether a swap is worth it: torchao's own filter, verdict for verdict, and where it has none, predicted time."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from precision_audit import policy
from precision_audit.backends import listed
from precision_audit.capture import capture
from precision_audit.capture.origins import as_fake
from precision_audit.cost import layers as layers_of
from precision_audit.cost.worth import auto_filter, worth
from precision_audit.decide import Decided, decide
from precision_audit.hardware import device
from precision_audit.plan import plan
from precision_audit.records import Hardware, Layer, Op, Tensor
from tests.backends.graphs import linear

H100 = device("h100")

# torchao's filter -----------------------------------------------------------------------------------------------------

AROUND = sorted({16, 24, 128, 1008, 1024, 1040, 2032, 2048, 2064, 4080, 4096, 4112, 8192, 8200, 16384})


def torchao_says(recipe: str, k: int, n: int) -> str:
    from torchao.float8.float8_linear_utils import _auto_filter_for_recipe

    converts = _auto_filter_for_recipe(recipe, [])(nn.Linear(k, n, device="meta"), "fc")
    return "convert" if converts else "skip"


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
@pytest.mark.parametrize("k", AROUND)
def test_the_filter_s_verdicts_around_every_limit(recipe: str, k: int) -> None:
    assert [auto_filter(recipe, k, n) for n in AROUND] == [torchao_says(recipe, k, n) for n in AROUND]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(["tensorwise", "rowwise"]), st.integers(1, 20000), st.integers(1, 20000), st.booleans())
def test_the_filter_s_verdicts_anywhere(recipe: str, k: int, n: int, whole: bool) -> None:
    if whole:
        k, n = -(-k // 16) * 16, -(-n // 16) * 16
    assert auto_filter(recipe, k, n) == torchao_says(recipe, k, n)


def test_the_filter_says_nothing_where_torchao_raises() -> None:
    with pytest.raises(NotImplementedError):
        torchao_says("rowwise_with_gw_hp", 4096, 4096)
    assert auto_filter("rowwise_with_gw_hp", 4096, 4096) == ""


# worth ----------------------------------------------------------------------------------------------------------------

MANY = 16384  # rows: a batch of 4 sequences of 4096


def sized(k: int, n: int, m: int) -> tuple[Op, list[Tensor]]:
    op = linear(bias="", outputs=(Tensor("fp32", (m, n), (m, n)),))
    return op, [Tensor("fp32", (m, k), (m, k)), Tensor("fp32", (n, k), (n, k))]


def verdict(recipe: str, k: int, n: int, m: int = MANY, hardware: Hardware = H100) -> str:
    return worth(*sized(k, n, m), "torchao", recipe, "bf16", hardware, "training").reason


@pytest.mark.parametrize(
    ("recipe", "k", "n", "yes"),
    [
        ("tensorwise", 8192, 2048, True),
        ("tensorwise", 4096, 1024, False),
        ("rowwise", 4096, 8192, True),
        ("rowwise", 2048, 4096, False),
        ("rowwise", 16384, 128, False),
        ("rowwise", 32, 32, False),
        ("tensorwise", 32, 32, False),
    ],
)
def test_worth_by_recipe_on_h100(recipe: str, k: int, n: int, yes: bool) -> None:
    reason = verdict(recipe, k, n)
    assert reason.startswith("not worth it: ") is not yes and bool(reason) is not yes


def test_rows_count_where_the_filter_ignores_them() -> None:
    """K = N = 8192 with 16 rows: 2 x 16 x 8192² FLOPs, 2 GFLOP, take 2 µs of 989 TFLOP/s; casting the weight alone
    moves 67 M elements, at 5 bytes each 100 µs of 3.35 TB/s."""
    assert auto_filter("rowwise", 8192, 8192) == "convert"
    assert verdict("rowwise", 8192, 8192, m=16).startswith("not worth it: predicted")
    assert verdict("rowwise", 8192, 8192) == ""


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "rowwise_with_gw_hp"])
def test_time_alone_decides_where_torchao_measured_nothing(recipe: str) -> None:
    """A device whose products and memory were free but for fp8's would never gain, the reverse always would."""
    slow = dict(H100.peaks)["bf16"]
    other = replace(H100, name="other", title="Another", bandwidth=1e18, launch=0.0)
    gains = replace(other, peaks=(("fp32", slow), ("bf16", slow), ("fp8", 10 * slow)))
    loses = replace(other, peaks=(("fp32", slow), ("bf16", slow), ("fp8", slow / 2)))
    for k, n in ((2048, 1024), (8192, 8192)):
        assert verdict(recipe, k, n, hardware=gains) == ""
        assert "predicted" in verdict(recipe, k, n, hardware=loses)


def test_the_reason_names_the_filter_only_where_it_alone_objects() -> None:
    """Where products are slow and everything else is free, fp8 gains at any size; the H100's title keeps the filter."""
    slow = replace(H100, bandwidth=1e18, launch=0.0)
    assert "automatic filter" in verdict("rowwise", 2048, 4096, hardware=slow)
    assert "automatic filter" not in verdict("rowwise", 32, 32)


# layers of a model ----------------------------------------------------------------------------------------------------

POLICY = """\
name: layers
mode: {mode}
swap: {swap}
formats: {{high: fp32, low: bf16}}
rules:
  - {{name: head, module: head, op: linear, class: safe-in-bf16}}
  - {{name: linears, op: linear, class: fp8-eligible, backend: {backend}, recipe: {recipe}}}
  - {{name: rest, class: follow}}
"""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.odd = nn.Linear(4096, 8192), nn.Linear(8192, 1000)
        self.small, self.head = nn.Linear(1000, 32), nn.Linear(32, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(self.small(self.odd(torch.relu(self.wide(x)))))
        return y


def judged(
    model: nn.Module, args: tuple[torch.Tensor, ...], dynamic: object = None, **words: str
) -> tuple[Decided, dict[str, Layer]]:
    said = {"mode": "training", "device": "h100", "swap": "eligible", "backend": "torchao", "recipe": "rowwise"}
    said.update(words)
    made, hardware = policy.parse(POLICY.format(**said)), device(said["device"])
    fake, fakes, _ = as_fake(model, args, {})
    graph = capture(fake, fakes, mode=made.mode, dynamic_shapes=dynamic).graph
    decided = decide(graph, made, hardware, listed())
    found = layers_of.layers(graph, plan(graph, decided, made, hardware), made, hardware)
    return decided, {layer.module: layer for layer in found}


def net(rows: int = MANY) -> tuple[nn.Module, tuple[torch.Tensor]]:
    with torch.device("meta"):
        return Net(), (torch.empty(rows, 4096),)


def test_every_linear_is_a_layer_with_both_verdicts() -> None:
    _, found = judged(*net())
    assert list(found) == ["wide", "odd", "small", "head"]
    wide, odd, small, head = found.values()
    assert (wide.k, wide.n, wide.m, wide.eligible, wide.swapped, wide.not_worth) == (4096, 8192, MANY, True, True, "")
    assert wide.speed_up > 1 and wide.auto_filter == "convert"
    assert not odd.eligible and odd.reason == "N=1000 is not a multiple of 16" and odd.seconds == 0.0
    assert "K=1000 is not a multiple of 16" in small.reason and not small.not_worth
    # kept by the policy, and told what that costs
    assert head.eligible and not head.swapped and "head: safe-in-bf16" in head.kept
    assert head.not_worth.startswith("not worth it") and head.auto_filter == "skip"


def test_padding_is_offered_with_its_price() -> None:
    _, found = judged(*net())
    padding = found["odd"].padding
    assert padding is not None
    assert (padding.k, padding.n, padding.m) == (8192, 1008, MANY)
    assert padding.bytes == 4 * 8192 * 1008  # fp32 masters
    assert not padding.worth  # rowwise, N <= 2048: torchao's filter
    assert found["small"].padding.k == 1008 and found["wide"].padding is None  # type: ignore[union-attr]


def test_padding_that_pays() -> None:
    with torch.device("meta"):
        model, args = nn.Sequential(nn.Linear(8190, 8190, bias=False)), (torch.empty(MANY, 8190),)
    _, found = judged(model, args)
    layer = found["0"]
    assert layer.padding is not None and layer.padding.worth
    assert layer.padding.seconds < layer.seconds_low


def test_a_fixed_number_of_rows_is_padded_and_an_open_one_stated() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4096, 8192))
    args = (torch.empty(2, 4100, 4096, device="meta"),)
    _, found = judged(model, args)
    assert "M=8200 is not a multiple of 16" in found["0"].reason and found["0"].padding.m == 8208  # type: ignore[union-attr]
    _, found = judged(model, args, ({0: torch.export.Dim("B"), 1: torch.export.Dim("T")},))
    (condition,) = found["0"].constraints
    assert condition.startswith("B*T % 16 == 0 in backward") and "M=8200 breaks it" in condition


@pytest.mark.parametrize("swap", ["eligible", "worth-it"])
def test_eligible_and_slower_is_reported_or_not_swapped(swap: str) -> None:
    decided, found = judged(*net(rows=16), swap=swap)
    wide = found["wide"]
    assert wide.eligible and wide.not_worth.startswith("not worth it: predicted")
    assert wide.swapped is (swap == "eligible")
    mine = [each for each in decided.findings if each.rule == "PA403" and each.module == "wide"]
    assert [each.severity for each in mine] == ["note"]
    if swap == "worth-it":
        (refusal,) = [each for each in decided.refusals if each.module == "wide"]
        assert refusal.not_worth and refusal.reason == wide.not_worth
        assert not any(each.rule == "PA401" and each.module == "wide" for each in decided.findings)
    else:
        (whole,) = [each for each in decided.findings if each.rule == "PA403" and not each.module]
        assert whole.message.startswith("1 of 1 swapped linear is predicted to gain nothing on h100")


def test_worth_it_swaps_what_gains() -> None:
    decided, found = judged(*net(), swap="worth-it")
    assert [swap.module for swap in decided.swaps] == ["wide"] and found["wide"].swapped


def test_conformance_two_small_layers_and_a_narrow_one_are_not_worth_it_which_is_no_may_not() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 16384), nn.Linear(16384, 128))
        args = (torch.empty(MANY, 32),)
    decided, found = judged(model, args, swap="worth-it")
    for name in ("0", "1", "3"):
        assert found[name].eligible and not found[name].reason and "not worth it" in found[name].not_worth
    assert all(refusal.not_worth for refusal in decided.refusals) and len(decided.refusals) == 4


@pytest.mark.parametrize(
    ("backend", "recipe", "on", "mode", "shape", "words"),
    [
        ("torchao", "rowwise", "h100", "training", (64, 15, 32), "N=15 is not a multiple of 16"),
        ("torchao", "rowwise", "h100", "training", (256, 64, 1), "M=1 is not a multiple of 16"),
        ("torchao", "rowwise", "h100", "training", (712, 64, 32), "K=712 is not a multiple of 16"),
        ("torchao_quantize", "float8dq-row", "h100", "inference", (64, 15, 32), "N=15 is not a multiple of 16"),
        ("torchao_quantize", "float8dq-tensor", "h100", "inference", (712, 64, 32), "K=712 is not a multiple of 16"),
        ("torchao_quantize", "mxfp8", "b200", "inference", (48, 64, 32), "K=48 is not a multiple of 32"),
        ("torchao_quantize", "nvfp4", "b200", "inference", (48, 64, 32), "K=48 is not a multiple of 32"),
        ("transformer_engine", "MXFP8BlockScaling", "b200", "training", (48, 64, 32), "K=48 is not a multiple of 32"),
    ],
)
def test_conformance_refused_when_planned_naming_the_dimension(
    backend: str, recipe: str, on: str, mode: str, shape: tuple[int, int, int], words: str
) -> None:
    k, n, m = shape
    with torch.device("meta"):
        model, args = nn.Sequential(nn.Linear(k, n)), (torch.empty(m, k),)
    decided, found = judged(model, args, backend=backend, recipe=recipe, device=on, mode=mode)
    assert words in decided.refusals[0].reason and words in found["0"].reason and not found["0"].eligible


def test_a_policy_without_fp8_has_no_layers() -> None:
    made = policy.load("bf16-training")
    graph = capture(nn.Sequential(nn.Linear(16, 16)), (torch.randn(16, 16),), mode="training").graph
    decided = decide(graph, made, H100, listed())
    assert layers_of.layers(graph, plan(graph, decided, made, H100), made, H100) == ()


# experts --------------------------------------------------------------------------------------------------------------


class Experts(nn.Module):
    """Tokens sorted by their expert; how many each gets is known at run time alone."""

    def __init__(self, d: int, h: int, count: int) -> None:
        super().__init__()
        self.router, self.count = nn.Linear(d, count), count
        self.up = nn.Parameter(torch.randn(count, d, h) / d**0.5)
        self.down = nn.Parameter(torch.randn(count, h, d) / h**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = self.router(x).argmax(-1)
        order = chosen.argsort()
        offs = torch.bincount(chosen, minlength=self.count).cumsum(0).to(torch.int32)
        hidden = torch.relu(torch._grouped_mm(x[order].bfloat16(), self.up.bfloat16(), offs=offs))
        made = torch._grouped_mm(hidden, self.down.bfloat16(), offs=offs).float()
        return torch.empty_like(x).index_copy(0, order, made)


@pytest.mark.parametrize(
    ("on", "hidden", "mode", "words"),
    [
        ("h100", 64, "training", ""),
        ("h100", 64, "inference", ""),
        ("h100", 72, "training", "N=72 is not a multiple of 16"),
        ("a100", 64, "training", "9.0"),
    ],
)
def test_experts_are_judged_and_told_why_they_are_not_swapped(on: str, hidden: int, mode: str, words: str) -> None:
    decided, _ = judged(Experts(32, hidden, 4), (torch.randn(64, 32),), device=on, mode=mode)
    told = [each for each in decided.refusals if each.op == "/_grouped_mm#0"]
    assert len(told) == 1
    assert words in told[0].reason if words else "experts share one parameter" in told[0].reason
    assert [each.rule for each in decided.findings if each.op == "/_grouped_mm#0"] == ["PA401"]


def test_experts_are_layers_with_rows_per_expert() -> None:
    made = policy.parse(POLICY.format(mode="training", swap="eligible", backend="torchao", recipe="rowwise"))
    graph = capture(Experts(32, 64, 4), (torch.randn(64, 32),), mode="training").graph
    decided = decide(graph, made, H100, listed())
    found = [
        each for each in layers_of.layers(graph, plan(graph, decided, made, H100), made, H100) if "grouped" in each.op
    ]
    assert [(each.k, each.n, each.m) for each in found] == [(32, 64, 16), (64, 32, 16)]
    assert all(each.eligible and not each.swapped and each.kept and each.not_worth for each in found)
    assert found[0].constraints == ("rows of each expert % 16 == 0 in backward, as offs decides at run time",)
