"""The converted module as a module: inputs that a policy lowers, traced state, dataclasses, old weight_norm."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import precision_audit as pa
from precision_audit.policy import parse
from precision_audit.records import InputError

LOW_IO = """\
name: low-io
mode: {mode}
keep_io_types: false
formats: {{high: fp32, low: bf16}}
rules:
  - {{name: linears, op: linear, class: safe-in-bf16}}
  - {{name: rest, class: follow}}
"""


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_inputs_that_the_policy_lowers(mode: str, tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Linear(16, 16), nn.ReLU()), torch.randn(4, 16)
    result = pa.convert(model, (x,), policy=parse(LOW_IO.format(mode=mode)))
    (args, kwargs) = result.module.as_read((x,), {})
    assert (args[0].dtype, kwargs) == (torch.bfloat16, {})
    assert result.module(*args).dtype == torch.bfloat16
    assert result.report.verification is not None
    assert result.report.verification.passed
    if mode == "inference":
        saved = pa.save(result.module, result.plan, tmp_path / "low.pt2", (x,))
        assert torch.equal(pa.load(saved)(*args), result.module(*args))


class Cached(nn.Module):
    """Makes a tensor when it first runs and keeps it, outside the state dict."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "steps"):
            self.steps = torch.arange(4.0)
        return self.a(x) + self.steps


@pytest.mark.parametrize("policy", ["bf16-inference", "bf16-training"])
def test_what_tracing_leaves_in_attributes_meets_no_later_run(policy: str) -> None:
    model, x = Cached(), torch.randn(2, 4)
    result = pa.convert(model, (x,), policy=policy)
    assert not hasattr(model, "steps")
    assert result.report.verification is not None
    assert result.report.verification.captured_against_eager.startswith("bitwise on the example")
    for training in (True, False)[policy == "bf16-inference" :]:
        torch.testing.assert_close(result.module.train(training)(x), Cached.forward(model, x), rtol=0.05, atol=0.05)


@dataclass
class Inputs:
    x: Tensor
    scale: Tensor


@dataclass
class Outputs:
    y: Tensor
    inputs: Inputs


class Records(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, given: Inputs) -> Outputs:
        return Outputs(self.a(given.x) * given.scale, given)


def test_dataclasses_inside_one_another_go_in_and_come_out(tmp_path: Path) -> None:
    model, given = Records(), Inputs(torch.randn(2, 4), torch.tensor(2.0))
    result = pa.convert(model, (given,))
    found = result.module(given)
    assert (type(found), type(found.inputs)) == (Outputs, Inputs)
    torch.testing.assert_close(found.y, model(given).y, rtol=0.05, atol=0.05)
    with pytest.raises(InputError, match=r"register the class with torch\.export"):
        pa.save(result.module, result.plan, tmp_path / "out.pt2", (given,))
    assert not (tmp_path / "out.pt2").exists()


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_weight_that_a_hook_computes() -> None:
    model, x = nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 4)), nn.ReLU()), torch.randn(2, 4)
    result = pa.convert(model, (x,))
    assert set(result.module.state_dict()) == {"0.bias", "0.weight_g", "0.weight_v"}
    torch.testing.assert_close(result.module(x), model(x), rtol=0.05, atol=0.05)


def test_a_model_that_ends_the_process_is_refused() -> None:
    class Ends(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise SystemExit(3)

    with pytest.raises(InputError, match="Ends cannot be captured whole"):
        pa.convert(Ends(), (torch.ones(2),))


class Positions(nn.Module):
    """The number of positions is a constant of the graph when the length was fixed."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return (x + torch.arange(x.shape[1], dtype=x.dtype)) * mask


def test_a_size_that_was_fixed_is_refused_not_silently_wrong() -> None:
    x, mask = torch.randn(2, 5), torch.ones(2, 5)
    module = pa.convert(Positions(), (x, mask), policy="fp32").module
    assert torch.equal(module(x, mask), Positions()(x, mask))
    # size 1 would broadcast against five positions
    with pytest.raises(ValueError, match=r"x has size 1 in dimension 1; expected 5.*dynamic_shapes=\{'x': \{1:"):
        module(x[:, :1], mask)
    with pytest.raises(ValueError, match="mask has 3 dimensions; expected 2"):
        module(x, mask[None])
    compiled = torch.compile(module, backend="eager")
    assert torch.equal(compiled(x, mask), module(x, mask))
    with pytest.raises(Exception, match="x has size 1 in dimension 1; expected 5"):
        compiled(x[:, :1], mask)


def test_one_symbol_is_one_size() -> None:
    x, mask = torch.randn(2, 5), torch.ones(2, 5)
    length = torch.export.Dim("T", min=2)
    module = pa.convert(Positions(), (x, mask), policy="fp32", dynamic_shapes=({1: length}, {1: length})).module
    longer = torch.randn(2, 7)
    assert torch.equal(module(longer, torch.ones(2, 7)), Positions()(longer, torch.ones(2, 7)))
    with pytest.raises(ValueError, match="mask has size 1 in dimension 1; expected 7, the size of dimension 1 of x"):
        module(longer, torch.ones(2, 1))


@pytest.mark.parametrize("given", [torch.float32, torch.float16])
def test_an_input_in_another_format_than_the_graph_reads_is_named(given: torch.dtype) -> None:
    module = pa.convert(nn.Linear(4, 4), (torch.ones(2, 4),), policy="bf16-everywhere").module
    name = {torch.float32: "fp32", torch.float16: "fp16"}[given]
    with pytest.raises(ValueError, match=rf"^input is {name}; expected bf16.* module.as_read\(args, kwargs\)$"):
        module(torch.ones(2, 4, dtype=given))
    (args, kwargs) = module.as_read((torch.ones(2, 4, dtype=given),), {})
    assert module(*args, **kwargs).dtype is torch.bfloat16
