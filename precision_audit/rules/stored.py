"""In which format the trainable parameters are, or would be where the model is cast, for the rules on training.

Takes a context; gives a `Stored`, or None where no parameter is low under the policy's conversion or anything like it:
under torch.autocast parameters stay what they are. A model that is in a low format itself is the user's own doing and
the plan cannot mend it; one in the high format keeps its parameters so in every conversion for training, which is the
remedy of all these rules, and then what is found is marked resolved.
"""

from __future__ import annotations

from dataclasses import dataclass

from precision_audit.formats import FORMATS, Format
from precision_audit.policy.match import STATE
from precision_audit.records import Op
from precision_audit.rules import Context

_HALVES = ("bf16", "fp16")


@dataclass(frozen=True, slots=True)
class Stored:
    """`own`: parameters (or buffers) are in the format already; else a cast of the module would bring them there."""

    format: Format
    own: bool


def stored(context: Context, kind: str = "parameter") -> Stored | None:
    """The low format of most parameters, or with `kind` of buffers; the policy's where none is low."""
    counts = dict.fromkeys(_HALVES, 0)
    for op in context.graph.ops:
        if op.kind == kind and op.outputs[0].format in counts:
            counts[op.outputs[0].format] += 1
    most = max(counts, key=lambda name: counts[name])
    if counts[most]:
        return Stored(FORMATS[most], True)
    if context.policy.autocast or context.policy.low not in _HALVES:
        return None
    return Stored(context.low, False)


def least_half_step(format: Format) -> float:
    """The least that half a unit in the last place is of a number of the format: that of one just below a power of
    two."""
    assert format.mantissa_bits is not None
    return 2.0 ** -(format.mantissa_bits + 2)


def operation(value: str, context: Context) -> Op | None:
    """The op to name for a value: the one that makes it; of a parameter or buffer the first that reads it."""
    maker = context.maker.get(value)
    if maker is None or maker.kind not in STATE:
        return maker
    return next(iter(context.readers.get(value, ())), maker)
