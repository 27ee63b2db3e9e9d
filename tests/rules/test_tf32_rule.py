"""PA703: which products are said to run in TF32, how far off, how loudly; and that it says nothing twice or in vain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import precision_audit as pa
from precision_audit import hardware
from precision_audit import policy as policies
from precision_audit.analyse.flags import CONV, GENERIC, MATMUL, OLDER_CUDNN, OLDER_MATMUL, RNN
from precision_audit.analyse.tf32 import tf32
from precision_audit.capture import capture, private_copy
from precision_audit.decide import decide
from precision_audit.records import Facts, Finding
from tests.models import FACTORIES, NEED_TRANSFORMERS, build

KEPT = "name: mine\nextends: {}\nrules:\n  - {{name: it, op: [linear, conv1d], class: keep-fp32}}\n"
EVERYTHING = ((MATMUL, "tf32"), (CONV, "tf32"), (RNN, "tf32"))
X = torch.randn(8, 4, 16, generator=torch.Generator().manual_seed(0))


class Mixed(nn.Module):
    """A convolution, a recurrent op and products: all three kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 8, 3)
        self.gru = nn.GRU(14, 12, batch_first=True)
        self.inner = nn.Linear(12, 12)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.head(torch.relu(self.inner(self.gru(self.conv(x))[0])))
        return made


def mixed() -> nn.Module:
    torch.manual_seed(0)
    return Mixed().eval()


def told(model: nn.Module, args: Any, policy: str, device: str) -> list[Finding]:
    given = policies.parse(policy, "mine.yaml") if "\n" in policy else policy
    report = pa.audit(model, args, policy=given, device=device)
    assert not [each for each in report.facts.notes if "not measured" in each]
    return [each for each in report.findings if each.rule in ("PA701", "PA703")]


@pytest.fixture
def allowed() -> Iterator[None]:
    """TF32 switched on for products in this process, by the older name."""
    before = torch.get_float32_matmul_precision()
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.fixture
def medium() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def said(found: list[Finding]) -> list[tuple[str, str, str]]:
    """Rule, severity and kind of op of each."""
    return [(each.rule, each.severity, each.op.rpartition("/")[2]) for each in found]


DEFAULTS = [("PA703", "note", "conv1d#0"), ("PA703", "note", "gru#0")]


@pytest.mark.parametrize(
    ("policy", "device", "expected"),
    [
        ("fp32", "a100", DEFAULTS),
        ("fp32", "b200", DEFAULTS),
        ("fp32", "v100", []),
        ("fp32", "t4", []),
        ("fp32", "mi300x", []),
        ("fp32", "cpu-amx", []),
        (KEPT.format("bf16-inference"), "a100", DEFAULTS[:1]),
    ],
)
def test_what_pytorch_does_unasked_is_a_note(policy: str, device: str, expected: list[tuple[str, str, str]]) -> None:
    assert said(told(mixed(), (X,), policy, device)) == expected


def test_a_finding_counts_its_ops_names_the_worst_and_measures(allowed: None) -> None:
    (products, *_) = [each for each in told(mixed(), (X,), "fp32", "a100") if "linear" in each.op]
    numbers = dict(products.evidence.numbers)
    assert (products.severity, products.evidence.basis, numbers["ops"]) == ("warning", "OBSERVED", 2.0)
    assert 1e-5 < numbers["own"] < 2e-3 and 1e-5 < numbers["output"] < 2e-3
    assert "with all 2 products in TF32" in products.message and "on a100" in products.message
    assert products.remedy == f'{MATMUL} = "ieee"' and "in this process" in products.evidence.text


def test_within_the_tolerance_it_is_a_note(allowed: None) -> None:
    """2^-11 is far within the 3e-2 of bf16-inference, and fp32's tolerance of nothing is beyond reach."""
    for policy, severity in ((KEPT.format("bf16-inference"), "note"), ("fp32", "warning")):
        found = [each for each in told(mixed(), (X,), policy, "h100") if "linear" in each.op]
        assert [each.severity for each in found] == [severity]


def test_positions_beyond_what_tf32_counts_are_warned_of(allowed: None) -> None:
    """A turn by position times frequency, kept in fp32 by the shipped policy: odd positions beyond 2048 are lost."""

    class Angles(nn.Module):
        def forward(self, positions: Tensor) -> Tensor:
            return torch.sin(positions @ torch.ones(1, 1))

    positions = torch.arange(4097, 4161, dtype=torch.float32).unsqueeze(1)
    (found,) = told(Angles(), (positions,), "bf16-inference", "h100")
    assert found.severity == "warning" and "matmul" in found.op
    assert dict(found.evidence.numbers)["output"] > 0.1  # sines of angles that are off by up to 2


@pytest.mark.parametrize(
    ("environment", "expected", "remedy"),
    [
        (f"{MATMUL}: tf32", ("warning", "linear#0"), f"environment: {{{MATMUL}: ieee}} in the policy"),
        (f"{OLDER_MATMUL}: true", ("warning", "linear#0"), f"environment: {{{OLDER_MATMUL}: false}} in the policy"),
        (f"{GENERIC}: tf32", ("warning", "linear#0"), f"environment: {{{MATMUL}: ieee}} in the policy"),
    ],
)
def test_the_policy_decides_over_the_process(environment: str, expected: tuple[str, str], remedy: str) -> None:
    model = nn.Sequential(nn.Linear(16, 4))
    (found,) = told(model, (X,), f"name: mine\nextends: fp32\nenvironment: {{{environment}}}\n", "a100")
    assert (found.severity, found.op.rpartition("/")[2]) == expected and found.remedy == remedy
    assert "in the policy's environment" in found.evidence.text


@pytest.mark.parametrize("environment", [f"{CONV}: ieee", f"{OLDER_CUDNN}: false", f"{GENERIC}: ieee"])
def test_a_policy_that_turns_tf32_off_is_believed(environment: str) -> None:
    found = told(nn.Conv1d(4, 8, 3), (X,), f"name: mine\nextends: fp32\nenvironment: {{{environment}}}\n", "a100")
    assert found == []


def test_medium_is_said_once_and_as_what_it_is(medium: None) -> None:
    """On CUDA it switches TF32 on; on a CPU it makes bf16 parts; a V100 knows neither."""
    model = nn.Sequential(nn.Linear(16, 4))
    assert said(told(model, (X,), "fp32", "a100")) == [("PA703", "warning", "linear#0")]
    assert said(told(model, (X,), "fp32", "cpu-amx")) == [("PA701", "warning", "linear#0")]
    assert said(told(model, (X,), "fp32", "v100")) == []


def test_products_that_are_coarse_on_the_cpu_are_emulated_all_the_same(allowed: None) -> None:
    """Under medium oneDNN may make bf16 parts of the very products that the emulation runs."""
    model, x = nn.Sequential(nn.Linear(256, 64)), torch.randn(64, 256)
    numbers = []
    for precision in ("high", "medium"):
        torch.set_float32_matmul_precision(precision)
        (found,) = told(model, (x,), "fp32", "a100")
        numbers.append(dict(found.evidence.numbers))
    assert numbers[0]["own"] == pytest.approx(numbers[1]["own"], rel=1e-4)
    assert torch.backends.mkldnn.enabled


def test_newer_settings_that_contradict_the_older_ones_do_no_harm() -> None:
    """torch refuses to read the older names then."""
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "tf32"
    try:
        with pytest.raises(RuntimeError):
            torch.get_float32_matmul_precision()
        found = told(nn.Sequential(nn.Linear(16, 4)), (X,), "fp32", "a100")
        assert said(found) == [("PA703", "warning", "linear#0")] and matmul.fp32_precision == "tf32"
    finally:
        matmul.fp32_precision = before


def test_what_runs_inside_a_transform_is_assumed(allowed: None) -> None:
    """A tensor inside the user's vmap is none that could be rounded."""

    class Mapped(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return torch.vmap(lambda a, b: a @ b)(x, y)

    (found,) = told(Mapped(), (torch.randn(3, 4, 5), torch.randn(3, 5, 6)), "fp32", "a100")
    assert (found.severity, found.evidence.basis) == ("note", "ASSUMED")


def test_without_weights_it_is_assumed() -> None:
    with torch.device("meta"):
        model = nn.Conv1d(4, 8, 3)
    (found,) = told(model, (X.to("meta"),), "fp32", "a100")
    assert (found.severity, found.evidence.basis) == ("note", "ASSUMED")
    assert dict(found.evidence.numbers) == {"ops": 1.0, "factor": 2.0**-11}


@pytest.mark.parametrize("name", sorted(set(FACTORIES) - set(NEED_TRANSFORMERS)))
def test_nobody_is_warned_under_the_shipped_low_policies(name: str) -> None:
    """On any model of the zoo, even with TF32 wherever it can be: what they keep in fp32 is no product, or bears it."""
    model, args, kwargs = build(name)
    on = hardware.device("h100")
    for way in ("bf16-inference", "amp-cuda-bf16"):
        policy = policies.load(way)
        captured = capture(private_copy(model), args, kwargs, mode=policy.mode)
        seen = tf32(captured, policy, on, (args, kwargs), EVERYTHING)
        found = decide(captured.graph, policy, on, {}, facts=Facts(flags=EVERYTHING, tf32=seen)).findings
        kinds = [each.severity for each in found if each.rule == "PA703"]
        assert set(kinds) <= {"note"} and len(kinds) <= 1
