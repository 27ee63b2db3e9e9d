"""fp32 master weights for a model whose parameters themselves are fp16 or bf16.

Takes any torch optimizer over such parameters; gives an optimizer that updates fp32 copies, the masters, and rounds
them back into the model after each step. Why: bf16 keeps 8 bits of a weight and fp16 11, so an update below half of
the last bit is lost, each step anew, however many agree. In fp32 they add up.

    optimizer = pa.MasterWeights(torch.optim.SGD(model.parameters(), lr=1e-3), loss_scale=128)
    for batch, target in batches:
        optimizer.zero_grad()
        loss = loss_function(model(batch).float(), target)
        optimizer.scale(loss).backward()
        optimizer.unscale_()  # only to clip; step() does it otherwise
        torch.nn.utils.clip_grad_norm_(optimizer.master_params(), 5.0)  # not model.parameters()
        optimizer.step()

With `torch.amp.GradScaler`, on CPU too, leave `loss_scale` at 1:

    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)  # only to clip
    torch.nn.utils.clip_grad_norm_(optimizer.master_params(), 5.0)
    scaler.step(optimizer)
    scaler.update()

How they meet: GradScaler works on the gradients of what it reads in `optimizer.param_groups`, so reading these first
brings the masters' gradients up to date with the model's. `_step_supports_amp_scaling` asks GradScaler to tell `step()`
the scale and whether it met Inf or NaN; then nothing has to be guessed.

Who owns what. The model owns the values: what is loaded, clamped or set there between steps wins over the master of
that element. `state_dict()` holds the masters, and loading one leaves the model alone: load the model too. Must never
change the model but for values in `step()`, nor apply a gradient twice divided, undivided or left over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from precision_audit.master_weights.masters import (
    Master,
    Seen,
    check_optimizer,
    check_saved,
    found_inf,
    in_fp32,
    masters_of,
    numbered,
    refuse_sparse,
    told,
)
from precision_audit.master_weights.scale import checked_scale, inverse
from precision_audit.records import InputError

_SHARED_HOOKS = ("state_dict_pre", "state_dict_post", "load_state_dict_pre", "load_state_dict_post")
_CHANGED = (
    "gradients of the model changed after unscale_() or clipping; clip optimizer.master_params(), not "
    "model.parameters(), after the last backward; zero_grad() starts anew"
)


class MasterWeights(Optimizer):
    """Wraps `optimizer` so that fp16 and bf16 parameters are updated in fp32; others in its groups stay as they are.

    It is a `torch.optim.Optimizer` that shares `param_groups`, `state` and `defaults` with the one it wraps
    (`.optimizer`), so schedulers take either. The groups hold the masters in place of the half parameters, and state
    that exists is moved to them in fp32. Costs 4 bytes a half parameter, 4 more while there are gradients, and state in
    fp32.

    `loss_scale` is a number (1: none; powers of two lose nothing) or "dynamic": it starts at `init_scale`, is
    multiplied by `backoff_factor` after a step with Inf or NaN and by `growth_factor` after `growth_interval` steps
    without; the defaults are GradScaler's. A step with Inf or NaN is skipped under any scale and counted in
    `skipped_steps`.

    Raises `InputError` for what it cannot do: closures (LBFGS), sparse gradients, parameters that share memory without
    being one parameter, and being copied or pickled (`state_dict()` is). Step hooks of its own are called in each step,
    those of the wrapped optimizer where that steps.
    """

    _step_supports_amp_scaling = True  # see above; read by torch.amp.GradScaler.step

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        loss_scale: float | str = 1.0,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
    ) -> None:
        check_optimizer(optimizer, MasterWeights)
        self._scale = checked_scale(loss_scale, init_scale, growth_factor, backoff_factor, growth_interval)
        self.optimizer = optimizer
        self._masters: list[Master] = []
        self._pending = False  # the masters' gradients were taken from the model's and wait for a step
        self._unscaled = False
        self._found_inf = False
        self._divided: dict[Tensor, Seen] = {}  # gradients, of parameters without master, that are divided already
        # Optimizer.__init__ would make groups and state of its own. This makes what else an Optimizer has: hooks.
        super().__setstate__({})
        for kind in _SHARED_HOOKS:
            setattr(self, f"_optimizer_{kind}_hooks", getattr(optimizer, f"_optimizer_{kind}_hooks"))
        self._adopt(optimizer.param_groups)

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The wrapped optimizer's, with masters whose gradients are those of the model."""
        self._gather()
        return self.optimizer.param_groups

    @property
    def state(self) -> dict[Tensor, Any]:  # type: ignore[override]
        return self.optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        return self.optimizer.defaults

    @property
    def skipped_steps(self) -> int:
        """Steps not made because a gradient held Inf or NaN."""
        return self._scale.skipped_steps

    def get_scale(self) -> float:
        """The loss scale of the present step."""
        return self._scale.scale

    def master_params(self) -> list[Tensor]:
        """What the optimizer updates: fp32 masters, and parameters that needed none. To be clipped between `unscale_`
        and `step`; at other times the gradients are those of the scaled loss."""
        self._gather() if self._pending else self._take()
        return self._parameters()

    def scale(self, loss: Tensor) -> Tensor:
        """`loss` times the loss scale, in fp32. Raises `InputError` for what is no float tensor, and for an fp16 loss
        whose own gradient, the scale, fp16 does not hold."""
        if not isinstance(loss, Tensor) or not loss.is_floating_point():
            raise InputError(f"MasterWeights.scale: expected a loss in a float format, got {told(loss)}")
        scale, largest = self.get_scale(), torch.finfo(torch.float16).max
        if loss.dtype == torch.float16 and scale > largest and not self._scale.dynamic:
            raise InputError(
                f"MasterWeights.scale: the loss is fp16 and the scale {scale:g} above fp16's {largest:g}; "
                "compute the loss in fp32: loss_function(output.float(), target)"
            )
        return (loss if loss.dtype == torch.float64 else loss.float()) * scale

    @torch.no_grad()
    def unscale_(self) -> None:
        """The masters' gradients become the model's, divided by the loss scale in fp32, ready to be clipped. Once a
        step, after the last backward: raises `InputError` the second time."""
        self._gather()
        if self._unscaled:
            raise InputError("MasterWeights.unscale_: called twice in a step; call it once, after the last backward")
        self._divide(self.get_scale())
        self._found_inf = found_inf(self.master_params())
        self._unscaled = True

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Divides (unless `unscale_` did), updates in fp32, rounds into the model; skipped where a gradient holds Inf
        or NaN."""
        if closure is not None:
            raise InputError("MasterWeights.step: takes no closure; call backward before step(), without one")
        skip = self._ready_by_scaler() if "found_inf" in self.__dict__ else self._ready()
        if not skip:
            for master in self._masters:
                master.follow()
            self.optimizer.step()
            for master in self._masters:
                master.round_back()
        self._scale.update(skip)
        self._pending = self._unscaled = False
        self._divided = {
            each: Seen(each.grad) for each in set(self._parameters()) - {master.high for master in self._masters}
        }

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Of the model's parameters. The masters' gradients are released, since they are made from those."""
        self.optimizer.zero_grad(set_to_none)
        for master in self._masters:
            master.zero_grad(set_to_none)
        self._pending = self._unscaled = False

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.optimizer.add_param_group(dict(param_group))
        try:
            self._adopt(self.optimizer.param_groups[-1:])
        except InputError:
            self.optimizer.param_groups.pop()
            raise

    @torch.no_grad()
    def state_dict(self) -> dict[str, Any]:
        """The wrapped optimizer's, with `masters` (fp32 tensors by the number of the parameter) and `loss_scale`."""
        for master in self._masters:
            master.follow()
        masters = {
            number: master.high.detach() for number, master in numbered(self._parameters(), self._masters).items()
        }
        return {**self.optimizer.state_dict(), "masters": masters, "loss_scale": self._scale.state_dict()}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on where `state_dict()` was taken, bit for bit once the model is loaded too (before or after). Raises
        `InputError`, with nothing changed, for a state that is not this optimizer's."""
        own = numbered(self._parameters(), self._masters)
        check_saved(state_dict, own)
        self._scale.check(state_dict["loss_scale"])
        try:
            self.optimizer.load_state_dict({"state": state_dict["state"], "param_groups": state_dict["param_groups"]})
        except (ValueError, KeyError) as error:
            raise InputError(f"MasterWeights.load_state_dict: {' '.join(str(error).split())}") from error
        for number, master in own.items():
            master.high.copy_(state_dict["masters"][number])
        self._scale.load_state_dict(state_dict["loss_scale"])

    def __getstate__(self) -> dict[str, Any]:
        raise InputError("MasterWeights: cannot be copied or pickled; save state_dict() and load it into a new one")

    # --- gradients, from the model to the masters

    def _gather(self) -> None:
        """Takes the model's gradients where they are not those that were taken last."""
        if all(master.is_current() for master in self._masters):
            return
        if self._is_worked_on() and any(master.holds_same() for master in self._masters):
            raise InputError(f"MasterWeights: {_CHANGED}")
        self._take()

    def _take(self) -> None:
        for master in self._masters:
            master.take()
        self._pending, self._unscaled = True, False

    def _is_worked_on(self) -> bool:
        """Whether the masters' gradients are no longer as they were taken, and wait for their step."""
        return self._pending and (self._unscaled or any(master.is_touched() for master in self._masters))

    def _divide(self, scale: float) -> None:
        """The gradients become those of the loss before it was scaled."""
        refuse_sparse(self._parameters())
        if not self._is_worked_on():
            self._take()
        elif scale != 1:
            raise InputError("MasterWeights: gradients were clipped or divided before unscale_(); call it first")
        factor = inverse(scale)
        for parameter in self.master_params():
            gradient, divided = parameter.grad, self._divided.get(parameter)
            if gradient is not None and scale != 1 and not (divided and divided.is_unchanged(gradient)):
                gradient.mul_(factor)

    def _ready(self) -> bool:
        """The masters' gradients are those to step with. Whether the step is to be skipped."""
        self._gather()  # refuses what changed since unscale_
        if not self._unscaled:
            self.unscale_()
        return self._found_inf

    def _ready_by_scaler(self) -> bool:
        """The same within `GradScaler.step`, which has set `found_inf` and, unless it has divided, `grad_scale`."""
        scale, found = self.__dict__["grad_scale"], self.__dict__["found_inf"]
        try:
            if self._scale.dynamic or self.get_scale() != 1:
                raise InputError("MasterWeights: a loss scale of its own and a GradScaler; use one: loss_scale=1.0")
            if scale is not None:
                self._divide(scale.item())
            elif not all(master.is_current() for master in self._masters):
                raise InputError(f"MasterWeights: {_CHANGED}")
        except InputError:  # GradScaler takes them back after a step that returns
            del self.__dict__["grad_scale"], self.__dict__["found_inf"]
            raise
        return bool(found.item())

    # --- masters

    def _adopt(self, groups: list[dict[str, Any]]) -> None:
        """Makes masters of the half parameters in `groups` and puts them there."""
        made = masters_of(groups, self._masters)
        by_low = {master.low: master for master in made}
        for group in groups:
            group["params"] = [by_low[each].high if each in by_low else each for each in group["params"]]
        for master in made:
            if master.low in self.optimizer.state:
                self.optimizer.state[master.high] = in_fp32(self.optimizer.state.pop(master.low))
        self._masters += made

    def _parameters(self) -> list[Tensor]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
