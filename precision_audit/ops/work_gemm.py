"""The work of products: GEMMs, convolutions, attention, einsum, recurrent nets.

The part of `op_work` in which nearly all the time of a model goes. y[M, N] = Σ_K a[M, K] b[K, N] takes 2·M·N·K FLOPs
and sums K values into one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import zip_longest

from precision_audit.ops.work_read import Sizes, Work

# Names of the two factors in the schemas of torch's products, the most specific first.
_FACTORS = (
    ("input", "weight"), ("mat1", "mat2"), ("batch1", "batch2"), ("self", "mat2"), ("input", "other"),
    ("self", "other"), ("mat", "vec"), ("self", "vec"), ("sparse", "dense"), ("compressed_A", "dense_B"),
    ("mat_a", "mat_b"),
)  # fmt: skip


def _factors(work: Work) -> tuple[Sizes, Sizes]:
    for left, right in _FACTORS:
        if work.has(left) and work.has(right):
            return work.argument(left), work.argument(right)
    return work.first(), work.first()  # x @ x: one value under the first name


def _broadcast(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    """Elements of two shapes broadcast against each other."""
    pairs = zip_longest(reversed(left), reversed(right), fillvalue=1)
    return math.prod(b if a == 1 else a for a, b in pairs)


def _linear(work: Work) -> int:
    """The weight is [N, K], or [K] for one output."""
    entering, weight = work.argument("input"), work.argument("weight")
    return 2 * entering.numel * (weight.size(0) if weight.rank > 1 else 1)


def _matmul(work: Work) -> int:
    """Vectors, matrices and stacks of matrices with broadcasting."""
    a, b = _factors(work)
    rows = a.size(-2) if a.rank > 1 else 1
    columns = b.size(-1) if b.rank > 1 else 1
    return 2 * _broadcast(a.hint[:-2], b.hint[:-2]) * rows * columns * a.size(-1)


def _length(work: Work) -> int:
    return _factors(work)[0].size(-1)


def _stacked_length(work: Work) -> int:
    """addbmm sums over the stack as well."""
    a = _factors(work)[0]
    return a.size(0) * a.size(-1)


def _inner(work: Work) -> int:
    a, b = _factors(work)
    return 2 * a.numel * (b.numel // max(1, b.size(-1)))


def _vectors(work: Work) -> int:
    return 2 * work.first().numel


def _vector_length(work: Work) -> int:
    return work.first().size(int(work.number("dim", -1)))


def _chain(work: Work) -> int:
    """A chain of matrices in the cheapest order, as multi_dot multiplies it."""
    shapes = [each.hint for each in work.tensors]
    sides = [shapes[0][0] if len(shapes[0]) > 1 else 1, *(shape[-1] if len(shape) > 1 else 1 for shape in shapes[1:])]
    sides.insert(1, shapes[0][-1])
    if len(shapes[-1]) == 1:
        sides[-2:] = [shapes[-1][0], 1]
    count = len(sides) - 1
    best: dict[tuple[int, int], int] = {(i, i): 0 for i in range(count)}
    for span in range(1, count):
        for i in range(count - span):
            j = i + span
            best[i, j] = min(best[i, k] + best[k + 1, j] + sides[i] * sides[k + 1] * sides[j + 1] for k in range(i, j))
    return 2 * best[0, count - 1]


def _chain_length(work: Work) -> int:
    return max(each.size(-1) for each in work.tensors[:-1]) if len(work.tensors) > 1 else 0


def _tensordot(work: Work) -> int:
    a, b = _factors(work)
    shared = _tensordot_length(work)
    return 2 * a.numel * (b.numel // max(1, shared))


def _tensordot_length(work: Work) -> int:
    a = _factors(work)[0]
    dims = work.attribute("dims_self", ())
    return math.prod(a.size(int(axis)) for axis in dims) if isinstance(dims, (tuple, list)) else 1


def _bilinear(work: Work) -> int:
    """x1 W x2 for each output feature: a product with W, then one with x2."""
    entering, weight = work.argument("input1"), work.argument("weight")
    rows = entering.numel // max(1, entering.size(-1))
    return 2 * rows * weight.size(0) * (weight.size(1) + 1) * weight.size(2)


def _bilinear_length(work: Work) -> int:
    weight = work.argument("weight")
    return weight.size(1) * weight.size(2)


def _power(work: Work) -> int:
    """Repeated squaring: one product per binary digit of n beyond the first, one more per further 1."""
    n, side = abs(int(work.number("n", 1))), work.first().size(-1)
    products = max(0, n.bit_length() - 1 + n.bit_count() - 1) if n else 0
    return 2 * products * work.first().numel * side


def _grouped(work: Work) -> int:
    """[M, K]·[G, K, N] with M in groups, [G, M, K]·[K, N] with N in groups, [M, K]·[K, N] with K in groups: as much as
    without groups. [G, M, K]·[G, K, N]: once for each."""
    a, b = _factors(work)
    stacks = a.size(0) if a.rank == 3 and b.rank == 3 else 1
    return 2 * stacks * a.size(-2) * a.size(-1) * b.size(-1)


def _letters(work: Work) -> tuple[list[list[str]], list[str], dict[str, int]]:
    """Indices of each factor of an einsum, those of the result, and their sizes. An ellipsis becomes indices of its
    own, counted from the right, so that broadcast dimensions line up."""
    equation = str(work.attribute("equation", "")).replace(" ", "")
    entering, arrow, result = equation.partition("->")
    sizes: dict[str, int] = {}
    factors = []
    for term, tensor in zip(entering.split(","), work.all("tensors"), strict=False):
        head, dots, tail = term.partition("...")
        missing = tensor.rank - len(head) - len(tail) if dots else 0
        indices = [*head, *(f"…{i}" for i in range(missing, 0, -1)), *tail]
        for index, size in zip(indices, tensor.hint, strict=True):
            sizes[index] = max(size, sizes.get(index, 1))
        factors.append(indices)
    extra = sorted({i for term in factors for i in term if i.startswith("…")}, reverse=True)
    if not arrow:
        plain = entering.replace(",", "").replace("...", "")
        return factors, [*extra, *sorted(c for c in set(plain) if plain.count(c) == 1)], sizes
    head, dots, tail = result.partition("...")
    return factors, [*head, *(extra if dots else ()), *tail], sizes


def _einsum(work: Work) -> int:
    """Factors are contracted from left to right; an index is summed with the last factor that has it."""
    factors, result, sizes = _letters(work)
    total, held = 0, list(dict.fromkeys(factors[0])) if factors else []
    for position, term in enumerate(factors[1:], start=2):
        needed = {*result, *(index for later in factors[position:] for index in later)}
        joined = list(dict.fromkeys([*held, *term]))
        summed = any(index not in needed for index in joined)
        total += (2 if summed else 1) * math.prod(sizes[index] for index in joined)
        held = [index for index in joined if index in needed]
    if len(factors) == 1 and set(held) - set(result):
        total = math.prod(sizes[index] for index in held)
    return total


def _einsum_length(work: Work) -> int | None:
    factors, result, sizes = _letters(work)
    summed = {index for term in factors for index in term} - set(result)
    return math.prod(sizes[index] for index in summed) if summed else None


def _transposed(work: Work) -> bool:
    return "transpose" in work.op.op or work.attribute("transposed", False) is True


def _convolution(work: Work) -> int:
    """Each element of the result (of the input, when transposed) meets the whole kernel of its group."""
    entering, weight = work.first(), work.argument("weight")
    places = entering.numel if _transposed(work) else work.made()
    return 2 * places * math.prod(weight.hint[1:])


def _convolution_length(work: Work) -> int:
    """In-channels per group times kernel. A transposed one with stride s meets every s-th element of its kernel."""
    weight = work.argument("weight")
    if not _transposed(work):
        return math.prod(weight.hint[1:])
    spatial = weight.rank - 2
    strides, dilations = work.numbers("stride", spatial, 1), work.numbers("dilation", spatial, 1)
    taps = (
        -(-size // (stride // math.gcd(stride, dilation)))
        for size, stride, dilation in zip(weight.hint[2:], strides, dilations, strict=True)
    )
    return weight.size(0) // max(1, int(work.number("groups", 1))) * math.prod(taps)


def _convolution_tbc(work: Work) -> int:
    """The weight is [kernel, in, out]."""
    weight = work.argument("weight")
    return 2 * work.made() * weight.size(0) * weight.size(1)


def _convolution_tbc_length(work: Work) -> int:
    weight = work.argument("weight")
    return weight.size(0) * weight.size(1)


def _attention(work: Work) -> int:
    """Q·Kᵀ and P·V for every head of the query."""
    query, key, value = (work.argument(name) for name in ("query", "key", "value"))
    return 2 * (query.numel // max(1, query.size(-1))) * key.size(-2) * (query.size(-1) + value.size(-1))


def _attention_length(work: Work) -> int:
    """Keys: the softmax and P·V sum over them."""
    return work.argument("key").size(-2)


def _mha(work: Work) -> int:
    """Projections in and out, and the attention between them."""
    entering, width = work.first(), int(work.number("embed_dim", work.first().size(-1)))
    weights = sum(each.numel for each in work.tensors if each.rank == 2)
    rows = entering.numel // max(1, width)
    return 2 * rows * weights + 4 * rows * entering.size(-2) * width


def _recurrent(work: Work) -> int:
    """Every weight matrix once for each step of each sequence."""
    steps = work.first().numel // max(1, work.first().size(-1))
    return 2 * steps * sum(each.numel for each in _matrices(work))


def _recurrent_length(work: Work) -> int:
    return max((each.size(-1) for each in _matrices(work)), default=0)


def _matrices(work: Work) -> list[Sizes]:
    names = ("params", "weight", "w_ih", "w_hh", "weight0", "weight1")
    return [each for name in names for each in work.all(name) if each.rank == 2]


GEMM_FLOPS: Mapping[str, Callable[[Work], int]] = {
    "linear": _linear,
    "matmul": _matmul,
    "addbmm": _matmul,
    "inner": _inner,
    "vectors": _vectors,
    "chain": _chain,
    "tensordot": _tensordot,
    "bilinear": _bilinear,
    "power": _power,
    "grouped": _grouped,
    "einsum": _einsum,
    "convolution": _convolution,
    "convolution_tbc": _convolution_tbc,
    "attention": _attention,
    "mha": _mha,
    "recurrent": _recurrent,
}

GEMM_DEPTH: Mapping[str, Callable[[Work], int | None]] = {
    "linear": lambda work: work.argument("weight").size(-1),
    "matmul": _length,
    "addbmm": _stacked_length,
    "inner": _length,
    "vectors": _vector_length,
    "chain": _chain_length,
    "tensordot": _tensordot_length,
    "bilinear": _bilinear_length,
    "power": _length,
    "grouped": _length,
    "einsum": _einsum_length,
    "convolution": _convolution_length,
    "convolution_tbc": _convolution_tbc_length,
    "attention": _attention_length,
    "mha": _attention_length,
    "recurrent": _recurrent_length,
}
