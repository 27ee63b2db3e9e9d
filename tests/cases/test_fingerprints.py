"""Findings are stable: renaming or inserting a layer that has nothing to do with a finding changes no fingerprint."""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import precision_audit as pa
from precision_audit.records import Finding
from tests.cases import expected, judge

# case → a layer that its failure has nothing to do with, as the case's code names it
UNRELATED = {
    "c03": "v",
    "c07": "proj",
    "c09": "fc",
    "c10": "qkv",
    "c12": "v",
    "c15": "enc",
    "c20": "conv",
    "c23": "fc",
    "c30": "fc",
    "c35": "fc",
    "c38": "mlp",
    "c44": "eps",
    "c61": "body",
    "c73": "fc",
    "c76": "fc",
    "c80": "fc",
}


def full(short: str) -> str:
    return next(name for name in expected.names() if expected.short(name) == short)


def audited(model: nn.Module, args: tuple[Any, ...], name: str) -> tuple[Finding, ...]:
    return pa.audit(model, args, policy=expected.naive_policy(name), device=judge.DEVICE, verify=False).findings


def prints(findings: tuple[Finding, ...], without: str = "") -> Counter[str]:
    """Fingerprints of the findings, those of the module `without` left out."""
    return Counter(each.fingerprint for each in findings if not (without and each.module == without))


@pytest.mark.parametrize("short", UNRELATED)
def test_renaming_an_unrelated_layer_changes_no_fingerprint(short: str, tmp_path: Path) -> None:
    name, layer = full(short), UNRELATED[short]
    before = judge.judged(name, expected.naive_policy(name)).report.findings
    renamed = _renamed(name, layer, f"{layer}_renamed", tmp_path)
    model, args = renamed.build_model(), renamed.example_inputs()
    assert f"{layer}_renamed" in dict(model.named_modules())
    after = audited(model, args, name)
    assert before and prints(before, layer) == prints(after, f"{layer}_renamed")
    assert prints(before, layer), "every finding is about the renamed layer, so nothing was tested"


def _renamed(name: str, old: str, new: str, folder: Path) -> ModuleType:
    """The case with one attribute of `self` renamed in its source."""
    text = Path(str(expected.load(name).__file__)).read_text(encoding="utf-8")
    changed = re.sub(rf"\bself\.{old}\b", f"self.{new}", text)
    assert changed != text
    file = folder / f"{name}.py"
    file.write_text(changed, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(f"renamed_{name}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Beside(nn.Module):
    """A case with other layers, in front of it and behind it, that work on an input of their own."""

    def __init__(self, case: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.case, self.names = case, names
        for each in names:
            self.add_module(each, nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.LayerNorm(8)))

    def forward(self, other: Tensor, *args: Tensor) -> tuple[Any, Tensor]:
        half = len(self.names) // 2
        for each in self.names[:half]:
            other = self.get_submodule(each)(other)
        output = self.case(*args)
        for each in self.names[half:]:
            other = self.get_submodule(each)(other)
        return output, other


def _inside(finding: Finding) -> bool:
    """About the case, or about no op; the other layers may have findings of their own."""
    return not finding.op or finding.op.startswith(("case/", "case."))


@pytest.mark.parametrize("short", ["c01", "c07", "c12", "c18", "c35", "c47", "c49", "c63", "c78"])
def test_inserting_an_unrelated_layer_changes_no_fingerprint(short: str) -> None:
    name = full(short)
    case = expected.load(name)
    torch.manual_seed(2)
    args = (torch.randn(4, 8), *case.example_inputs())
    found = [
        prints(tuple(each for each in audited(Beside(case.build_model(), names).eval(), args, name) if _inside(each)))
        for names in ((), ("norm",), ("stem", "neck", "head", "tail"))
    ]
    assert found[0] and found[0] == found[1] == found[2]
