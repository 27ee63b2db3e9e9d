"""The scalar that a training step descends from.

Takes a model's output and the user's loss, if there is one; gives a tensor of one element. Without a loss it is the
output itself where that is one number, or what the output calls `loss`, as models of some libraries do when they are
given labels. Never makes one up: the size of gradients, which all training evidence is about, depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from precision_audit.records import InputError, kind_of

Loss = Callable[[Any], Tensor]


def loss_of(output: Any, loss: Loss | None) -> Tensor | None:
    """The loss; None where there is none. InputError for a loss that is no number or descends from no parameter."""
    if loss is not None:
        return _checked(_called(loss, output), "loss returned")
    own = own_loss(output)
    return None if own is None else _checked(own, "the output's loss is")


def own_loss(output: Any) -> Tensor | None:
    """The output itself where it is one float, or what it calls `loss`."""
    if not isinstance(output, Tensor):
        output = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    return output if isinstance(output, Tensor) and _is_loss(output) else None


def _called(loss: Loss, output: Any) -> Any:
    try:
        return loss(output)
    except TypeError as error:
        if "positional argument" not in str(error):
            raise
        raise InputError(
            f"loss gets the model's output and nothing else ({error}); expected a function of the output: put targets "
            "into the inputs and return the loss from forward, or let the function hold them"
        ) from error


def _is_loss(value: Tensor) -> bool:
    return value.numel() == 1 and value.is_floating_point()


def _checked(value: Any, what: str) -> Tensor:
    if not isinstance(value, Tensor) or value.numel() != 1:
        found = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else kind_of(value)
        raise InputError(f"{what} {found}; expected a tensor of one element, such as the mean")
    if not value.is_floating_point() or not value.requires_grad:
        raise InputError(
            f"{what} {value.dtype} without a gradient".replace("torch.", "")
            + "; expected a float that depends on a trainable parameter: look for detach(), argmax, .item() or no_grad"
        )
    return value.reshape(())
