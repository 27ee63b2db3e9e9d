"""Analyse: what is known of a model's numbers before anything is decided.

Takes a capture and calibration batches; gives `Facts`: what the graph costs, the range of every value over all batches,
what ops compute inside themselves, what running everything low does to each value, which source of rounding adds how
much to the outputs' error, and what raises when the model is cast in the usual ways. Never changes the model, keeps no
activation beyond the batch that is being run, and without batches gives what constants, weights and shapes tell alone.

    work         FLOPs, bytes, parameters; from shapes
    forward      ranges and histograms, streamed over all batches, and the inner numbers of composite ops
    beside       the model wholly in the low format beside the captured one, op by op, on the example
    sensitivity  shares of the outputs' error by source, on the example
    traps        what raises after model.to(format) or under torch.autocast, without running the model
    branches     conditions on a format, in the source files
    flags        flags of this process that change how products are summed
"""

from __future__ import annotations

from collections.abc import Sequence

from precision_audit.analyse.batches import spoiled
from precision_audit.analyse.beside import beside
from precision_audit.analyse.branches import branches
from precision_audit.analyse.deltas import Deltas
from precision_audit.analyse.flags import flags
from precision_audit.analyse.forward import forward
from precision_audit.analyse.sensitivity import sensitivity, to_be_swapped
from precision_audit.analyse.traps import traps
from precision_audit.analyse.work import parameters_of, tensors_of, work_of
from precision_audit.capture import Captured
from precision_audit.records import Facts, Hardware, Policy
from precision_audit.verify.runs import Batch

__all__ = ["analyse", "parameters_of", "tensors_of"]


def analyse(captured: Captured, policy: Policy, hardware: Hardware, batches: Sequence[Batch] = ()) -> Facts:
    """Everything known of the captured graph; the example is the first batch, the others count for ranges only."""
    flops, moved = work_of(captured.graph)
    if not policy.lowers:  # nothing is at stake
        return Facts(flops, moved, parameters_of(captured.graph), len(batches), flags=flags())
    ranges, inner = forward(captured, batches)
    deltas = Deltas(captured.graph, to_be_swapped(captured.graph, policy, hardware) if batches else ())
    lows = beside(captured, policy, hardware, batches[0], deltas) if batches else ()
    shares, notes = sensitivity(captured, policy, hardware, batches[0], deltas) if batches else ((), ())
    return Facts(
        flops=flops,
        bytes=moved,
        parameters=parameters_of(captured.graph),
        batches=len(batches),
        ranges=ranges,
        inner=inner,
        beside=lows,
        shares=shares,
        traps=traps(captured, policy, hardware),
        notes=(*spoiled(captured.graph, ranges), *notes),
        flips=tuple(deltas.flips),
        branches=branches(captured, policy.high, policy.low),
        flags=flags(),
    )
