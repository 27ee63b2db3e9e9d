"""Analyse: what is known of a model's numbers before anything is decided.

Takes a capture and calibration batches; gives `Facts`: what the graph costs, the range of every value over all batches,
what ops compute inside themselves, what running everything low does to each value, which source of rounding adds how
much to the outputs' error, and what raises when the model is cast in the usual ways. Never changes the model, keeps no
activation beyond the batch that is being run, and without batches gives what constants, weights and shapes tell alone.

    work         FLOPs, bytes, parameters; from shapes
    forward      ranges and histograms, streamed over all batches, and the inner numbers of composite ops
    quantised    every linear under every quantisation, on the example; where the policy swaps, or it is asked for
    beside       the model wholly in the low format beside the captured one, op by op, on the example
    again        the same behind elements that were lost, with the remedies of what was found kept high
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
from dataclasses import replace
from typing import Any

import torch

from precision_audit.analyse.accumulated import accumulated
from precision_audit.analyse.again import again
from precision_audit.analyse.backward import backward
from precision_audit.analyse.batches import spoiled
from precision_audit.analyse.beside import beside, beside_cast
from precision_audit.analyse.branches import branches
from precision_audit.analyse.deltas import Deltas
from precision_audit.analyse.flags import flags
from precision_audit.analyse.forward import forward
from precision_audit.analyse.quantised import Products, wanted
from precision_audit.analyse.sensitivity import sensitivity, to_be_swapped
from precision_audit.analyse.tf32 import tf32
from precision_audit.analyse.training import Lesson, training
from precision_audit.analyse.traps import traps
from precision_audit.analyse.work import parameters_of, tensors_of, work_of
from precision_audit.capture import Captured
from precision_audit.records import Facts, Hardware, InputError, Policy, error_line
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
    quantise: bool | None = None,
    kept: Deltas | None = None,
    like: Facts | None = None,
) -> Facts:
    """Everything known of the captured graph; the example is the first batch, the others count for ranges and for the
    steps of the `lesson`, which says how the model is trained. Gradients of a low model descend from `loss`.
    `quantise`: measure what quantisation does to linears, or not; None leaves that to the policy. `kept` is filled
    with each op's own error for a caller who probes several low formats at once: shares are then left out. `like` are
    facts of the same capture and batches under another low format: what does not depend on one is taken from there."""
    notes: list[str] = []
    flops, moved = work_of(captured.graph)
    facts = Facts(flops, moved, parameters_of(captured.graph), len(batches), flags=flags())
    if like is not None:
        facts = replace(facts, tf32=like.tf32)
    elif batches:
        with _told("what TF32 makes of fp32 products", notes):
            facts = replace(facts, tf32=tf32(captured, policy, hardware, batches[0], facts.flags))
    if not policy.lowers and lesson is None:  # nothing else is at stake
        return replace(facts, notes=tuple(notes))
    asked = wanted(policy) if quantise is None else quantise
    products = Products(captured.graph) if asked and batches else None
    ranges, inner = (like.ranges, like.inner) if like else forward(captured, batches, products=products)
    facts = replace(facts, ranges=ranges, inner=inner, branches=branches(captured, policy.high, policy.low))
    with _told("what raises when the model is cast", notes):
        facts = replace(facts, traps=traps(captured, policy, hardware))
    if batches:
        deltas = Deltas(captured.graph, to_be_swapped(captured.graph, policy, hardware)) if kept is None else kept
        facts = _beside(facts, captured, policy, hardware, batches[0], notes, deltas)
    if batches and kept is None:
        with _told("where the outputs' error comes from", notes):
            shares, said = sensitivity(captured, policy, hardware, batches[0], deltas)
            facts = replace(facts, shares=shares)
            notes.extend(said)
    with _told("buffers that the model writes to", notes):
        facts = replace(facts, accumulated=like.accumulated if like else accumulated(captured, batches))
    if lesson is not None and batches:
        with _told("training steps", notes):
            learned, said = training(lesson, policy, hardware, batches, ranges, products)
            facts = replace(facts, training=learned)
            notes.extend(said)
    if batches:
        with _told("the gradients of the low model", notes):
            facts = replace(facts, backward=backward(captured, policy, hardware, batches[0], loss))
    facts = replace(facts, quantised=products.records() if products is not None else ())
    return replace(facts, notes=(*spoiled(captured.graph, ranges), *notes))


def _beside(
    facts: Facts,
    captured: Captured,
    policy: Policy,
    hardware: Hardware,
    batch: Batch,
    notes: list[str],
    deltas: Deltas,
) -> Facts:
    """The facts with what the low model shows on the example; each op's own error goes into `deltas`."""
    with _told("the low model beside the captured one", notes):
        lows = beside(captured, policy, hardware, batch, deltas)
        facts = replace(facts, beside=lows, flips=tuple(deltas.flips))
    with _told("the model as a cast leaves it", notes):
        facts = replace(facts, cast=beside_cast(captured, policy, hardware, batch))
    with _told("what lies behind lost elements", notes):
        for rerun in again(captured, policy, hardware, batch, deltas, facts):
            facts = replace(facts, again=(*facts.again, rerun))
    return facts


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
        notes.append(f"not measured: {what} ({error_line(error, 160)})")
