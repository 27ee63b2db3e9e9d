"""What a conversion warned of, asked from outside: the words of the tests about hazards."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from precision_audit.records import Finding
from tests.conformance.small import Made, close

CPU = {"device": "cpu-amx"}


def alarms(found: Made) -> list[Finding]:
    return [finding for finding in found.result.report.findings if finding.severity != "note"]


def at(found: Made, *ops: str) -> bool:
    """An alarm is about one of these ops."""
    return any(finding.op in ops for finding in alarms(found))


def told(found: Made) -> list[str]:
    return [f"{finding.rule} {finding.op} {finding.message}" for finding in alarms(found)]


def high(found: Made, *keys: str) -> bool:
    return not found.low & set(keys)


def kept_right(model: nn.Module, args: tuple[Tensor, ...], found: Made, limit: float = 5e-3) -> bool:
    with torch.no_grad():
        return close(found.module(*args), model(*args), limit)
