"""One fp32 master and the half parameter it stands for.

Takes parameter groups; gives `Master` pairs, which carry gradients to the master and values back. A gradient is *seen*
when it was taken: the same tensor, not written since. Must never change the half parameter outside `round_back`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.weak import TensorWeakRef

from precision_audit.records import InputError

_HALF = (torch.float16, torch.bfloat16)


def masters_of(groups: list[dict[str, Any]], known: Iterable[Master]) -> list[Master]:
    """A master for each half parameter in `groups`. Raises `InputError`, having made none, where one would not do."""
    names: dict[Tensor, str] = {}
    homes = {_home(master.low): master.name for master in known}
    for number, group in enumerate(groups):
        own_names = group.get("param_names")
        for index, parameter in enumerate(group["params"]):
            if parameter.dtype not in _HALF or parameter in names:
                continue
            name = own_names[index] if own_names else f"{index} of group {number}, shape {tuple(parameter.shape)}"
            home = _home(parameter)
            if home in homes:
                raise InputError(
                    f"MasterWeights: parameter {name} shares its memory with parameter {homes[home]}, which has a "
                    "master; tie them as one parameter"
                )
            homes[home], names[parameter] = name, name
    return [Master(parameter, name) for parameter, name in names.items()]


def numbered(parameters: list[Tensor], masters: Iterable[Master]) -> dict[int, Master]:
    """Masters by the number that `Optimizer.state_dict` gives their parameter: of its first place in the groups."""
    by_high: dict[Tensor, Master] = {master.high: master for master in masters}
    found: dict[Master, int] = {}
    for number, parameter in enumerate(parameters):
        if parameter in by_high:
            found.setdefault(by_high[parameter], number)
    return {number: master for master, number in found.items()}


class Seen:
    """A gradient, or its absence, as it was. Holds no memory."""

    __slots__ = ("_reference", "_version")

    def __init__(self, gradient: Tensor | None) -> None:
        self._reference = None if gradient is None else TensorWeakRef(gradient)
        self._version = 0 if gradient is None else gradient._version

    def is_same(self, gradient: Tensor | None) -> bool:
        """The same tensor, whatever was written to it; false for none."""
        return gradient is not None and self._reference is not None and self._reference() is gradient

    def is_unchanged(self, gradient: Tensor | None) -> bool:
        if gradient is None:
            return self._reference is None
        return self.is_same(gradient) and gradient._version == self._version


class Master:
    """`low`, the model's parameter, and `high`, its fp32 copy of the same shape, device and strides."""

    def __init__(self, low: Tensor, name: str) -> None:
        self.low, self.name, self._format = low, name, low.dtype
        self.high = nn.Parameter(low.detach().float(), requires_grad=low.requires_grad)
        self._low_seen, self._high_seen = Seen(None), Seen(None)
        self._largest: Tensor | None = None

    def take(self) -> None:
        """The half gradient, in fp32, becomes the master's."""
        self._check_home()
        gradient = self.low.grad
        if gradient is not None and gradient.layout != torch.strided:
            raise InputError(f"MasterWeights: {_sparse(self.name)}")
        self.high.grad = None if gradient is None else gradient.detach().to(torch.float32, copy=True)
        self._largest = None if gradient is None else largest(gradient).float()
        self._low_seen, self._high_seen = Seen(gradient), Seen(self.high.grad)

    def is_current(self) -> bool:
        return self._low_seen.is_unchanged(self.low.grad)

    def holds_same(self) -> bool:
        """Whether the half gradient is the tensor that was taken, if written to since."""
        return self._low_seen.is_same(self.low.grad)

    def is_touched(self) -> bool:
        """Whether the master's gradient was changed since it was taken. GradScaler divides without a trace in the
        tensor's version, hence the largest magnitude too: it stays only where nothing was divided, or all is zero."""
        if not self._high_seen.is_unchanged(self.high.grad):
            return True
        if self.high.grad is None or self._largest is None:
            return False
        now, then = largest(self.high.grad).item(), self._largest.item()
        return now != then and not (math.isnan(now) and math.isnan(then))

    def follow(self) -> None:
        """Elements that the user set in the model since `round_back`, by whatever means, are taken over."""
        self._check_home()
        low = self.low.detach()
        rounded = self.high.to(low.dtype)
        if not torch.equal(low.view(torch.int16), rounded.view(torch.int16)):  # four times as fast as of halves, on CPU
            self.high.copy_(torch.where(low == rounded, self.high, low.float()))

    def round_back(self) -> None:
        self.low.copy_(self.high)

    def zero_grad(self, set_to_none: bool) -> None:
        self.high.grad = None
        self._low_seen, self._high_seen, self._largest = Seen(None), Seen(None), None
        if set_to_none:
            self.low.grad = None
        elif self.low.grad is not None:
            self.low.grad = self.low.grad.detach()
            self.low.grad.zero_()

    def _check_home(self) -> None:
        now, then = (self.low.device, self.low.dtype), (self.high.device, self._format)
        if now != then:
            raise InputError(
                f"MasterWeights: parameter {self.name} is {str(now[1])[6:]} on {now[0]}, and was {str(then[1])[6:]} on "
                f"{then[0]}; move and cast the model first, then make its optimizer and MasterWeights"
            )


def refuse_sparse(parameters: Iterable[Tensor]) -> None:
    for each in parameters:
        if each.grad is not None and each.grad.layout != torch.strided:
            raise InputError(f"MasterWeights: {_sparse(f'of shape {tuple(each.shape)}')}")


def found_inf(parameters: Iterable[Tensor]) -> bool:
    """Whether a gradient of `parameters` holds Inf or NaN: one wait for the device."""
    gradients = [each.grad for each in parameters if each.grad is not None]
    if not gradients:
        return False
    return not bool(torch.stack([largest(each).float().to(gradients[0].device) for each in gradients]).isfinite().all())


def check_saved(state: Any, own: dict[int, Master]) -> None:
    """Raises `InputError` unless `state` is what `MasterWeights.state_dict` gives, with masters that fit `own`."""
    where = "MasterWeights.load_state_dict"
    if not isinstance(state, dict):
        raise InputError(f"{where}: expected a dict as state_dict() gives it, got {type(state).__name__}")
    missing = [each for each in ("state", "param_groups", "masters", "loss_scale") if each not in state]
    if missing == ["masters", "loss_scale"]:
        raise InputError(f"{where}: a plain optimizer's state; load it into a plain one, then wrap that")
    if missing:
        raise InputError(f"{where}: {missing[0]!r} is missing; save state_dict() whole")
    if sorted(state["masters"]) != sorted(own):
        raise InputError(
            f"{where}: masters saved for parameters {sorted(state['masters'])}, needed for {sorted(own)}; "
            "make the model and its groups as they were"
        )
    for number, master in own.items():
        saved = state["masters"][number]
        if saved.dtype != torch.float32 or saved.shape != master.high.shape:
            raise InputError(
                f"{where}: master {number} is {str(saved.dtype)[6:]} of shape {tuple(saved.shape)}, parameter "
                f"{master.name} needs float32 of shape {tuple(master.high.shape)}"
            )


def largest(gradient: Tensor) -> Tensor:
    """The largest magnitude, NaN where there is one; zero of nothing. A 0-dim tensor in the gradient's format."""
    if not gradient.numel():
        return gradient.new_zeros(())
    lowest, highest = torch.aminmax(gradient)
    return torch.maximum(-lowest, highest)


def in_fp32(state: Any) -> Any:
    """An optimizer's state of one parameter, half tensors in it in fp32."""
    if isinstance(state, Tensor):
        return state.float() if state.dtype in _HALF else state
    if isinstance(state, dict):
        return {key: in_fp32(value) for key, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)(in_fp32(each) for each in state)
    return state


def _home(parameter: Tensor) -> Any:
    """Where its memory begins; the parameter itself where there is none."""
    return (parameter.device, parameter.data_ptr()) if parameter.numel() and parameter.data_ptr() else parameter


def _sparse(name: str) -> str:
    return f"the gradient of parameter {name} is sparse; make the layer with sparse=False"


def check_optimizer(optimizer: Optimizer, wrapper: type) -> None:
    """InputError for what cannot be wrapped."""
    if not isinstance(optimizer, Optimizer):
        raise InputError(f"MasterWeights: expected a torch.optim.Optimizer, got {told(optimizer)}")
    if isinstance(optimizer, wrapper):
        raise InputError("MasterWeights: the optimizer is wrapped already; wrap it once")
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise InputError(
            f"MasterWeights: {type(optimizer).__name__} calls a closure for its gradients, which a scaled loss and "
            "skipped steps do not allow; use an optimizer whose step() needs none"
        )


def told(value: object) -> str:
    """What a value is, for an error."""
    return f"a {str(value.dtype)[6:]} tensor" if isinstance(value, Tensor) else type(value).__name__
