"""Everything that analysis learned of a captured graph."""

from __future__ import annotations

from dataclasses import dataclass

from precision_audit.records.findings import Suppression
from precision_audit.records.graph import CustomFunction, Source
from precision_audit.records.measured import Backward, Beside, Flip, Inner, Quantised, Range, Rerun, Share, Tf32, Trap
from precision_audit.records.training import Accumulated, Training


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
    quantised: tuple[Quantised, ...] = ()  # every linear under every scheme, on the example


NO_FACTS = Facts()
