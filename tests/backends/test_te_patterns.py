"""Which norms and MLPs one TransformerEngine module can compute, and which look like it and cannot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import precision_audit as pa
from precision_audit import pipeline, policy

Make = Callable[[], dict[str, nn.Module]]


class Model(nn.Module):
    def __init__(self, parts: dict[str, nn.Module], run: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


torch.manual_seed(0)  # the models below are made when this file is read


def _parts(**more: nn.Module) -> dict[str, nn.Module]:
    return {"norm": nn.LayerNorm(64), "fc1": nn.Linear(64, 128), "fc2": nn.Linear(128, 64), **more}


def _mlp(act: Callable[[Tensor], Tensor]) -> Callable[[nn.Module, Tensor], Tensor]:
    return lambda m, x: m.fc2(act(m.fc1(m.norm(x))))


def _gated(m: nn.Module, x: Tensor, act: Callable[[Tensor], Tensor], swap: bool = False) -> Tensor:
    a, b = m.fc1(m.norm(x)).chunk(2, -1)
    made: Tensor = m.fc2(act(b) * a if swap else a * act(b) if swap is None else act(a) * b)
    return made


def _read_again(m: nn.Module, x: Tensor) -> Tensor:
    y: Tensor = m.fc1(m.norm(x))
    made: Tensor = m.fc2(F.relu(y)) + y.sum()
    return made


WIDE = {"fc1": nn.Linear(64, 256)}
MLP, LINEAR, NORM = "LayerNormMLP", "Linear", "LayerNormLinear"
# parts, forward → kinds of fc1 and what follows
CASES: dict[str, tuple[dict[str, nn.Module], Callable[[nn.Module, Tensor], Tensor], list[str]]] = {
    "tanh gelu": (_parts(), _mlp(lambda y: F.gelu(y, approximate="tanh")), [MLP]),
    "exact gelu is another function": (_parts(), _mlp(F.gelu), [NORM, LINEAR]),
    "relu": (_parts(), _mlp(F.relu), [MLP]),
    "silu": (_parts(), _mlp(F.silu), [MLP]),
    "tanh is none of theirs": (_parts(), _mlp(torch.tanh), [NORM, LINEAR]),
    "relu in place": (_parts(), _mlp(lambda y: F.relu(y, inplace=True)), [NORM, LINEAR]),
    "dropout between": (_parts(), _mlp(lambda y: F.dropout(F.relu(y), 0.1, True)), [NORM, LINEAR]),
    "one bias": (_parts(fc2=nn.Linear(128, 64, bias=False)), _mlp(F.relu), [NORM, LINEAR]),
    "no biases": (
        _parts(fc1=nn.Linear(64, 128, bias=False), fc2=nn.Linear(128, 64, bias=False)), _mlp(F.relu), [MLP],
    ),
    "another width": (_parts(fc2=nn.Linear(128, 32)), _mlp(F.relu), [NORM, LINEAR]),
    "rms norm": (_parts(norm=nn.RMSNorm(64, eps=1e-6)), _mlp(F.relu), [MLP]),
    "rms norm without eps": (_parts(norm=nn.RMSNorm(64)), _mlp(F.relu), [LINEAR, LINEAR]),
    "norm without bias": (_parts(norm=nn.LayerNorm(64, bias=False)), _mlp(F.relu), [LINEAR, LINEAR]),
    "norm without weight": (_parts(norm=nn.LayerNorm(64, elementwise_affine=False)), _mlp(F.relu), [LINEAR, LINEAR]),
    "norm read twice": (_parts(), lambda m, x: _mlp(F.relu)(m, x) + m.norm(x).sum(), [LINEAR, LINEAR]),
    "inside read again": (_parts(), _read_again, [NORM, LINEAR]),
    "swiglu": (_parts(**WIDE), lambda m, x: _gated(m, x, F.silu), [MLP]),
    "reglu": (_parts(**WIDE), lambda m, x: _gated(m, x, F.relu), [MLP]),
    "glu": (_parts(**WIDE), lambda m, x: _gated(m, x, torch.sigmoid), [MLP]),
    "the other half is activated": (_parts(**WIDE), lambda m, x: _gated(m, x, F.silu, True), [NORM, LINEAR]),
    "functional glu activates the other half": (_parts(**WIDE), _mlp(F.glu), [NORM, LINEAR]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_fits_into_one_module(name: str) -> None:
    parts, run, kinds = CASES[name]
    torch.manual_seed(0)
    made = replace(policy.load("fp8-training-hopper-te"), hazards=(("PA410", "off"),))  # of sizes like these
    report = pa.audit(Model(parts, run), (torch.randn(32, 64),), policy=made)
    assert [swap.kind.removeprefix("te.") for swap in report.plan.swaps] == kinds
    assert report.verification is not None and report.verification.passed


def test_a_linear_that_stays_alone_says_why() -> None:
    parts, run, _ = CASES["norm without bias"]
    report = pa.audit(Model(parts, run), (torch.randn(32, 64),), policy="fp8-training-hopper-te")
    assert report.plan.swaps[0].notes == (
        "te.Linear, not te.LayerNormLinear: norm: it has no bias, and te.LayerNorm always has one",
    )


def test_both_modes_hold_the_same_parameters() -> None:
    """What is between norm and linear is there in training only, so that the two modes have different modules."""

    def run(m: nn.Module, x: Tensor) -> Tensor:
        y = m.norm(x)
        made: Tensor = m.fc2(torch.tanh(m.fc1(F.dropout(y, 0.5) if m.training else y)))
        return made

    model = Model(_parts(), run)
    report, converted = pipeline.run(pipeline.Request(model, (torch.randn(32, 64),), policy="fp8-training-hopper-te"))
    assert converted is not None
    assert {mode: [swap.kind for swap in plan.swaps] for mode, plan in converted.plans.items()} == {
        "training": ["te.Linear", "te.Linear"], "inference": ["te.LayerNormLinear", "te.Linear"],
    }  # fmt: skip
    assert list(converted.state_dict()) == list(model.state_dict()) and report.plan.mode == "training"
    named = dict(converted.named_parameters())
    assert converted.get_submodule("fc1_LayerNormLinear").weight is named["fc1.weight"] is converted.fc1.weight
    converted.eval()
    converted(torch.randn(32, 64)).sum().backward()
    assert all(value.grad is not None for value in converted.parameters())
