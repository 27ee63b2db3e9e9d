"""Every linear under every quantisation: the error of its product, and what becomes of each operand.

Takes operands of the products with weights as the forward pass of the example makes them, and gradients as a training
step does; gives one `Quantised` per product and scheme of `quantise.SCHEMES`. Holds nothing but numbers. Runs no model:
`forward` and the training steps call it, so that it costs products and no pass. A product is a linear, one of a matrix
with a tensor that no input reaches (`x @ self.w`, addmm), or grouped (`_grouped_mm`, bmm over experts).

The error is that of quantisation alone: operands are quantised and restored, the product is summed in fp32, and beside
it stands the same product of the operands as captured. Its relative L2 is the size of the large rows' error; where one
token outweighs all others nothing is seen of theirs, hence the medians over rows and columns. An error is infinite
where numbers are lost; zeros stay zeros, whatever the scheme.

Time is bounded by `BUDGET` elements of operands over all products: beyond its part a product is judged by evenly spaced
rows of the input (and the row of its largest magnitude, which sets a tensor's scale) and of the weight (in runs of 128,
the largest block that shares a scale). However many linears there are, it takes seconds on one core.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, fx

from precision_audit.analyse.constants import independent
from precision_audit.analyse.histogram import limits
from precision_audit.formats import FORMATS, is_float
from precision_audit.quantise import SCHEMES, Operand, encoded
from precision_audit.quantise.encoding import Encoded
from precision_audit.records import Graph, Op, Policy, Quantised, Scaled

BUDGET = 1 << 23  # elements of all operands that are quantised, once per scheme; a few seconds on one core
_LEAST = 1 << 16  # of them for one operand, however many products there are
_FEWEST = 16  # rows of an input, which a long weight leaves
_RUN = 128  # rows of a weight that may share a scale
_FAR = 6.0  # standard deviations from which a number is an outlier
_GRADIENTS = tuple(name for name in SCHEMES if name != "int8")  # which nobody trains with

# Positions of the matrix and of the weight in a product's arguments; the weight of a linear is transposed.
_FACTORS: Mapping[str, tuple[int, int]] = {
    "linear": (0, 1),
    "mm": (0, 1),
    "matmul": (0, 1),
    "bmm": (0, 1),
    "addmm": (1, 2),
    "baddbmm": (1, 2),
    "_grouped_mm": (0, 1),
}


def wanted(policy: Policy) -> bool:
    """Whether the policy asks what quantisation does: it swaps linears, or has numbers cast to fp8."""
    return any(rule.classification.startswith(("fp8-eligible", "pin:fp8")) for rule in policy.rules)


class Products:
    """What has been seen of the products of one graph."""

    def __init__(self, graph: Graph) -> None:
        constant = independent(graph)
        self._order = [op.key for op in graph.ops if _is_product(op, constant)]
        self._most = max(BUDGET // (2 * max(len(self._order), 1)), _LEAST)
        self._made: dict[str, list[Quantised]] = {}
        self._gradients: dict[str, dict[str, Scaled]] = {}
        self._keys = frozenset(self._order)

    def computed(self, op: Op, node: fx.Node, values: Mapping[fx.Node, object]) -> None:
        """The operands of one product, as captured."""
        if op.key not in self._keys or op.key in self._made:
            return
        pairs = [(x, w) for x, w in _pairs(op, node, values) if x.numel() and w.numel()]
        if pairs:
            most = max(self._most // len(pairs), _LEAST)
            self._made[op.key] = list(_judged(op.key, [_sampled(x, w, most) for x, w in pairs]))

    def gradient(self, value: str, gradient: Tensor) -> None:
        """The gradient of a product's result; the first one counts."""
        usable = gradient.layout == torch.strided and gradient.is_floating_point() and gradient.numel()
        if value not in self._keys or value in self._gradients or not usable or not gradient.ndim:
            return
        rows = _sample(gradient.detach().reshape(-1, gradient.shape[-1]), self._most, 1)
        about = _Spread.of([rows])
        self._gradients[value] = {name: _scaled([rows], name, "gradient", about)[1] for name in _GRADIENTS}

    def records(self) -> tuple[Quantised, ...]:
        """In graph order, schemes in the order of their table."""
        found = []
        for key in self._order:
            gradients = self._gradients.get(key, {})
            for each in self._made.get(key, ()):
                more = (gradients[each.scheme],) if each.scheme in gradients else ()
                found.append(replace(each, operands=(*each.operands, *more)))
        return tuple(found)


def _is_product(op: Op, constant: frozenset[str] | set[str]) -> bool:
    if op.op not in _FACTORS or op.mutates or not is_float(op.outputs[0].format):
        return False
    if op.op == "linear":
        return True
    factors = [operand.value for operand in op.operands if operand.argument in ("self", "mat1", "mat2", "other")]
    factors += [operand.value for operand in op.operands if operand.argument in ("batch1", "batch2")]
    return bool(factors) and factors[-1] in constant and not set(factors[-2:-1]) & set(constant)


def _pairs(op: Op, node: fx.Node, values: Mapping[fx.Node, object]) -> Iterator[tuple[Tensor, Tensor]]:
    """Matrices x[M, K] and weights [N, K] of a product."""
    first, second = (node.args[place] for place in _FACTORS[op.op])
    x, weight = values.get(first), values.get(second)  # type: ignore[arg-type]
    if not isinstance(x, Tensor) or not isinstance(weight, Tensor) or _is_wrapped(x) or _is_wrapped(weight):
        return
    if not x.ndim or weight.ndim < 2 or not (x.is_floating_point() and weight.is_floating_point()):
        return
    x, weight = x.detach(), weight.detach()
    if op.op != "linear":
        weight = weight.mT
    if weight.ndim == 2:
        yield x.reshape(-1, x.shape[-1]), weight
    elif op.op == "_grouped_mm" and x.ndim == 2 and weight.ndim == 3:
        offsets = values.get(node.args[2]) if len(node.args) > 2 else None  # type: ignore[arg-type]
        ends = offsets.tolist() if isinstance(offsets, Tensor) else []
        for begin, end, each in zip([0, *ends], ends, weight, strict=False):
            yield x[begin:end], each
    elif x.shape[:-2] == weight.shape[:-2]:
        yield from zip(x.reshape(-1, *x.shape[-2:]), weight.reshape(-1, *weight.shape[-2:]), strict=True)


def _is_wrapped(tensor: Tensor) -> bool:
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def _sampled(x: Tensor, weight: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Rows of both such that neither has more than `most` elements, nor their product more than twice as many."""
    held = _sample(weight, min(most, max(most // _FEWEST, 1) * weight.shape[1]), _RUN)
    return _sample(x, min(most, max(2 * most // len(held), _FEWEST) * x.shape[1]), 1), held


def _sample(matrix: Tensor, most: int, run: int) -> Tensor:
    """Rows in runs, evenly spaced, the one with the largest magnitude among them; all where there are few."""
    rows, columns = matrix.shape
    if matrix.numel() <= most or rows <= run:
        return matrix
    runs = -(-rows // run)
    count = min(max(most // (columns * run), 1), runs)
    taken = {place * runs // count for place in range(count)}
    taken.add(int(matrix.abs().amax(1).nan_to_num(math.inf).argmax()) // run)
    places = [row for each in sorted(taken) for row in range(each * run, min((each + 1) * run, rows))]
    return matrix[torch.tensor(places, device=matrix.device)]


def _judged(key: str, pairs: list[tuple[Tensor, Tensor]]) -> Iterator[Quantised]:
    inputs, weights = [x for x, _ in pairs], [w for _, w in pairs]
    about = _Spread.of(inputs), _Spread.of(weights)
    exact = [x.float() @ w.float().mT for x, w in pairs]
    for name in SCHEMES:
        left, given = _scaled(inputs, name, "input", about[0])
        right, held = _scaled(weights, name, "weight", about[1])
        told = _Told()
        for one, other, expected in zip(left, right, exact, strict=True):
            told.add(expected, _restored(one) @ _restored(other).mT)
        yield Quantised(key, name, told.error, (given, held), told.median(0), told.median(1), told.changed)


def _restored(made: Encoded) -> Tensor:
    """Zeros stay zeros: a backend whose scale of them is a quotient by zero is PA412's to name."""
    return made.restored() if made.values.any() else made.values.new_zeros(made.shape)


@dataclass
class _Told:
    """Differences between products, summed over pairs."""

    apart: float = 0.0
    whole: float = 0.0
    rows: list[Tensor] = field(default_factory=list)
    columns: list[Tensor] = field(default_factory=list)
    decided: list[Tensor] = field(default_factory=list)

    def add(self, expected: Tensor, made: Tensor) -> None:
        finite = torch.isfinite(expected)
        apart = torch.where(finite, (made - expected).nan_to_num(math.inf, math.inf, math.inf), 0.0).square()
        whole = torch.where(finite, expected, 0.0).square()
        self.apart += float(apart.double().sum())
        self.whole += float(whole.double().sum())
        self.rows.append(_ratio(apart.sum(1), whole.sum(1)))
        self.columns.append(_ratio(apart.sum(0), whole.sum(0)))
        self.decided.append(expected.argmax(1) != made.argmax(1))

    @property
    def error(self) -> float:
        return math.sqrt(self.apart / self.whole) if self.whole else (math.inf if self.apart else 0.0)

    @property
    def changed(self) -> float:
        return float(torch.cat(self.decided).double().mean())

    def median(self, axis: int) -> float:
        """Of relative L2 by row (0) or column (1) that is not zero."""
        known = torch.cat((self.rows, self.columns)[axis])
        known = known[~torch.isnan(known)]
        return float(known.median()) if known.numel() else 0.0


def _ratio(apart: Tensor, whole: Tensor) -> Tensor:
    """Roots of quotients; NaN where nothing is there and nothing was made."""
    return torch.where((whole == 0) & (apart > 0), math.inf, (apart / whole).sqrt())


@dataclass(frozen=True)
class _Spread:
    """What does not hang on the scheme: the largest magnitude, how far it lies above the median, outliers."""

    amax: float
    headroom: float
    outliers: float

    @staticmethod
    def of(tensors: list[Tensor]) -> _Spread:
        sizes = torch.cat([each.reshape(-1) for each in tensors]).float().abs()
        sizes = sizes[torch.isfinite(sizes)]
        others = sizes[sizes > 0]
        if not others.numel():
            return _Spread(0.0, 0.0, 0.0)
        amax, median = float(others.amax()), float(others.median())
        far = sizes > _FAR * float(sizes.double().square().mean().sqrt())
        return _Spread(amax, math.log2(amax / median), float(far.double().mean()))


def _scaled(tensors: list[Tensor], scheme: str, operand: Operand, about: _Spread) -> tuple[list[Encoded], Scaled]:
    """The tensors quantised, each with scales of its own, and what is told of them all."""
    made = [encoded(each, scheme, operand) for each in tensors]
    element = FORMATS[SCHEMES[scheme].format_of(operand)]
    count = sum(each.numel() for each in tensors)
    beyond = nonzero = vanished = 0
    mass = gone = 0.0
    for each in made:
        size = each.values.abs()
        flushed = (each.elements == 0) & (size > 0)
        beyond += int((size >= limits(element).overflow).sum())
        nonzero += int((size > 0).sum())
        vanished += int(flushed.sum())
        mass += float(size.sum())
        gone += float(size[flushed].sum())
    amax = torch.cat([each.amax.reshape(-1) for each in made])
    scales = torch.cat([(1 / each.scale if each.inverse else each.scale).expand(len(each.amax), 1) for each in made])
    used = scales.reshape(-1)[(amax > 0) & torch.isfinite(amax)]
    return made, Scaled(
        operand=operand,
        format=element.name,
        amax=about.amax,
        scale=float(used.amin()) if used.numel() else 0.0,
        headroom=about.headroom,
        flushed=vanished / nonzero if nonzero else 0.0,
        saturated=beyond / count,
        outliers=about.outliers,
        zero_groups=float((amax == 0).double().mean()),
        mass=gone / mass if mass and math.isfinite(mass) else 0.0,
    )
