"""TransformerEngine's real Python classes, release 2.20.2, take what we give them. This proves no numerics whatever.

The classes run over a stand-in for their compiled binding, without CUDA: names, signatures, parameters, state dicts and
the order of calls are the library's own, products, kernels and speed are not there. One process runs all checks of
`te_structure.py`, because loading the library so changes what other tests would see.
"""

from __future__ import annotations

import ast
import importlib.metadata
import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.backends.te_stand_in import VERSION

SOURCE = Path(__file__).with_name("te_structure.py")
CHECKS = sorted(
    node.name
    for node in ast.parse(SOURCE.read_text(encoding="utf-8")).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
)


def _installed() -> str:
    try:
        return importlib.metadata.version("transformer-engine")
    except importlib.metadata.PackageNotFoundError:
        return "none"


pytestmark = pytest.mark.skipif(
    _installed() != VERSION,
    reason=f"needs the pure Python wheel: pip install --no-deps transformer-engine=={VERSION} (found: {_installed()})",
)


@cache
def _found() -> dict[str, str]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.backends.te_structure"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500, cwd=SOURCE.parents[2])
    assert run.returncode == 0, run.stderr[-3000:]
    found: dict[str, str] = json.loads(run.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
def test_every_check_ran() -> None:
    assert sorted(_found()) == CHECKS and len(CHECKS) > 10


@pytest.mark.parametrize("name", CHECKS)
def test_structure_only_no_numerics(name: str) -> None:
    assert not _found()[name], _found()[name]
