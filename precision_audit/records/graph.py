"""The captured model as records: ops, the values between them, where the user wrote them."""

from __future__ import annotations

from dataclasses import dataclass

from precision_audit.records.words import Mode


@dataclass(frozen=True, slots=True)
class Source:
    """Where the user's own code made an op: the last frame outside torch. `text` is the line as written."""

    file: str
    line: int
    function: str
    text: str


@dataclass(frozen=True, slots=True)
class Tensor:
    """One output of an op. `format` is a name of `formats.FORMATS` or an integer, bool or complex dtype's torch name
    (`int64`); `shape` holds integers and symbolic expressions as strings (`B`, `16*s3`); `hint` holds the example's
    integers for the same dimensions. `channels_last`: in memory the channels of an image or volume come last, which
    other kernels compute."""

    format: str
    shape: tuple[int | str, ...]
    hint: tuple[int, ...]
    requires_grad: bool = False
    channels_last: bool = False


@dataclass(frozen=True, slots=True)
class Operand:
    """One tensor input of an op: the value read and the name of the argument in the op's schema (`weight`)."""

    value: str
    argument: str


# What an op can be pinned to without a policy's say: `Op.fixed` holds one of these words, or "" when it is free.
#   explicit cast   the user wrote .to(fp32), .float(), dtype=torch.float32: the output format is theirs
#   region          inside a torch.autocast region of the user's
#   state           writes to or reads a buffer that is updated in place
#   format          the captured output format is not the policy's high format (a model already in bf16, an fp64 op)
#   integer         no float output
#   hand-written    runs a torch.autograd.Function of the user's, gradient and all
@dataclass(frozen=True, slots=True)
class Op:
    """One node of the captured graph. `op` is the aten base name (`linear`, in-place `relu_` is `relu` with
    `mutates`), `target` the full overload (`aten.linear.default`), `kind` its row's kind in the op table (or `input`,
    `parameter`, `buffer`, `constant`, `unknown`)."""

    key: str
    target: str
    op: str
    kind: str
    module: str
    module_type: str
    operands: tuple[Operand, ...]
    outputs: tuple[Tensor, ...]
    attributes: tuple[tuple[str, object], ...] = ()  # non-tensor arguments by schema name; dtypes as format names
    source: Source | None = None
    mutates: str = ""  # the argument written in place, "" if none
    follows: bool = False  # a dtype or a float literal of this op follows the example's dtype (captured twice)
    region: str = ""  # "autocast cpu bf16", "autocast cpu off"; "" outside the user's regions
    fixed: str = ""  # why no policy can choose this op's format, see above; "" when it can

    @property
    def values(self) -> tuple[str, ...]:
        """Names of the values this op makes, in output order."""
        if len(self.outputs) == 1:
            return (self.key,)
        return tuple(f"{self.key}:{i}" for i in range(len(self.outputs)))


@dataclass(frozen=True, slots=True)
class CustomFunction:
    """A `torch.autograd.Function` of the user's that the model applies, once per class and line. A capture holds its
    forward only, unless it is `kept`. What is measured (in training, on the example): `difference`, the worst relative
    L2 between the gradients of the capture and of the model, at `parameter`; `raised` and `lost`, where and what it
    raises, or which of its numbers are not finite, when the eager model runs low, at `lines` of the class, the first of
    which is to be changed."""

    name: str
    call: Source | None  # where it is applied
    defined: Source | None  # the class
    last_line: int = 0  # of the class
    ops: tuple[str, ...] = ()  # keys of what its forward became
    custom_fwd: bool = False  # torch.amp.custom_fwd wraps its forward
    difference: float = 0.0
    parameter: str = ""
    raised: str = ""
    lost: str = ""
    scaled: float = 0.0  # a loss scale at which nothing is lost, 0 for none
    lines: tuple[Source, ...] = ()
    kept: bool = False  # one op of the graph, which runs the class itself
    why_not: str = ""  # it cannot be kept


@dataclass(frozen=True, slots=True)
class Graph:
    """The captured model as records, in execution order (inputs and state first)."""

    ops: tuple[Op, ...]
    outputs: tuple[str, ...]  # flat outputs of the model, values; "" for an output that is no tensor
    mode: Mode
    aliases: tuple[tuple[str, ...], ...] = ()  # values that share memory, where at least one is written in place
    storages: tuple[tuple[str, ...], ...] = ()  # parameters and buffers under several names (tied), by key
    symbols: tuple[tuple[str, int], ...] = ()  # symbolic dimensions and their example value
    front_end: str = "whole (torch.export)"
    notes: tuple[str, ...] = ()  # what the capture could not do or had to assume, one sentence each
    functions: tuple[CustomFunction, ...] = ()  # hand-written gradients, not yet measured
