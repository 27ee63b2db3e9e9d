"""Hand-written gradients: what the capture records of them, whether they survive, and what autocast makes of them."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import precision_audit as pa
from precision_audit.analyse.functions import differing, functions
from precision_audit.capture import capture, private_copy
from precision_audit.policy import load
from precision_audit.records import CustomFunction, Finding, InputError

amp_forward = torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
amp_backward = torch.amp.custom_bwd(device_type="cpu")


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return -gradient


class Product(torch.autograd.Function):
    """What autograd does too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return torch.mm(x, w.t())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        return torch.mm(gradient, w), torch.mm(gradient.t(), x)


class Decorated(torch.autograd.Function):
    @staticmethod
    @amp_forward
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return torch.mm(x, w.t())

    @staticmethod
    @amp_backward
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        return torch.mm(gradient, w), torch.mm(gradient.t(), x)


class InTwoParts(torch.autograd.Function):
    """The newer spelling: the context is set up apart."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sign()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * (ctx.saved_tensors[0].abs() < 1)


class Counted(torch.autograd.Function):
    """Returns a number beside its tensor, which no op of a graph can."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, int]:
        return x.round(), 3

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: None) -> Tensor:
        return gradient


class Net(nn.Module):
    def __init__(self, ways: tuple[str, ...]) -> None:
        super().__init__()
        self.ways = ways
        self.first, self.w, self.last = nn.Linear(8, 8), nn.Parameter(torch.randn(8, 8) * 0.3), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x) * 2
        for way in self.ways:
            if way == "rounded":
                h = Rounded.apply(h)
            elif way == "reversed":
                h = Reversed.apply(h)
            elif way == "product":
                h = Product.apply(h, self.w)
            elif way == "decorated":
                h = Decorated.apply(h, self.w)
            elif way == "counted":
                h, _ = Counted.apply(h)
            elif way == "in two parts":
                h = InTwoParts.apply(h)
            elif h.requires_grad:
                h.register_hook(lambda gradient: gradient * 3)
        return self.last(h)


LINES, START = inspect.getsourcelines(Net.forward)
NAMES = {"rounded": "Rounded", "reversed": "Reversed", "product": "Product", "in two parts": "InTwoParts"}
X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))


def built(*ways: str) -> Net:
    torch.manual_seed(0)
    return Net(ways)


def line_of(name: str) -> int:
    (line,) = [START + index for index, text in enumerate(LINES) if f"{name}.apply" in text]
    return line


def seen(policy: str, *ways: str) -> dict[str, CustomFunction]:
    net, made = built(*ways), load(policy)
    captured = capture(private_copy(net), (X,), mode=made.mode)
    batch = ((X,), {})
    return {each.name: each for each in functions(net, captured, made, batch, differing(net, captured, batch))}


def told(policy: str, *ways: str) -> list[Finding]:
    report = pa.audit(built(*ways), (X,), policy=policy, device="cpu-amx")
    return [finding for finding in report.findings if finding.rule == "PA309"]


def test_what_the_capture_records() -> None:
    recorded = capture(private_copy(built("product", "decorated")), (X,), mode="training").graph.functions
    plain, decorated = recorded
    assert (plain.name, decorated.name) == ("Product", "Decorated")
    assert plain.call is not None and plain.call.line == line_of("Product") and plain.call.file == __file__
    assert plain.defined is not None and plain.defined.text == "class Product(torch.autograd.Function):"
    first = inspect.getsourcelines(Product)
    assert (plain.defined.line, plain.last_line) == (first[1], first[1] + len(first[0]) - 1)
    assert not plain.custom_fwd and decorated.custom_fwd
    assert plain.ops == ("/t#0", "/mm#0") and decorated.ops == ("/t#1", "/mm#1")
    assert capture(private_copy(built()), (X,), mode="training").graph.functions == ()


@pytest.mark.parametrize(
    ("way", "error"),
    [
        ("rounded", 1.0),  # autograd's gradient of round and sign is zero: |g - 0| / |g|
        ("in two parts", 1.0),
        ("reversed", 2.0),  # |g - (-g)| / |g|
    ],
)
def test_a_gradient_that_is_not_autograds_is_kept(way: str, error: float) -> None:
    (found,) = seen("bf16-training", way).values()
    assert found.difference == pytest.approx(error, rel=1e-6) and found.parameter.startswith("first.")
    report = pa.audit(built(way), (X,), policy="bf16-training", device="cpu-amx")
    assert report.verdict == "READY" and not report.findings
    (decision,) = [each for each in report.decisions if each.op == f"/function::{NAMES[way]}#0"]
    assert (decision.chosen, decision.reason) == ("fp32", "fact: hand-written gradient, kept as written")
    (function,) = report.facts.functions
    assert function.kept and function.difference == 0.0
    assert function.call is not None and function.call.line == line_of(NAMES[way])


def test_only_the_one_that_matters_is_kept() -> None:
    found = seen("bf16-training", "product", "rounded")
    assert found["Product"].difference == 0.0 and found["Rounded"].difference == 1.0
    report = pa.audit(built("product", "rounded"), (X,), policy="bf16-training", device="cpu-amx")
    assert {each.name: each.kept for each in report.facts.functions} == {"Product": False, "Rounded": True}
    assert next(each for each in report.decisions if each.op == "/mm#0").chosen == "bf16"


def test_what_cannot_be_kept_is_told() -> None:
    (finding,) = told("bf16-training", "counted")
    assert finding.severity == "error" and not finding.resolved
    assert finding.message.startswith("Counted: its hand-written backward is not in the converted module")
    assert "(it cannot be kept: it returns more than tensors)" in finding.message
    assert finding.source is not None and finding.source.line == line_of("Counted")


@pytest.mark.parametrize(
    ("policy", "way"),
    [
        ("bf16-training", "product"),
        ("bf16-training", "decorated"),
        ("amp-cpu-bf16", "decorated"),
        ("bf16-inference", "rounded"),
        ("bf16-inference", "product"),
    ],
)
def test_what_agrees_and_runs_is_quiet(policy: str, way: str) -> None:
    assert told(policy, way) == []


@pytest.mark.parametrize(("policy", "other"), [("amp-cpu-bf16", "BFloat16"), ("amp-cuda-fp16", "Half")])
def test_a_backward_that_autocast_breaks(policy: str, other: str) -> None:
    """The gradient comes in low and meets an fp32 weight: eager torch, without this package, says the same."""
    net, low = built("product"), torch.bfloat16 if other == "BFloat16" else torch.float16
    with torch.autocast("cpu", low):
        output = net(X)
    with pytest.raises(RuntimeError) as raised:
        output.float().sum().backward()
    (finding,) = told(policy, "product")
    assert str(raised.value).splitlines()[0][:100] in finding.message and "in backward" in finding.message
    assert finding.source is not None and finding.resolved
    assert finding.source.text == "return torch.mm(gradient, w), torch.mm(gradient.t(), x)"
    assert f"Product, applied at line {line_of('Product')}: " in finding.message
    assert "custom_fwd" in finding.remedy and "custom_bwd" in finding.remedy


@pytest.mark.parametrize("way", ["product", "rounded"])
def test_a_hook_beside_a_function_is_still_refused(way: str) -> None:
    with pytest.raises(InputError, match="gradient hooks"):
        pa.audit(built(way, "hook"), (X,), policy="bf16-training", device="cpu-amx")


def test_the_model_is_as_it_was() -> None:
    net = built("rounded").eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    apply = torch.autograd.Function.__dict__["apply"]
    pa.audit(net, (X,), policy="amp-cpu-bf16", device="cpu-amx")
    assert not net.training and all(parameter.grad is None for parameter in net.parameters())
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert torch.autograd.Function.__dict__["apply"] is apply
