"""Analyse: what is known of a model's numbers before anything is decided.

Takes a capture and calibration batches; gives `Facts`: what the graph costs, the range of every value over all batches,
what ops compute inside themselves, what running everything low does to each value, which source of rounding adds how
much to the outputs' error, and what raises when the model is cast in the usual ways. Never changes the model, keeps no
activation beyond the batch that is being run, and without batches gives what constants, weights and shapes tell alone.

    work         FLOPs, bytes, parameters; from shapes
    forward      ranges and histograms, streamed over all batches, and the inner numbers of composite ops
    beside       the model wholly in the low format beside the captured one, op by op, on the example
    sensitivity  shares of the outputs' error by source, on the example
    backward     which op's derivative loses gradients in the low format, on the example
    traps        what raises after model.to(format) or under torch.autocast, without running the model
    branches     conditions on a format, in the source files
    accumulated  buffers that the model writes to, and whether they would go on in a low format
    training     a few real steps: gradients, updates, the loss scale that they need
    flags        flags of this process that change how products are computed and summed
    tf32         fp32 products as a device with TF32 computes them, where the settings let it (recurrent ops by step)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from precision_audit.analyse.accumulated import accumulated
from precision_audit.analyse.backward import backward
from precision_audit.analyse.batches import spoiled
from precision_audit.analyse.beside import beside, beside_cast
from precision_audit.analyse.branches import branches
from precision_audit.analyse.deltas import Deltas
from precision_audit.analyse.flags import flags
from precision_audit.analyse.forward import forward
from precision_audit.analyse.sensitivity import sensitivity, to_be_swapped
from precision_audit.analyse.tf32 import tf32
from precision_audit.analyse.training import Lesson, training
from precision_audit.analyse.traps import traps
from precision_audit.analyse.work import parameters_of, tensors_of, work_of
from precision_audit.capture import Captured
from precision_audit.records import (
    Accumulated,
    Backward,
    Beside,
    Facts,
    Hardware,
    InputError,
    Policy,
    Share,
    Tf32,
    Training,
    Trap,
)
from precision_audit.verify.runs import Batch

STRICT = False  # raise where a measurement fails: for tests

__all__ = ["analyse", "parameters_of", "tensors_of"]


def analyse(
    captured: Captured,
    policy: Policy,
    hardware: Hardware,
    batches: Sequence[Batch] = (),
    lesson: Lesson | None = None,
    loss: Callable[[Any], torch.Tensor] | None = None,
) -> Facts:
    """Everything known of the captured graph; the example is the first batch, the others count for ranges and for the
    steps of the `lesson`, which says how the model is trained. Gradients of a low model descend from `loss`."""
    flops, moved = work_of(captured.graph)
    notes: list[str] = []
    process = flags()
    products: tuple[Tf32, ...] = ()
    if batches:
        with _told("what TF32 makes of fp32 products", notes):
            products = tf32(captured, policy, hardware, batches[0], process)
    if not policy.lowers and lesson is None:  # nothing else is at stake
        parameters = parameters_of(captured.graph)
        return Facts(flops, moved, parameters, len(batches), notes=tuple(notes), flags=process, tf32=products)
    ranges, inner = forward(captured, batches)
    deltas = Deltas(captured.graph, to_be_swapped(captured.graph, policy, hardware) if batches else ())
    lows: tuple[Beside, ...] = ()
    cast: tuple[Beside, ...] = ()
    shares: tuple[Share, ...] = ()
    if batches:
        with _told("the low model beside the captured one", notes):
            lows = beside(captured, policy, hardware, batches[0], deltas)
        with _told("the model as a cast leaves it", notes):
            cast = beside_cast(captured, policy, hardware, batches[0])
        with _told("where the outputs' error comes from", notes):
            shares, said = sensitivity(captured, policy, hardware, batches[0], deltas)
            notes.extend(said)
    stored: tuple[Accumulated, ...] = ()
    with _told("buffers that the model writes to", notes):
        stored = accumulated(captured, batches)
    learned: Training | None = None
    if lesson is not None and batches:
        with _told("training steps", notes):
            learned, said = training(lesson, policy, hardware, batches, ranges)
            notes.extend(said)
    losing: tuple[Backward, ...] = ()
    if batches:
        with _told("the gradients of the low model", notes):
            losing = backward(captured, policy, hardware, batches[0], loss)
    raising: tuple[Trap, ...] = ()
    with _told("what raises when the model is cast", notes):
        raising = traps(captured, policy, hardware)
    return Facts(
        flops=flops,
        bytes=moved,
        parameters=parameters_of(captured.graph),
        batches=len(batches),
        ranges=ranges,
        inner=inner,
        beside=lows,
        cast=cast,
        shares=shares,
        traps=raising,
        notes=(*spoiled(captured.graph, ranges), *notes),
        flips=tuple(deltas.flips),
        branches=branches(captured, policy.high, policy.low),
        accumulated=stored,
        training=learned,
        flags=process,
        tf32=products,
        backward=losing,
    )


@contextlib.contextmanager
def _told(what: str, notes: list[str]) -> Iterator[None]:
    """A model on which a measurement fails is still audited by all the others, and the report says so."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        if STRICT:
            raise
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        notes.append(f"not measured: {what} ({type(error).__name__}: {first[:160]})")
