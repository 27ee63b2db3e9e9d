"""Dictionaries that are no dict, and models that keep a cache: captured, called and compared as their users do it."""

from __future__ import annotations

from collections import UserDict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import precision_audit as pa
from precision_audit.records import InputError


class Encoding(UserDict[str, Tensor]):
    pass


class Scores(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, batch: Encoding) -> Tensor:
        return self.linear(batch["x"]) + batch["y"]


def test_a_dictionary_that_is_no_dict_is_an_argument() -> None:
    batch = Encoding(x=torch.randn(2, 4), y=torch.randn(2, 4))
    model = Scores()
    module = pa.convert(model, (batch,), policy="fp32").module
    assert torch.equal(module(batch), model(batch))


def test_a_mapping_is_a_batch_of_keyword_arguments() -> None:
    class Plain(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.relu()

    kwargs = {"x": torch.randn(3)}
    report = pa.convert(Plain(), (), kwargs, policy="fp32", calibration=[Encoding(x=torch.randn(3))]).report
    assert report.meta.batches == 2


class Caching(nn.Module):
    """Returns its state beside the result where the configuration says so, as language models do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.config = nn.Linear(4, 4), SimpleNamespace(use_cache=True)

    def forward(self, x: Tensor, use_cache: bool | None = None) -> dict[str, Tensor]:
        y = self.linear(x)
        caches = self.config.use_cache if use_cache is None else use_cache
        return {"y": y, "state": y.cumsum(0)} if caches else {"y": y}


@pytest.mark.parametrize(
    ("given", "called", "names"),
    [
        ({}, {}, ["y"]),
        ({}, {"use_cache": False}, ["y"]),
        ({"use_cache": False}, {"use_cache": False}, ["y"]),
        ({"use_cache": True}, {"use_cache": True}, ["y", "state"]),
    ],
)
def test_a_cache_is_returned_only_to_who_asks(given: dict[str, Any], called: dict[str, Any], names: list[str]) -> None:
    model, x = Caching(), torch.randn(3, 4)
    found = pa.convert(model, (x,), given, policy="fp32")
    assert found.report.verification is not None and found.report.verification.passed
    assert list(found.module(x, **called)) == names
    assert model.config.use_cache is True


def test_a_cache_cannot_be_asked_for_afterwards() -> None:
    x = torch.randn(3, 4)
    module = pa.convert(Caching(), (x,), policy="fp32").module
    with pytest.raises(TypeError, match="use_cache"):
        module(x, use_cache=True)


def test_random_numbers_from_outside_torch_are_named() -> None:
    import random

    class Masking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) * random.random()

    with pytest.raises(InputError, match="draws random numbers outside torch"):
        pa.convert(Masking(), (torch.randn(2, 4),), policy="fp32")
