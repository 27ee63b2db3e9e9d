"""Settings of TF32: every combination that torch allows, against what torch itself resolves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from precision_audit.analyse.flags import (
    CONV,
    CPU_MATMUL,
    FP32_PRODUCTS,
    GENERIC,
    MATMUL,
    OLDER_CUDNN,
    OLDER_MATMUL,
    RNN,
    flags,
    settings,
)

FRESH = ((CONV, "tf32"), (RNN, "tf32"))  # what a process starts with

# Prints one line per combination: the settings made, what torch resolved for matmul, conv and rnn, every reading before
# and after `flags`, and what that gave. A child per setting of cuDNN, whose default once replaced cannot be put back.
_EVERY_COMBINATION = """
import itertools, json, os, sys, warnings
import torch
from precision_audit.analyse.flags import *
from precision_audit.analyse.flags import _READ

CUDNN = {
    CONV: (None, "none", "ieee", "tf32"),
    OLDER_CUDNN: (None, "true", "false"),
    RNN: (None, "ieee"),
}
OTHERS = {
    GENERIC: (None, "none", "ieee", "tf32", "bf16"),
    MATMUL: (None, "none", "ieee", "tf32"),
    OLDER_MATMUL: (None, "true", "false"),
    "precision": (None, "high", "medium"),
}

def combinations(choices):
    for values in itertools.product(*choices.values()):
        yield {name: value for name, value in zip(choices, values) if value is not None}

def read(name):
    value = torch
    try:
        for part in name.split(".")[1:]:
            value = getattr(value, part)
    except RuntimeError as error:
        return "raises"
    return str(value)

def put(name, value):
    owner, (*path, last) = torch, name.split(".")[1:]
    for part in path:
        owner = getattr(owner, part)
    setattr(owner, last, {"true": True, "false": False}.get(value, value))

def tell(made):
    for name in sorted(made):
        if name == "precision":
            torch.set_float32_matmul_precision(made[name])
        else:
            put(name, made[name])
    before = [read(name) for name in _READ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = flags()
    after = [read(name) for name in _READ]
    resolved = [read(name) for name in (MATMUL, CONV, RNN)]
    print(json.dumps([made, resolved, before, after, found]), flush=True)

for cudnn in combinations(CUDNN):
    child = os.fork()
    if not child:
        try:
            for others in combinations(OTHERS):
                torch.set_float32_matmul_precision("highest")
                put(MATMUL, "none")
                put(GENERIC, "none")
                tell({**cudnn, **others})
        finally:
            os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.fixture(scope="module")
def combinations() -> list[list[Any]]:
    if not hasattr(os, "fork"):
        pytest.skip("needs fork")
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": root}
    done = subprocess.run(
        [sys.executable, "-c", _EVERY_COMBINATION], capture_output=True, text=True, check=True, env=environment
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_combination_was_tried(combinations: list[list[Any]]) -> None:
    assert len(combinations) == (4 * 3 * 2) * (5 * 4 * 3 * 3)
    assert len({json.dumps(made, sort_keys=True) for made, *_ in combinations}) == len(combinations)


def test_reading_changes_nothing_and_raises_nothing(combinations: list[list[Any]]) -> None:
    refused = 0
    for made, _, before, after, found in combinations:
        assert before == after, made
        assert all(value not in ("", "false", "none", "ieee", "highest", "raises") for _, value in found), made
        refused += "raises" in before
    assert refused > 0  # else nothing was tried


def test_the_table_resolves_a_process_as_torch_does(combinations: list[list[Any]]) -> None:
    for made, resolved, _, _, found in combinations:
        table = settings([tuple(each) for each in found], ())
        assert [each.tf32 for each in table.values()] == [each == "tf32" for each in resolved], made
        assert not any(each.by_policy for each in table.values())


def test_the_table_applies_an_environment_as_torch_does(combinations: list[list[Any]]) -> None:
    for made, resolved, _, _, _ in combinations:
        if "precision" not in made:  # no key of a policy's environment
            table = settings(FRESH, sorted(made.items()))
            assert [each.tf32 for each in table.values()] == [each == "tf32" for each in resolved], made


@pytest.mark.parametrize(
    ("environment", "kind", "name", "value"),
    [
        ({MATMUL: "tf32"}, "matmul", MATMUL, "tf32"),
        ({OLDER_MATMUL: "true"}, "matmul", OLDER_MATMUL, "true"),
        ({GENERIC: "ieee"}, "conv", GENERIC, "ieee"),
        ({GENERIC: "tf32", OLDER_CUDNN: "false"}, "rnn", GENERIC, "tf32"),
    ],
)
def test_the_setting_that_decides_is_named(environment: dict[str, str], kind: str, name: str, value: str) -> None:
    found = settings(FRESH, environment.items())[kind]
    assert (found.name, found.value, found.by_policy) == (name, value, True)


def test_a_process_decides_where_the_policy_is_silent() -> None:
    found = settings(FRESH, {MATMUL: "tf32"}.items())
    assert (found["conv"].tf32, found["conv"].name, found["conv"].by_policy) == (True, CONV, False)


def test_flags_of_this_process() -> None:
    before = torch.get_float32_matmul_precision()
    assert dict(flags())[CONV] == "tf32" and MATMUL not in dict(flags())
    try:
        torch.set_float32_matmul_precision("medium")
        found = dict(flags())
        assert (found[FP32_PRODUCTS], found[MATMUL], found[CPU_MATMUL]) == ("medium", "tf32", "bf16")
    finally:
        torch.set_float32_matmul_precision(before)
    assert MATMUL not in dict(flags()) and CPU_MATMUL not in dict(flags())
