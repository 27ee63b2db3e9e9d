"""Whether a batch is what the graph was captured for.

Takes the captured module and one batch; raises InputError, in one line, for wrong arguments, shapes the graph is fixed
to, kinds that differ and batches without samples. Never judges the numbers: NaN in a batch is a fact to be reported.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from precision_audit.formats import format_of, is_float
from precision_audit.records import Graph, InputError, Op, Range, kind_of, shortened
from precision_audit.rewrite.converted import Converted
from precision_audit.verify.runs import Batch


def check_batch(module: Converted, graph: Graph, batch: Batch, index: int) -> None:
    """InputError where batch `index` (0 is the example) cannot be run."""
    try:
        flat = module.flatten(tuple(batch[0]), dict(batch[1]))
    except (TypeError, ValueError) as error:
        raise InputError(f"{_which(index)}: {error}; give every batch the arguments of the example") from error
    inputs = {op.key: op for op in graph.ops if op.kind == "input"}
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for node, value in zip(placeholders, flat, strict=True):
        op = inputs.get(node.meta.get("op_key", ""))
        if op is not None:
            _check(op, value, _which(index))


def spoiled(graph: Graph, ranges: Iterable[Range]) -> tuple[str, ...]:
    """A sentence for each input that holds NaN or infinities in some batch: they count in no range."""
    inputs = {op.key for op in graph.ops if op.kind == "input"}
    return tuple(
        f"{_which(each.lost_in)}: {each.value} holds NaN or infinities ({each.nan} NaN and {each.infinite} infinite of "
        f"{each.count} elements over all batches), which count in no range"
        for each in ranges
        if each.value in inputs and each.lost_in >= 0
    )


def not_run(index: int, error: Exception) -> InputError:
    """What to say of a batch on which the model raised."""
    if "Runtime assertion failed" in str(error):
        return InputError(
            f"{_which(index)}: the model takes another path each time it draws a random number, or on other data, and "
            "was captured along one; expected a path that does not change: switch such a draw off, or use torch.where"
        )
    said = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    mend = "give batches like the example"
    if "Float8" in said:  # PA415, of a model that cannot be captured either
        mend = "fp8 storage meets another format: cast it where it is read, w.to(x.dtype), or store it in bf16"
    return InputError(f"{_which(index)}: the model does not run on it ({shortened(said, 200)}); {mend}")


def _which(index: int) -> str:
    return f"calibration batch {index - 1}" if index else "example inputs"


def _check(op: Op, value: object, which: str) -> None:
    wanted = op.outputs[0]
    if not isinstance(value, Tensor):
        raise InputError(f"{which}: {op.key} is {kind_of(value)}; expected a tensor, as in the example")
    fits = len(value.shape) == len(wanted.shape) and all(
        isinstance(size, str) or size == given for size, given in zip(wanted.shape, value.shape, strict=True)
    )
    if not value.numel() and 0 not in wanted.hint:
        raise InputError(f"{which}: {op.key} has no samples (shape {_shape(value.shape)}); leave the batch out")
    if not fits:
        raise InputError(
            f"{which}: {op.key} has shape {_shape(value.shape)}; expected {_shape(wanted.shape)}, as captured from the "
            "example; give batches of that shape, or say with dynamic_shapes which sizes vary"
        )
    if is_float(wanted.format) != value.is_floating_point():
        raise InputError(
            f"{which}: {op.key} is {format_of(value.dtype)}; expected {wanted.format}, as in the example; convert it"
        )


def _shape(sizes: Iterable[int | str]) -> str:
    return "(" + ", ".join(str(size) for size in sizes) + ")"
