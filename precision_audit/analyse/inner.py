"""Numbers that an op computes on its way and never shows: the squares of a norm, q·k before its scale.

Takes an op, its node and what was just run; gives `Measured`s from the op's actual operands and result, where possible
from the result alone (a norm of order p is the p-th root of the sum it hides), so that it costs little. Ops whose
kernels compute nothing larger or smaller than they show have no row: products and sums are visible, softmax subtracts
the maximum first, means are kept in the accumulator until they are divided.

`held` says in which format a device keeps the number: "accumulator" is the one the kernel sums in
(`ops.accumulates_in`), fp32 nearly everywhere; "own" is the op's, because the op is made of several kernels that hand
each other tensors of that format. Found in torch 2.13's sources and checked by running each op in fp16.

To add an op, add a row; `inner_numbers` computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from precision_audit.analyse import inner_numbers as numbers_of
from precision_audit.capture.graph import named_arguments
from precision_audit.records import Op

Held = Literal["accumulator", "own"]


@dataclass(frozen=True, slots=True)
class Measured:
    """Largest magnitude, and the smallest but zero, of one inner number of one run."""

    what: str
    held: Held
    amax: float
    smallest: float
    kernels: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One inner number of one op. `compute` takes the arguments by name and the (first) result, and gives all such
    numbers as a tensor, or their largest and smallest magnitude, or None where there are none. `scaled`: the op then
    multiplies them by what `factor` gives, and calls that `scaled`."""

    what: str
    held: Held
    compute: Callable[[Mapping[str, Any], Tensor], Tensor | tuple[float, float] | None]
    kernels: str = ""
    scaled: str = ""
    factor: Callable[[Mapping[str, Any]], float] = lambda _: 1.0


def measured(op: Op, node: fx.Node, values: Mapping[fx.Node, Any], result: Any) -> Iterator[Measured]:
    """The inner numbers of one op that has just run; `values` holds its operands."""
    rows = ROWS.get(op.op, ())
    if not rows or op.mutates:  # what was overwritten cannot be looked at any more
        return
    first = result[0] if isinstance(result, tuple | list) else result
    given = {name: fx.map_arg(value, values.get) for name, value in named_arguments(node)}
    if any(_is_wrapped(each) for each in (first, *given.values())) or not first.numel():
        return
    first = first.detach()
    given = {name: value.detach() if isinstance(value, Tensor) else value for name, value in given.items()}
    for row in rows:
        try:
            numbers = row.compute(given, first)
        except (RuntimeError, LookupError, TypeError):  # a call that the row does not foresee: nothing is claimed of it
            continue
        if numbers is None:
            continue
        largest, smallest = _ends(numbers) if isinstance(numbers, Tensor) else numbers
        if largest > 0:
            what = _SQUARES if row.what == _POWER_SUM and numbers_of.order(given) == 2 else row.what
            yield Measured(what, row.held, largest, smallest, row.kernels)
            if row.scaled:
                factor = abs(row.factor(given))
                yield Measured(row.scaled, row.held, largest * factor, smallest * factor, row.kernels)


def _ends(numbers: Tensor) -> tuple[float, float]:
    """Largest magnitude and the smallest but zero, NaN left out; zeros where there is none."""
    magnitude = numbers.abs()
    low, high = (float(end) for end in torch.aminmax(magnitude))
    if not low > 0:  # zero, or NaN
        magnitude = magnitude[magnitude > 0]
        if not magnitude.numel():
            return 0.0, 0.0
        low, high = (float(end) for end in torch.aminmax(magnitude))
    return high, low


def _is_wrapped(value: Any) -> bool:
    return isinstance(value, Tensor) and bool(torch._C._functorch.is_functorch_wrapped_tensor(value))


_SQUARES, _POWER_SUM, _DEVIATIONS = "sum of squares", "sum of powers", "sum of squared deviations"
_ATTENTION = (
    Row("q·k before the scale", "accumulator", numbers_of.scores, scaled="scaled scores", factor=numbers_of.scale),
)  # the composite form, too, widens fp16 and bf16 first
_PRODUCT = (Row("product before the sum", "accumulator", numbers_of.product),)
_POWERS = (Row(_POWER_SUM, "accumulator", numbers_of.powers),)
_LAYER = (Row(_DEVIATIONS, "accumulator", numbers_of.layer),)
_GROUP = (Row(_DEVIATIONS, "accumulator", numbers_of.group),)
_BATCH = (Row(_DEVIATIONS, "accumulator", numbers_of.batch),)
_VARIANCE = (Row(_DEVIATIONS, "accumulator", numbers_of.variance),)
_DEVIATION = (Row(_DEVIATIONS, "accumulator", numbers_of.deviation),)
_EXPONENTIALS = (Row("sum of exponentials", "own", numbers_of.exponentials),)
_LOSSES = (Row("sum of the losses", "own", numbers_of.summed_losses, "cpu"),)
_ONE_LOSS = "loss of one element"

ROWS: dict[str, tuple[Row, ...]] = {
    "_native_batch_norm_legit": _BATCH,
    "_native_batch_norm_legit_functional": _BATCH,
    "_scaled_dot_product_attention_math": _ATTENTION,
    "_scaled_dot_product_flash_attention_for_cpu": _ATTENTION,
    "addmm": _PRODUCT,
    "addmv": _PRODUCT,
    "addr": (Row("product before the sum", "own", numbers_of.product),),
    "baddbmm": _PRODUCT,
    "batch_norm": _BATCH,
    "cdist": (Row(_SQUARES, "own", numbers_of.rows),),
    "cosine_embedding_loss": (Row(_SQUARES, "own", numbers_of.embedding_squares),),
    "cosine_similarity": (Row("norm", "own", numbers_of.cosine_norms),),
    "cross_entropy_loss": _LOSSES,
    "dist": _POWERS,
    "frobenius_norm": _POWERS,
    "group_norm": _GROUP,
    "huber_loss": (Row(_ONE_LOSS, "own", numbers_of.each_loss(F.huber_loss, "delta")),),
    "instance_norm": (Row(_DEVIATIONS, "accumulator", numbers_of.instance),),
    "layer_norm": _LAYER,
    "linalg_matrix_norm": (Row(_POWER_SUM, "accumulator", numbers_of.matrix_norm),),
    "linalg_norm": (Row(_POWER_SUM, "accumulator", numbers_of.matrix_norm),),
    "linalg_vector_norm": _POWERS,
    "logsumexp": _EXPONENTIALS,
    "mse_loss": (Row(_ONE_LOSS, "own", numbers_of.each_loss(F.mse_loss)),),
    "nanmean": (Row("sum before the division", "own", numbers_of.not_nan),),
    "native_batch_norm": _BATCH,
    "native_group_norm": _GROUP,
    "native_layer_norm": _LAYER,
    "native_norm": _POWERS,
    "nll_loss": _LOSSES,
    "nll_loss2d": _LOSSES,
    "nll_loss_nd": _LOSSES,
    "norm": _POWERS,
    "pairwise_distance": _POWERS,
    "pdist": _POWERS,
    "poisson_nll_loss": (Row("exp", "own", numbers_of.exp_of_input),),
    "rms_norm": (Row(_SQUARES, "accumulator", numbers_of.rms),),
    "scaled_dot_product_attention": _ATTENTION,
    "smooth_l1_loss": (Row(_ONE_LOSS, "own", numbers_of.each_loss(F.smooth_l1_loss, "beta")),),
    "soft_margin_loss": (Row("exp", "own", numbers_of.margin_exp),),
    "special_logsumexp": _EXPONENTIALS,
    "std": _DEVIATION,
    "std_mean": _DEVIATION,
    "triplet_margin_loss": (Row("distance", "own", numbers_of.triplet),),
    "var": _VARIANCE,
    "var_mean": _VARIANCE,
}
