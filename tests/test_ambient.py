"""After an error the process is in no region of the model's; without one nothing is touched."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import precision_audit as pa
from precision_audit.ambient import restored_on_error


def _autocast() -> None:
    torch.amp.autocast_mode._enter_autocast("cpu", torch.bfloat16, True, False)


def _no_gradient() -> None:
    torch._C._set_grad_enabled(False)


def _transform() -> None:
    torch._C._functorch._jvp_increment_nesting()


def _modes() -> tuple[object, ...]:
    depth = torch._C._functorch.get_dynamic_layer_stack_depth()
    nesting = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), depth, nesting


@pytest.mark.parametrize("enter", [_autocast, _no_gradient, _transform])
def test_what_was_entered_is_left_after_an_error(enter: Callable[[], None]) -> None:
    before = _modes()
    with pytest.raises(ZeroDivisionError), restored_on_error():
        enter()
        assert _modes() != before
        raise ZeroDivisionError
    assert _modes() == before


class Region(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.a(x)
        with torch.no_grad():
            return y.float() + self.a(x)


def test_a_converted_module_called_wrongly_leaves_no_region_behind() -> None:
    module = pa.convert(Region(), (torch.randn(2, 4),), policy="bf16-inference").module
    before = _modes()
    with pytest.raises(RuntimeError):
        module(torch.ones(2, 4, dtype=torch.int64))
    assert _modes() == before


@pytest.mark.parametrize("value", ["tf32", "ieee", "bf16"])
def test_an_audit_leaves_the_generic_setting_in_charge(value: str) -> None:
    """torch.export alone leaves CUDA and oneDNN at what the generic setting was."""

    def read() -> list[str]:
        names = ("all", "matmul", "conv", "rnn")
        return [torch._C._get_fp32_precision_getter(backend, name) for backend in ("cuda", "mkldnn") for name in names]

    before = read()
    try:
        torch.backends.fp32_precision = value
        during = read()
        pa.audit(torch.nn.Linear(4, 4), (torch.ones(2, 4),), verify=False)
        assert read() == during
    finally:
        torch.backends.fp32_precision = "none"
    assert read() == before
