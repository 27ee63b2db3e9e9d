from __future__ import annotations

import os
from pathlib import Path

import pytest

from precision_audit.records import Source
from precision_audit.report import phrases


@pytest.mark.parametrize(
    ("value", "short", "text"),
    [
        (2.9e-3, False, "2.9e-3"),
        (0.2, False, "2.0e-1"),
        (1e-2, True, "1e-2"),
        (1.5e-2, True, "1.5e-2"),
        (12345.0, False, "1.2e4"),
        (0.0, False, "0"),
        (float("inf"), False, "inf"),
        (float("nan"), False, "nan"),
        (None, False, "-"),
    ],
)
def test_figure(value: float | None, short: bool, text: str) -> None:
    assert phrases.figure(value, short) == text


@pytest.mark.parametrize(
    ("value", "limit", "texts"),
    [
        (2.9e-3, 5e-3, ("2.9e-3", "5e-3")),
        (5.03e-3, 5e-3, ("5.03e-3", "5e-3")),
        (4.996e-3, 5e-3, ("4.996e-3", "5e-3")),  # 5.00e-3 with three digits
        (5.01e-3, 5.04e-3, ("5.01e-3", "5.04e-3")),
        (5e-3, 5e-3, ("5.0e-3", "5e-3")),
        (0.0, 5e-3, ("0", "5e-3")),
        (1e-9, 0.0, ("1.0e-9", "0")),
        (float("inf"), 5e-3, ("inf", "5e-3")),
        (float("nan"), 5e-3, ("nan", "5e-3")),
        (5e-3, None, ("5.0e-3", "-")),
    ],
)
def test_a_figure_is_told_from_its_limit(value: float, limit: float | None, texts: tuple[str, str]) -> None:
    more = phrases.needed(value, limit, phrases.figure)
    assert (phrases.figure(value, more=more), phrases.figure(limit, True, more)) == texts


@pytest.mark.parametrize(
    ("value", "limit", "texts"),
    [
        (0.01004, 0.01, ("1.004 %", "1.000 %")),
        (0.02, 0.01, ("2.00 %", "1.00 %")),
        (1e-6, 2e-6, ("< 0.01 %", "< 0.01 %")),
    ],
)
def test_a_share_is_told_from_its_limit(value: float, limit: float, texts: tuple[str, str]) -> None:
    more = phrases.needed(value, limit, phrases.share)
    assert (phrases.share(value, more), phrases.share(limit, more)) == texts


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0 %"), (0.125, "12.50 %"), (1e-6, "< 0.01 %"), (1.0, "100.00 %"), (None, "-")]
)
def test_share(value: float | None, text: str) -> None:
    assert phrases.share(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(768, "768"), (1_199_882, "1.20 M"), (25_557_032, "25.56 M"), (7_240_000_000, "7.24 G")]
)
def test_amount(value: int, text: str) -> None:
    assert phrases.amount(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(12, "12 bytes"), (1536, "1.50 KiB"), (2 << 20, "2.00 MiB"), (80 << 30, "80.00 GiB")]
)
def test_size(value: int, text: str) -> None:
    assert phrases.size(value) == text


def test_paths_name_no_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert phrases.path("models/net.py") == "models/net.py"
    assert phrases.path(str(tmp_path / "models" / "net.py")) == os.path.join("models", "net.py")
    assert phrases.path("/srv/lib/site-packages/timm/layers/mlp.py") == "timm/layers/mlp.py"
    assert phrases.path("/srv/secret/net.py") == "net.py"
    assert phrases.location(Source(str(tmp_path / "net.py"), 7, "forward", ""), "x") == "net.py:7"
    assert phrases.location(None, "model") == "model"


@pytest.mark.parametrize(
    ("labels", "width", "text"),
    [
        (["conv1", "conv2"], 0, "conv1, conv2"),
        (["relu", "pool", "relu", "relu"], 0, "relu x3, pool"),
        ([f"layers.{i}.fc1" for i in range(12)], 0, "layers.*.fc1 x12"),
        (["blocks.0.norm", "blocks.1.norm", "norm"], 0, "blocks.*.norm x2, norm"),
        (["0", "3"], 0, "0, 3"),  # a bare Sequential: * would say nothing
        (["layer1.0.conv1", "layer2.0.conv1"], 0, "layer1.0.conv1, layer2.0.conv1"),
        (["relu", "relu", "pool", "dropout"], 14, "relu x2, pool…"),
        (["relu", "relu", "pool", "dropout"], 24, "relu x2, pool, dropout"),
        ([f"encoder.layer.{i}.self.{n}" for n in ("query", "key") for i in range(2)], 20, "query x2, key x2"),
        (["a.b/softmax", "a.c/softmax", "net.0"], 20, "softmax x2, net.0"),
        (["a.very_long_name_indeed"], 14, "…g_name_indeed"),
        ([], 10, ""),
    ],
)
def test_names(labels: list[str], width: int, text: str) -> None:
    assert phrases.names(labels, width) == text


@pytest.mark.parametrize(("color", "text"), [(True, "\033[32mpass\033[0m"), (False, "pass")])
def test_paint(color: bool, text: str) -> None:
    assert phrases.paint("pass", "good", color) == text
