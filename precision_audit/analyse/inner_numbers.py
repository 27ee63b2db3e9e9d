"""How the inner numbers of `inner.ROWS` are computed.

Each function takes an op's arguments by schema name and its (first) result, and gives the numbers as a tensor, their
largest and smallest magnitude, or None where this call of the op has none. From the result alone where that is enough:
a norm of order p is the p-th root of the sum it hides. In fp64 where a low format's infinity must be a number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

_CHUNK = 1 << 22  # scores of attention at a time: 16 MiB


def wide(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def at_least_fp32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.element_size() < 4 else tensor


def normalized(given: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(range(-len(given["normalized_shape"]), 0))


def squares(tensor: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Sums of squares; in fp64, since what overflows in a low format must be a number here."""
    norm: Tensor = torch.linalg.vector_norm(at_least_fp32(tensor), dim=axes)
    return norm.double().square()


def deviations(tensor: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Sums of squared deviations from the mean."""
    count = math.prod(tensor.shape[axis] for axis in axes)
    return torch.var(at_least_fp32(tensor), dim=axes, correction=0).double() * count


def rms(given: Mapping[str, Any], _: Tensor) -> Tensor:
    return squares(given["input"], normalized(given))


def layer(given: Mapping[str, Any], _: Tensor) -> Tensor:
    return deviations(given["input"], normalized(given))


def group(given: Mapping[str, Any], _: Tensor) -> Tensor:
    tensor = given["input"]
    groups = given["num_groups"] if "num_groups" in given else given["group"]
    return deviations(tensor.reshape(tensor.shape[0], groups, -1), (2,))


def instance(given: Mapping[str, Any], _: Tensor) -> Tensor | None:
    tensor = given["input"]
    return deviations(tensor, tuple(range(2, tensor.dim()))) if given.get("use_input_stats", True) else None


def batch(given: Mapping[str, Any], _: Tensor) -> Tensor | None:
    tensor = given["input"]
    if not given.get("training", True) and given.get("running_mean") is not None:
        return None
    return deviations(tensor, tuple(axis for axis in range(tensor.dim()) if axis != 1))


def order(given: Mapping[str, Any]) -> float:
    order = next((given[name] for name in ("ord", "p") if given.get(name) is not None), 2)
    return 2.0 if isinstance(order, str) else float(order)  # "fro"


def powers(given: Mapping[str, Any], result: Tensor) -> Tensor | None:
    """Sum of |x|**p, which a norm of order p is the root of; orders 0, 1 and infinity have nothing to hide."""
    p = order(given)
    if p in (0, 1) or math.isinf(p) or given.get("ord") == "nuc":
        return None
    return result.double().abs().pow(p)


def matrix_norm(given: Mapping[str, Any], result: Tensor) -> Tensor | None:
    """Only the Frobenius norm is a sum of squares; the others are sums, extremes or singular values."""
    order, axes = given.get("ord"), given.get("dim")
    of_vectors = order not in (None, "fro") and vectors(given["self"], axes)
    if order in (None, "fro") or of_vectors:
        return powers(given, result)
    return None


def vectors(tensor: Tensor, axes: Any) -> bool:
    return len(axes) == 1 if isinstance(axes, list | tuple) else axes is not None or tensor.dim() == 1


def variance(given: Mapping[str, Any], result: Tensor) -> Tensor:
    if given.get("unbiased") is False or given.get("dim") is False:  # the overload var(x, unbiased)
        correction = 0.0
    else:
        correction = float(1 if given.get("correction") is None else given["correction"])
    per_result = given["self"].numel() / max(result.numel(), 1)
    return wide(result).mul(max(per_result - correction, 0.0))


def deviation(given: Mapping[str, Any], result: Tensor) -> Tensor:
    return variance(given, wide(result).square())


def cosine_norms(given: Mapping[str, Any], _: Tensor) -> Tensor:
    axis = given.get("dim", 1)
    return torch.cat([squares(given[name], (axis,)).reshape(-1).sqrt() for name in ("x1", "x2")])


def embedding_squares(given: Mapping[str, Any], _: Tensor) -> Tensor:
    return torch.cat([squares(given[name], (-1,)).reshape(-1) for name in ("input1", "input2")])


def triplet(given: Mapping[str, Any], _: Tensor) -> Tensor:
    order = given.get("p", 2.0)
    pairs = [torch.pairwise_distance(given["anchor"], given[other], order) for other in ("positive", "negative")]
    return torch.cat([pair.reshape(-1) for pair in pairs])


def rows(given: Mapping[str, Any], _: Tensor) -> Tensor | None:
    """Euclidean distances between many rows come from sums of squares and one product (more than 25 rows)."""
    first, second = given["x1"], given["x2"]
    mode = given.get("compute_mode")
    if order(given) != 2 or mode == 2 or (mode in (None, 0) and max(first.shape[-2], second.shape[-2]) <= 25):
        return None
    return torch.cat([squares(each, (-1,)).reshape(-1) for each in (first, second)])


def exponentials(given: Mapping[str, Any], result: Tensor) -> Tensor:
    """Σ exp(x − max) = exp(result − max)."""
    axes = given["dim"]
    largest = torch.amax(given["self"], dim=axes, keepdim=bool(given.get("keepdim", False)))
    return torch.where(torch.isfinite(largest), (wide(result) - wide(largest)).exp(), 0.0)


def each_loss(loss: Callable[..., Tensor], *names: str) -> Callable[[Mapping[str, Any], Tensor], Tensor | None]:
    """The losses of single elements, of which mean or sum alone is shown; `names` are what shapes the loss."""

    def compute(given: Mapping[str, Any], _: Tensor) -> Tensor | None:
        if given.get("reduction", 1) == 0:
            return None
        shaping = {name: given[name] for name in names if given.get(name) is not None}
        return loss(wide(given["self"]), wide(given["target"]), reduction="none", **shaping)

    return compute


def margin_exp(given: Mapping[str, Any], _: Tensor) -> Tensor:
    product: Tensor = wide(given["self"]) * given["target"]
    return product.neg().exp()


def exp_of_input(given: Mapping[str, Any], _: Tensor) -> Tensor | None:
    return wide(given["input"]).exp() if given.get("log_input", True) else None


def summed_losses(given: Mapping[str, Any], result: Tensor) -> Tensor | None:
    """What the mean is a part of: weights, ignored targets and smoothing included."""
    target, weight = given["target"], given.get("weight")
    if given.get("reduction", 1) != 1:
        return None
    if target.is_floating_point():
        return wide(result).mul(target.numel() / target.shape[1 if target.dim() > 1 else 0])
    counted: Tensor = target[target != given.get("ignore_index", -100)]
    return wide(result).mul(counted.numel() if weight is None else float(weight[counted].double().sum()))


def not_nan(given: Mapping[str, Any], result: Tensor) -> Tensor:
    """Sum of a mean that leaves NaN out."""
    axes = given.get("dim")
    present = (~given["self"].isnan()).double()
    keep = bool(given.get("keepdim", False))
    return wide(result).mul(present.sum() if axes is None else present.sum(axes, keep))


def product(given: Mapping[str, Any], result: Tensor) -> Tensor | None:
    """alpha·a·b, before beta·input is added."""
    added = given.get("beta", 1) * given["self"] if given.get("beta", 1) else None
    return result if added is None else torch.sub(result, added)


def scale(given: Mapping[str, Any]) -> float:
    scale = given.get("scale")
    return float(given["query"].shape[-1] ** -0.5 if scale is None else scale)


def scores(given: Mapping[str, Any], _: Tensor) -> tuple[float, float] | None:
    """q·k of all heads; a causal mask and `attn_mask` come later and hide nothing from the product."""
    query, key = given["query"], given["key"]
    if not query.numel() or not key.numel():
        return None
    repeat = query.shape[-3] // key.shape[-3] if query.dim() > 3 and query.shape[-3] != key.shape[-3] else 1
    if repeat > 1:
        key = key.repeat_interleave(repeat, -3)
    query, key = query.reshape(-1, *query.shape[-2:]), key.expand(*query.shape[:-2], *key.shape[-2:])
    key = key.reshape(-1, *key.shape[-2:]).transpose(-1, -2)
    largest, smallest = 0.0, math.inf
    rows = max(1, _CHUNK // max(1, query.shape[-2] * key.shape[-1]))
    for start in range(0, len(query), rows):
        found = torch.bmm(query[start : start + rows], key[start : start + rows]).abs_()
        found = torch.where(torch.isfinite(found), found, 0.0) if not math.isfinite(float(found.amax())) else found
        low, high = (float(end) for end in torch.aminmax(found))
        if low == 0 and high > 0:
            low = float(found[found > 0].min())
        largest, smallest = max(largest, high), min(smallest, low if high else math.inf)
    return largest, smallest if math.isfinite(smallest) else 0.0
