"""The work an op does: floating-point operations and how many values it sums into one.

Takes an op and the tensors it reads, in the order of its operands; gives integers for the example's sizes. Each formula
is one function, named in the `flops` and `depth` columns of `ops.csv`. Reads records only, knows no formats.

FLOPs: a multiplication and an addition are two, a bias none (as `torch.utils.flop_counter` counts); an elementwise op
is charged one per element, one that evaluates a transcendental ten. Depth is the longest sum behind one element of the
result. Where data decides it (ids of an embedding bag, offsets of a grouped product), it is the most there can be.
Attention is counted without the half that a causal mask saves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from precision_audit.ops.work_gemm import GEMM_DEPTH, GEMM_FLOPS
from precision_audit.ops.work_read import Work
from precision_audit.records import Op, Tensor


def flops_by(formula: str, op: Op, inputs: Sequence[Tensor]) -> int:
    """Operations of `op` by the formula of that name; none for an op that has no formula."""
    return FLOPS[formula](Work.of(op, inputs)) if formula else 0


def depth_by(formula: str, op: Op, inputs: Sequence[Tensor]) -> int | None:
    """Length of the sums in `op` by the formula of that name, None for an op that sums nothing."""
    if not formula:
        return None
    found = DEPTH[formula](Work.of(op, inputs))
    return found if found is not None and found > 0 else None


# FLOPs ---------------------------------------------------------------------------------------------------------------


def _per_output(factor: int) -> Callable[[Work], int]:
    return lambda work: factor * work.made()


def _per_input(factor: int) -> Callable[[Work], int]:
    return lambda work: factor * work.first().numel


def _pool(work: Work) -> int:
    """One operation per element under the window."""
    return work.made() * (_window(work) or 1)


def _embedding_bag(work: Work) -> int:
    indices, weight = work.argument("indices"), work.argument("weight")
    return indices.numel * weight.size(-1)


def _distances(work: Work) -> int:
    """Difference, power and sum for each pair of rows: D operations thrice."""
    return 3 * work.made() * work.first().size(-1)


def _fourier(work: Work) -> int:
    """5 n log2 n for n points, the count of the radix-2 transform, over all transforms."""
    entering = max(work.first().numel, work.made())
    return int(5 * entering * math.log2(max(2, _transformed(work))))


def _dense(work: Work) -> int:
    """Order of a factorisation: rows x columns x the smaller of both, twice, for each matrix."""
    entering = work.first()
    if entering.rank < 2:
        return entering.numel
    return 2 * entering.numel * min(entering.size(-1), entering.size(-2))


# depth ---------------------------------------------------------------------------------------------------------------


def _dims(work: Work) -> int:
    """All reduced axes together; every axis where none is named."""
    entering = work.first()
    return math.prod(entering.size(axis) for axis in work.axes(entering))


def _along(work: Work) -> int:
    """One axis: the `dim` argument."""
    entering = work.first()
    return entering.size(int(work.number("dim", -1)))


def _normalized(work: Work) -> int:
    shape = work.attribute("normalized_shape")
    count = len(shape) if isinstance(shape, (tuple, list)) else 1
    return math.prod(work.first().hint[-count:])


def _batch_norm(work: Work) -> int | None:
    """Batch and positions; statistics that are given are not summed."""
    if work.attribute("training", work.attribute("train", True)) is False:
        return None
    entering = work.first()
    return entering.numel // max(1, entering.size(1))


def _instance_norm(work: Work) -> int | None:
    if work.attribute("use_input_stats", True) is False:
        return None
    return math.prod(work.first().hint[2:])


def _group_norm(work: Work) -> int:
    entering, groups = work.first(), int(work.number("num_groups", work.number("group", 1)))
    return entering.size(1) // max(1, groups) * math.prod(entering.hint[2:])


def _window(work: Work) -> int | None:
    """Elements under a pooling window."""
    size = work.attribute("kernel_size")
    spatial = _spatial(work)
    if isinstance(size, (tuple, list)):
        sizes = [int(each) for each in size]
        return math.prod(sizes * spatial if len(sizes) == 1 else sizes)
    if isinstance(size, int):
        return math.prod([size] * spatial)
    return _adaptive(work, spatial)


def _adaptive(work: Work, spatial: int) -> int:
    """The largest window of an adaptive pool: from floor(i·in/out) to ceil((i+1)·in/out)."""
    entering, made = work.first().hint[-spatial:], work.op.outputs[0].hint[-spatial:]
    return math.prod(
        max((-(-((i + 1) * size) // out) - i * size // out for i in range(out)), default=0)
        for size, out in zip(entering, made, strict=True)
    )


def _spatial(work: Work) -> int:
    return next((dims for dims in (1, 2, 3) if f"{dims}d" in work.op.op), 1)


def _bag(work: Work) -> int | None:
    """Rows summed into one: the second axis of the ids, else as many as all bags have together. Not for `max` bags."""
    if work.number("mode", 0) == 2:
        return None
    indices = work.argument("indices")
    return indices.size(1) if indices.rank == 2 else indices.numel


def _loss(work: Work) -> int | None:
    """All elements, unless each is returned for itself (`reduction` 0)."""
    if work.number("reduction", 1) == 0:
        return None
    return max((tensor.numel for tensor in work.tensors), default=0)


def _cross_entropy(work: Work) -> int:
    """The classes of each row, and the rows of the batch where they are averaged: the longer of the two."""
    entering = work.first()
    classes = entering.size(1 if entering.rank > 1 else 0)
    return max(classes, entering.numel // max(1, classes)) if work.number("reduction", 1) else classes


def _negative_log_likelihood(work: Work) -> int | None:
    """One element of every row."""
    entering = work.first()
    classes = entering.size(1 if entering.rank > 1 else 0)
    return entering.numel // max(1, classes) if work.number("reduction", 1) else None


def _row(work: Work) -> int:
    """The last axis: distances and losses between vectors."""
    return work.first().size(-1)


def _connectionist(work: Work) -> int:
    """Time steps of a ctc loss."""
    return work.first().size(0)


def _folded(work: Work) -> int:
    """Overlapping patches that meet in one pixel."""
    size = work.attribute("kernel_size")
    return math.prod(int(each) for each in size) if isinstance(size, (tuple, list)) else 1


def _scattered(work: Work) -> int | None:
    """At most every row of the source lands on one place; not where the op only writes (`accumulate` off, max)."""
    if work.attribute("accumulate", True) is False or work.attribute("reduce", "sum") in ("amax", "amin", "prod"):
        return None
    source = next((work.argument(name) for name in ("src", "source", "values") if work.has(name)), work.first())
    return source.size(int(work.number("dim", 0))) if source.rank else 1


def _segment(work: Work) -> int:
    return work.first().size(int(work.number("axis", 0)))


def _transformed(work: Work) -> int:
    """Points of one transform: the axes it runs over, one where `n` or `dim` name one."""
    entering = work.first()
    name = work.op.op
    if "stft" in name:
        return int(work.number("n_fft", entering.size(-1)))
    if name.endswith(("fftn", "fft2")):
        named = work.attribute("dim")
        default: Iterable[int] = (-2, -1) if name.endswith("2") else range(entering.rank)
        axes = [int(axis) for axis in named] if isinstance(named, (tuple, list)) else default
        return math.prod(entering.size(axis) for axis in axes)
    if name.startswith("_fft"):
        return math.prod(entering.size(axis) for axis in work.axes(entering))
    return int(work.number("n", entering.size(int(work.number("dim", -1)))))


def _squared(work: Work) -> int:
    """Rows of the matrix: every solver and factorisation sums along them."""
    entering = work.first()
    return min(entering.size(-1), entering.size(-2)) if entering.rank > 1 else entering.numel


def _cosine(work: Work) -> int:
    return work.first().size(int(work.number("dim", 1)))


def _all_but_one(work: Work) -> int:
    """Everything but the axis that keeps its norms."""
    entering = work.first()
    return entering.numel // max(1, entering.size(int(work.number("dim", 0))))


def _ratio(work: Work) -> int:
    """Elements that were summed into one, from the sizes before and after."""
    return work.first().numel // max(1, work.made())


def _written(work: Work) -> int | None:
    """index_put with `accumulate`: at most every index names the same place."""
    indices = work.all("indices")
    return indices[0].numel if indices and work.attribute("accumulate", False) is True else None


def _diagonal(work: Work) -> int:
    return min(work.first().hint, default=1)


FLOPS: Mapping[str, Callable[[Work], int]] = {
    **GEMM_FLOPS,
    "each": _per_output(1),
    "each10": _per_output(10),
    "reduce": _per_input(1),
    "reduce3": _per_input(3),
    "softmax": _per_input(12),  # maximum, difference, exponential, sum, division
    "norm": _per_input(8),  # mean, difference, square, sum, scale, shift
    "loss": _per_input(10),
    "pool": _pool,
    "bag": _embedding_bag,
    "linear_interpolation": _per_output(8),
    "cubic_interpolation": _per_output(40),
    "distances": _distances,
    "fourier": _fourier,
    "dense": _dense,
}

DEPTH: Mapping[str, Callable[[Work], int | None]] = {
    **GEMM_DEPTH,
    "dims": _dims,
    "along": _along,
    "normalized": _normalized,
    "batch_norm": _batch_norm,
    "instance_norm": _instance_norm,
    "group_norm": _group_norm,
    "window": _window,
    "bag": _bag,
    "loss": _loss,
    "cross_entropy": _cross_entropy,
    "nll": _negative_log_likelihood,
    "row": _row,
    "time": _connectionist,
    "folded": _folded,
    "scattered": _scattered,
    "segment": _segment,
    "transformed": _transformed,
    "squared": _squared,
    "diagonal": _diagonal,
    "cosine": _cosine,
    "norm_except": _all_but_one,
    "ratio": _ratio,
    "written": _written,
}
