"""Small graphs of records, written in a few lines: what the planner's tests are about, without a model or a capture."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from precision_audit import ops
from precision_audit.decide import Decided
from precision_audit.hardware import device
from precision_audit.plan import plan
from precision_audit.records import Decision, Graph, Mode, Op, Operand, Plan, Policy, Swap, Tensor

POLICY = Policy("sketch", "sketch.yaml", "", "inference", "fp32", "bf16", ())
TRAINING = replace(POLICY, mode="training")
FREE_IO = replace(POLICY, keep_io_types=False)
H100 = device("h100")
WIDE = (4096, 1024)  # 16 MiB in fp32: halving its bytes saves more than a launch costs

_ARGUMENTS = {
    "linear": ("input", "weight", "bias"),
    "layer_norm": ("input", "weight", "bias"),
    "batch_norm": ("input", "weight", "bias", "running_mean", "running_var"),
    "cat": ("tensors",) * 9,
    "where": ("condition", "self", "other"),
    "embedding": ("weight", "indices"),
    "copy_": ("self", "src"),
    "rsub": ("self", "other"),
    "scaled_dot_product_attention": ("query", "key", "value", "attn_mask"),
}


class Sketch:
    """Collects ops; `asked` maps op keys to what the policy chose, everything else follows."""

    def __init__(self, mode: Mode = "inference") -> None:
        self.mode = mode
        self.ops: list[Op] = []
        self.asked: dict[str, str] = {}
        self.aliases: list[tuple[str, ...]] = []
        self.storages: list[tuple[str, ...]] = []
        self.swaps: list[Swap] = []
        self._tensors: dict[str, Tensor] = {}
        self._count: dict[str, int] = {}

    def leaf(self, kind: str, name: str, *shape: int, format: str = "fp32", **fields: Any) -> str:
        return self._add(Op(name, "", "placeholder", kind, "", "", (), (Tensor(format, shape, shape),), **fields))

    def input(self, name: str = "x", *shape: int, **fields: Any) -> str:
        return self.leaf("input", name, *(shape or WIDE), **fields)

    def parameter(self, name: str, *shape: int, **fields: Any) -> str:
        return self.leaf("parameter", name, *(shape or WIDE), **fields)

    def op(
        self,
        name: str,
        *values: str,
        runs: str = "",
        shape: tuple[int, ...] | None = None,
        format: str = "",
        outputs: int = 1,
        arguments: tuple[str, ...] = (),
        **fields: Any,
    ) -> str:
        """One op; its outputs are shaped like its first operand and have that operand's format."""
        number = self._count.get(name, 0)
        self._count[name] = number + 1
        key = f"/{name}#{number}"
        first = self._tensors[values[0]] if values else Tensor("fp32", WIDE, WIDE)
        size = first.shape if shape is None else shape
        tensor = Tensor(format or first.format, size, tuple(int(each) for each in size))
        named = arguments or _ARGUMENTS.get(name, ("self", "other", "third", "fourth"))
        operands = tuple(Operand(value, argument) for value, argument in zip(values, named, strict=False))
        row = ops.row(name)
        op = Op(
            key, f"aten.{name}", name, row.kind if row else "unknown", "", "", operands, (tensor,) * outputs, **fields
        )
        if runs:
            self.asked[key] = runs
        return self._add(op)

    def swap(self, key: str) -> None:
        self.asked[key] = "fp8 rowwise"
        self.swaps.append(Swap(key, key.split("/", maxsplit=1)[0], "torchao", "rowwise", 16, 16, 16))

    def graph(self, *outputs: str) -> Graph:
        return Graph(tuple(self.ops), outputs, self.mode, tuple(self.aliases), tuple(self.storages))

    def decided(self) -> Decided:
        decisions = tuple(
            Decision(op.key, "follow" if op.key not in self.asked else "asked", self.asked.get(op.key, ""), "sketch")
            for op in self.ops
            if op.operands or op.kind not in ("input", "parameter", "buffer", "constant")
        )
        return Decided(decisions, tuple(self.swaps), (), ())

    def plan(self, *outputs: str, policy: Policy = POLICY, hardware: Any = H100, **options: Any) -> Plan:
        if self.mode == "training":
            policy = replace(policy, mode="training")
        return plan(self.graph(*outputs), self.decided(), policy, hardware, **options)

    def _add(self, op: Op) -> str:
        self.ops.append(op)
        self._tensors.update(zip(op.values, op.outputs, strict=True))
        return op.key


def formats(made: Plan) -> dict[str, str]:
    return dict(made.formats)


def casts(made: Plan) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(cast.value, cast.to, cast.consumers) for cast in made.casts]


def chain(size, *names, **runs):
    """x through `names`; `runs` says what ops of a name run in. Products get a parameter of their own."""
    sketch = Sketch()
    value = sketch.input("x", *size)
    for number, name in enumerate(names):
        more = (sketch.parameter(f"w{number}", size[1], size[1]),) if name == "matmul" else ()
        value = sketch.op(name, value, *more, runs=runs.get(name, ""))
    return sketch, value
