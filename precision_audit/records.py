"""The nouns of precision-audit: what flows from one stage to the next.

Every record is a frozen dataclass with slots that holds tuples, strings and numbers only. None holds a tensor,
a module or an FX node, so that a record can be compared, hashed, written to a file and read again. The stages are
the verbs: see `pipeline.py`.

A *value* is one tensor of the graph, named by a string: the key of the op that makes it (`encoder.fc1/linear#0`), or
`key:i` for output i of an op with several outputs. Inputs of the model are ops of kind `input` whose key is the
argument's name; parameters and buffers are ops of kind `parameter`, `buffer` or `constant` whose key is their path in
the state dict. Keys of computed ops contain a slash, the others never do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Basis = Literal["PROVED", "OBSERVED", "ASSUMED"]
Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")  # worst first
Mode = Literal["training", "inference"]
Verdict = Literal["READY", "READY WITH CHANGES", "NOT READY", "NOT ENOUGH EVIDENCE"]

# What an op can be pinned to without a policy's say: `Op.fixed` holds one of these words, or "" when it is free.
#   explicit cast   the user wrote .to(fp32), .float(), dtype=torch.float32: the output format is theirs
#   region          inside a torch.autocast region of the user's
#   state           writes to or reads a buffer that is updated in place
#   format          the captured output format is not the policy's high format (a model already in bf16, an fp64 op)
#   integer         no float output
#   hand-written    runs a torch.autograd.Function of the user's, gradient and all


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
    integers for the same dimensions."""

    format: str
    shape: tuple[int | str, ...]
    hint: tuple[int, ...]
    requires_grad: bool = False


@dataclass(frozen=True, slots=True)
class Operand:
    """One tensor input of an op: the value read and the name of the argument in the op's schema (`weight`)."""

    value: str
    argument: str


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


@dataclass(frozen=True, slots=True)
class Evidence:
    basis: Basis
    text: str
    numbers: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Suppression:
    """A comment `# precision-audit: ignore[PA203] reason` in the user's code: findings of these rules (or prefixes) on
    line `target` are left out of counts. `codes` is empty where the comment names none."""

    file: str
    line: int  # of the comment
    target: int  # the line it speaks of: its own, or the next one where the comment stands alone
    codes: tuple[str, ...]
    reason: str
    text: str = ""  # the line as written
    # Where it closes a statement or a call over several lines: the first of them, all of which it speaks of; else 0.
    since: int = field(default=0, metadata={"written": False})

    def speaks_of(self, line: int) -> bool:
        """Whether a finding on that line of the file is meant."""
        return (self.since or self.target) <= line <= self.target


@dataclass(frozen=True, slots=True)
class Finding:
    """Something a person must know. `fingerprint` names it across runs and holds no measured number."""

    rule: str
    severity: Severity
    op: str
    module: str
    message: str
    evidence: Evidence
    source: Source | None = None
    remedy: str = ""
    resolved: bool = False  # the plan already applies the remedy
    fingerprint: str = ""
    pins: tuple[str, ...] = ()  # the remedy as the planner takes it: keys of ops that must run in the high format
    overridden: str = ""  # whose word kept the remedy from being applied: "turned off by policy mine.yaml:9"
    suppression: Suppression | None = None  # the comment in the user's code that leaves it out of counts
    # It holds only of a plan whose predicted error (root of `error_share`) exceeds this; 0 where it holds of any.
    bound: float = field(default=0.0, metadata={"written": False})

    @property
    def open(self) -> bool:
        """Whether it counts: neither the plan nor the user has dealt with it."""
        return not self.resolved and self.suppression is None


@dataclass(frozen=True, slots=True)
class Decision:
    """What one op runs in, and why. `chosen` is a format name, `fp8 rowwise` for a swap, `""` while a `follow` op waits
    for the plan. `promote` belongs to the amp policies: all float inputs are widened to the widest one's format."""

    op: str
    classification: str  # fp8-eligible · safe-in-<low> · follow · keep-<high> · pin:<format> · inherit · fixed
    chosen: str
    reason: str
    accumulate: str = ""  # format the op's sums are kept in on the device, "" if it sums nothing
    evidence: tuple[Evidence, ...] = ()
    promote: bool = False
    autocast: bool = False  # amp policies: inner ops are autocast, run the op inside an autocast region


@dataclass(frozen=True, slots=True)
class Swap:
    """A linear that becomes another module at the same path. `constraints` are conditions on symbolic sizes that the
    user must keep (`B % 16 == 0 in backward`)."""

    op: str
    module: str
    backend: str
    recipe: str
    k: int | str
    n: int | str
    m: int | str
    constraints: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # what the user should know of this swap: tied weight, called twice, frozen


@dataclass(frozen=True, slots=True)
class Refusal:
    """A linear that was eligible by policy and that a backend would not take, and why."""

    op: str
    module: str
    backend: str
    reason: str


@dataclass(frozen=True, slots=True)
class Cast:
    """One conversion of one value, shared by `consumers` (op keys, or `output:i`)."""

    value: str
    to: str
    consumers: tuple[str, ...]
    bytes: int = 0  # read and written, at the example's shapes


@dataclass(frozen=True, slots=True)
class Fold:
    """A parameter or buffer stored in a low format instead of being cast at run time (inference). `copy` is true when
    high consumers keep the original beside it; `bytes` is then the size of the second copy."""

    value: str
    to: str
    consumers: tuple[str, ...] = ()
    copy: bool = False
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Predicted:
    """What the charged model says of a plan; never shown like a measurement. Seconds, bytes."""

    seconds: float
    seconds_high: float  # everything in the high format
    cast_seconds: float
    cast_bytes: int
    error_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """Format per op, casts, swaps and folds of one graph."""

    policy: str
    mode: Mode
    high: str
    low: str
    formats: tuple[tuple[str, str], ...]  # op key → format its float outputs have
    casts: tuple[Cast, ...]
    folds: tuple[Fold, ...] = ()
    swaps: tuple[Swap, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    autocast: tuple[str, ...] = ()  # op keys to be run inside an autocast region (amp policies)
    autocast_device: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    predicted: Predicted | None = None
    graph_digest: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One output (or gradient) of the converted model against the reference, beside plain low precision's."""

    name: str
    relative_l2: float
    max_abs: float
    sqnr_db: float
    cosine: float
    nonfinite: int
    reference_nonfinite: int
    flip_rate: float | None  # share of rows whose argmax differs; None where argmax means nothing
    plain_relative_l2: float | None  # the same figure when everything runs in the low format
    limit: float | None = None
    passed: bool = True
    figure: str = "relative L2"  # what relative_l2 holds: for an integer or bool output "elements changed", a share


@dataclass(frozen=True, slots=True)
class Step:
    """One training step of the reference and the converted model. Errors are relative: of the loss (absolute where a
    projection stands for it), and of the worst gradient, that of the parameter `gradient`. The noise is the same of the
    reference against itself under another seed, zero where the model draws nothing."""

    loss: float
    converted_loss: float
    plain_loss: float | None  # wholly in the low format
    loss_error: float
    gradient: str
    gradient_error: float
    loss_noise: float = 0.0
    gradient_noise: float = 0.0
    scale: float = 1.0  # what the converted model's loss was multiplied by
    skipped: bool = False  # its gradients were not finite, so that its update was left out


@dataclass(frozen=True, slots=True)
class Steps:
    """Training steps from the same weights, on the same batches, under the same draws."""

    steps: tuple[Step, ...]
    optimizer: str = ""  # its class; "" where the weights stayed
    objective: Literal["loss", "projection"] = "loss"
    passed: bool = True
    notes: tuple[str, ...] = ()

    @property
    def skipped(self) -> int:
        """How many updates were left out."""
        return sum(step.skipped for step in self.steps)


@dataclass(frozen=True, slots=True)
class Verification:
    passed: bool
    outputs: tuple[Comparison, ...]
    gradients: tuple[Comparison, ...] = ()
    reference: str = ""  # what reference against itself gave
    captured_against_eager: str = ""
    shapes: str = ""  # "pass", or the text of the failure of forward + backward on the meta device
    first_parting: str = ""  # op key of the first op at which converted and reference part, when failed
    emulated: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    device: str = "CPU"  # where both were run
    noise: float = 0.0  # the reference's difference from itself in units of the limit; from 1 on nothing can be judged
    steps: Steps | None = None  # None where no loss or optimizer was given


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

    `source`: an op's key (it runs low), `swap:KEY` (it is swapped: its fp8 product instead), or `cast:VALUE` (a float
    input, parameter, buffer or high value that is read low). `reader`: for a cast, the op that reads it; shares of
    several readers add up with the cross terms of `pair`."""

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
class Update:
    """What the optimizer did to one parameter over all steps, against what storing it in a low format would keep.

    `lost`: by format, the share of the non-zero updates that leave the element, rounded to the format, unchanged.
    `ratio`: by format, the median of |update| over half a unit in the last place of the element. `decay`: lr · weight
    decay, the share of the element that decay takes per step, 0 where there is none."""

    parameter: str
    count: int  # elements whose update is not zero, over all steps
    lost: tuple[tuple[str, float], ...]
    ratio: tuple[tuple[str, float], ...]
    decay: float = 0.0


@dataclass(frozen=True, slots=True)
class OptimizerState:
    """One kind of tensor that the optimizer keeps for each parameter (`exp_avg_sq`), over all parameters."""

    name: str
    range: Range
    bytes: int  # in the format it was kept in


@dataclass(frozen=True, slots=True)
class Optimizer:
    """The user's optimizer: class, the numbers of its first parameter group, where the user made it, its state.

    `spoiled`: the same optimizer over parameters in the low format, given the same gradients rounded to it: the share
    of the parameters' elements that are not finite afterwards; `spoiled_in` is the first step with one, -1 for none."""

    name: str
    options: tuple[tuple[str, float], ...]
    source: Source | None
    states: tuple[OptimizerState, ...] = ()
    spoiled: float = 0.0
    spoiled_in: int = -1
    masters: bool = False  # wrapped in MasterWeights, which updates fp32 copies


@dataclass(frozen=True, slots=True)
class Accumulated:
    """A float buffer that the model itself adds to while it runs: a counter, a total, a running statistic.

    `kept`: the share of the old value that goes into the new one: 1 in a counter or total, the momentum in a running
    average. `constant`: every element grew by this in every step (a counter), else 0. `step`: the largest change in the
    last step; `size`: the largest magnitude after it. `lost`: by format, the share of its non-zero changes that leave
    the element, rounded to the format, unchanged."""

    value: str
    writer: str  # key of the op that writes it
    kept: float
    constant: float
    step: float
    size: float
    lost: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class LossScale:
    """Powers of two that the loss may be multiplied by so that gradients fit a format.

    `sufficient`: the smallest from 1 on that keeps every gradient that matters from vanishing, decided by
    `sufficient_for`; `needed` is the same where it may be below 1. `safe`: the largest that leaves `margin` times the
    largest gradient finite, decided by `safe_for`; may be below 1. `recommended`: the smallest from `sufficient` on
    that brings 99 % of the gradients into the normal range, at most `safe`. Shares are of the gradients that are not
    zero: `vanish` without a scale, `vanish_scaled` with the recommended one."""

    format: str
    sufficient: float
    recommended: float
    safe: float
    sufficient_for: str
    safe_for: str
    margin: float
    vanish: float
    vanish_scaled: float
    needed: float = 0.0

    @property
    def fits(self) -> bool:
        """Whether any scale keeps what matters and overflows nothing."""
        return (self.needed or self.sufficient) <= self.safe


@dataclass(frozen=True, slots=True)
class Training:
    """What a few real steps in the captured format showed; ranges are over all steps, gradients unscaled."""

    steps: int
    losses: tuple[float, ...]
    weights: tuple[Range, ...]
    weight_gradients: tuple[Range, ...]  # by parameter
    activations: tuple[Range, ...]
    activation_gradients: tuple[Range, ...]  # by the value they are the gradient of
    below: tuple[float, ...] = ()  # per step, the share of non-zero weight gradients below fp16's smallest, 2**-24
    updates: tuple[Update, ...] = ()
    optimizer: Optimizer | None = None
    scale: LossScale | None = None  # for the policy's low format


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
class Facts:
    """What analysis learned of the captured graph, in graph order. Without inputs: what constants and shapes tell."""

    flops: int = 0
    bytes: int = 0
    parameters: int = 0
    batches: int = 0
    ranges: tuple[Range, ...] = ()
    inner: tuple[Inner, ...] = ()
    beside: tuple[Beside, ...] = ()
    shares: tuple[Share, ...] = ()
    traps: tuple[Trap, ...] = ()
    notes: tuple[str, ...] = ()  # what could not be measured and why, one sentence each
    suppressions: tuple[Suppression, ...] = ()  # comments in the source files of the model
    flips: tuple[Flip, ...] = ()
    branches: tuple[Source, ...] = ()  # conditions on a format that the low one answers otherwise than the captured one
    flags: tuple[tuple[str, str], ...] = ()  # of the process, weakening products: ("torch.backends.….name", "true")
    cast: tuple[Beside, ...] = ()  # beside, of the model as a cast of the module leaves it, where that differs
    training: Training | None = None  # None where nothing was trained
    accumulated: tuple[Accumulated, ...] = ()  # buffers that the model writes to
    tf32: tuple[Tf32, ...] = ()  # where the device and the settings make TF32 of fp32 products
    again: tuple[Rerun, ...] = ()  # beside, with the remedies of what was found kept; where elements were lost only
    backward: tuple[Backward, ...] = ()
    functions: tuple[CustomFunction, ...] = ()  # those of the graph, measured


NO_FACTS = Facts()


@dataclass(frozen=True, slots=True)
class Predicate:
    """One condition of a policy rule on an attribute or a size: all given bounds must hold."""

    key: str
    multiple_of: int | None = None
    minimum: float | None = None
    maximum: float | None = None
    equals: object = None


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a policy. Empty tuples match everything. `origin` is `file:line`."""

    name: str
    origin: str
    classification: str
    op: tuple[str, ...] = ()
    kind: tuple[str, ...] = ()
    module: tuple[str, ...] = ()
    module_type: tuple[str, ...] = ()
    where: tuple[Predicate, ...] = ()
    backend: str = ""
    recipe: str = ""
    promote: bool = False
    shipped: bool = False  # of a policy of this package, written for many models: matching nothing is no finding


@dataclass(frozen=True, slots=True)
class Policy:
    name: str
    file: str
    digest: str
    mode: Mode
    high: str
    low: str
    rules: tuple[Rule, ...]
    device: str = ""
    keep_io_types: bool = True
    swap: Literal["eligible", "worth-it"] = "eligible"
    casts: Literal["shared", "per_consumer"] = "shared"
    autocast: str = ""  # "cuda" or "cpu" for the amp policies: the device whose autocast is reproduced
    hazards: tuple[tuple[str, str], ...] = ()
    tolerances: tuple[tuple[str, float], ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    description: str = ""
    hazard_origins: tuple[tuple[str, str], ...] = ()  # rule code → `file:line` of its entry in `hazards`

    @property
    def lowers(self) -> bool:
        """Whether any op may leave the high format."""
        high = (f"keep-{self.high}", f"pin:{self.high}")
        return self.low != self.high and any(rule.classification not in high for rule in self.rules)


@dataclass(frozen=True, slots=True)
class Hardware:
    """One device. Peaks in FLOP/s by format, bandwidth in byte/s, launch in seconds per kernel."""

    name: str
    title: str
    capability: str
    peaks: tuple[tuple[str, float], ...]
    bandwidth: float
    launch: float
    source: str
    kernels: str = "cuda"  # column of the op table that says which kernels exist: "cuda" or "cpu"


@dataclass(frozen=True, slots=True)
class Meta:
    """Provenance of a report."""

    tool: str
    versions: tuple[tuple[str, str], ...]
    model: str
    policy: str
    policy_digest: str
    device: str
    device_from: str
    weights: str
    weights_digest: str
    inputs: str
    batches: int
    parameters: int
    command: str = ""
    emulated: tuple[str, ...] = ()
    calibration_digest: str = ""
    notes: tuple[str, ...] = ()  # what the evidence lacks, one sentence each


@dataclass(frozen=True, slots=True)
class Report:
    schema: int
    meta: Meta
    verdict: Verdict
    summary: str
    graph: Graph
    decisions: tuple[Decision, ...]
    findings: tuple[Finding, ...]
    plan: Plan
    verification: Verification | None
    autocast_casts: int = 0  # casts torch.autocast would make on the same graph
    next_steps: tuple[str, ...] = field(default=())
    training: Training | None = None
    facts: Facts = field(default=NO_FACTS, metadata={"written": False})  # what the findings rest on; in no file


@dataclass(frozen=True, slots=True)
class Lint:
    """What a lint of training scripts found. `loops`: training loops in all files."""

    schema: int
    tool: str
    files: tuple[str, ...]
    loops: int
    summary: str
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()  # files in a folder that could not be read, one sentence each


class InputError(Exception):
    """Something the user gave cannot be used: what, where, what was expected, what to do, in one line. The command
    line prints it and exits with 2."""
