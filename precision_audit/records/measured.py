"""What was measured of one value, op or source of error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from precision_audit.records.words import Basis


@dataclass(frozen=True, slots=True)
class Range:
    """What one float value held, over all batches, in the captured format. Magnitudes and extremes are of its finite
    elements; zeros are in no histogram. PROVED values depend on no input, only on weights, constants and sizes."""

    value: str
    basis: Basis
    count: int  # elements seen
    amax: float  # largest magnitude
    smallest: float  # smallest magnitude but zero; 0.0 where all are zero
    lowest: float
    highest: float
    zeros: int = 0
    nan: int = 0
    infinite: int = 0  # of either sign
    histogram: tuple[tuple[int, int], ...] = ()  # (e, n), ascending: n elements with 2**e <= magnitude < 2**(e+1)
    whole: bool = False  # every finite element is an integer
    held: tuple[str, ...] = ()  # those of bf16 and fp16 that hold every element as it is
    batch: int = 0  # where amax was seen; 0 is the example
    lost_in: int = -1  # first batch with a NaN or an infinity, -1 for none
    negative_infinite: int = 0  # of `infinite`, those below zero: true -inf masks are no loss
    nan_in: int = -1  # first batch with a NaN, -1 for none
    origin: str = ""  # "nan": the op made one and no operand held one; "infinity": likewise, of operands all finite
    powers: tuple[tuple[int, int], ...] = ()  # (e, n): n of the histogram's elements are 2**e exactly
    upper: tuple[tuple[int, tuple[int, ...]], ...] = ()  # (e, (n1, n2 …)): n_j of them are 2**e * (2 - 2**-j) or more
    splits: tuple[tuple[float, int], ...] = ()  # (t, n): n of the elements in the power of two of t are t or more


@dataclass(frozen=True, slots=True)
class Inner:
    """A number that an op computes on its way and never shows: the squares of a norm, q·k before its scale. `held` says
    where it is held: "accumulator" (in the format the device's kernel accumulates in) or "own" (the op's format)."""

    op: str
    what: str  # "sum of squares", "exp", "q·k before the scale": the words of a message
    amax: float
    smallest: float
    held: Literal["accumulator", "own"]
    batch: int = 0
    kernels: str = ""  # "cpu" or "cuda" where only that device's kernels hold it so, "" for both


@dataclass(frozen=True, slots=True)
class Beside:
    """One output of one op in the model run wholly in the low format beside the captured one, on the example.

    `fresh`: relative L2 of what this op alone adds (low against high on the same rounded inputs). `drift`: relative L2
    against the captured model, errors of all earlier ops included; `drift_in` is the largest drift of its operands.
    `changed`: share of elements that differ, of an integer or bool output. `lost`: elements that are finite in the
    captured model and not in the low one; `fresh_lost` those that the op itself loses (its operands are all finite
    where they are in the captured model)."""

    value: str
    format: str  # the low format, or the captured one where the op stayed in it
    fresh: float = 0.0
    drift: float = 0.0
    drift_in: float = 0.0
    changed: float = 0.0
    lost: int = 0
    fresh_lost: int = 0
    raised: str = ""  # the op raised in the low format: first line of the error; its captured result was used instead


@dataclass(frozen=True, slots=True)
class Share:
    """What one source of rounding error adds to ‖error‖² of the outputs, each output relative to its norm.

    `source`: an op's key (it runs low), `swap:KEY` (it is swapped: its fp8 product instead), `swap:SCHEME:KEY` (it
    could be, quantised by that scheme: what a search asks), or `cast:VALUE` (a float input, parameter, buffer or high
    value that is read low). `reader`: for a cast, the op that reads it; shares of several readers add up with the cross
    terms of `pair`."""

    source: str
    share: float
    reader: str = ""
    pair: str = ""  # a second reader: the cross term of both, counted once
    known: bool = True  # false: no gradient leads from there to an output, so the share is unknown, never zero


@dataclass(frozen=True, slots=True)
class Trap:
    """An op that raises when the user converts the model in the usual way, and how."""

    op: str
    way: Literal["cast", "autocast"]  # model.to(format) with its inputs, or torch.autocast
    text: str  # first line of the error
    formats: tuple[str, ...] = ()  # formats of its operands there


@dataclass(frozen=True, slots=True)
class Flip:
    """A decision (argmax, top-k, sort) beside the error of what it decides by, on the example: `sigma` is the root mean
    square error of its operand in the low model, `margin` the median distance between the last element taken and the
    first that is not, `at_risk` the share of rows expected to decide otherwise."""

    op: str
    at_risk: float
    margin: float
    sigma: float


@dataclass(frozen=True, slots=True)
class Backward:
    """An op whose own derivative loses a gradient in the low format, on the example: the model was run wholly low,
    forward and backward. All gradients that the op received were finite where they are in the captured format, and of
    the gradient of its operand `value` `lost` of `count` elements are not.

    `scale`: what the loss was multiplied by. `reaches`: the parameters whose gradient is lost with it. `pins`: keys of
    the ops that, run in the high format, give those gradients back (tried); `error` is then the worst relative L2 of
    them, infinite where no such set was found."""

    op: str
    value: str
    lost: int
    count: int
    scale: float
    reaches: tuple[str, ...]
    pins: tuple[str, ...]
    error: float
    vanishes: bool = False  # all is finite, but less than half is left of a gradient that the format could hold


@dataclass(frozen=True, slots=True)
class Tf32:
    """Products of one kind (matmul, conv, rnn) that the policy keeps in fp32 and the device would run in TF32, emulated
    on the example. `ops`: key and relative L2 of each op by itself, on the same operands; `output`: the largest
    relative L2 of the model's outputs with all of them in TF32."""

    kind: str
    ops: tuple[tuple[str, float], ...]
    output: float


@dataclass(frozen=True, slots=True)
class Rerun:
    """The low model once more beside the captured one, the ops `kept` in the high format: what lies behind the elements
    that were lost before."""

    kept: tuple[str, ...]  # op keys
    beside: tuple[Beside, ...]
    flips: tuple[Flip, ...] = ()


@dataclass(frozen=True, slots=True)
class Scaled:
    """One operand of a linear under one quantisation: its scale and what the format makes of it. Over all scales of the
    operand (per row or block) where there are several: the largest amax, the smallest scale."""

    operand: Literal["input", "weight", "gradient"]
    format: str
    amax: float
    scale: float  # largest finite value of the format over amax; 0.0 where amax is zero
    headroom: float  # largest magnitude over the median of the others, in powers of two
    flushed: float  # share of the non-zero elements that are zero after scaling and rounding
    saturated: float  # share beyond the format without any scale
    outliers: float  # share above 6 standard deviations
    zero_groups: float  # share of scale groups whose amax is zero
    mass: float = 0.0  # share of the sum of magnitudes that is flushed


@dataclass(frozen=True, slots=True)
class Quantised:
    """x·W transposed of one linear with both operands quantised one way, against the same product in the captured
    format, on the example: relative L2. `scheme` is a name of `quantise.SCHEMES`. A row is a token, a column an output
    feature: where one outweighs all others, the medians tell what is left of those. Errors are infinite where numbers
    are lost."""

    op: str
    scheme: str
    error: float
    operands: tuple[Scaled, ...] = ()
    rows: float = 0.0  # median over rows of their relative L2
    columns: float = 0.0  # over columns
    changed: float = 0.0  # share of rows whose largest element is another one
