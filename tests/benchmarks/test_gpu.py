"""The GPU benchmark itself, on the CPU: every workload runs, fails alone, and says what it left out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.benchmarks import gpu, gpu_models, gpu_variants
from tests.benchmarks.gpu_measuring import held_bytes, seconds


@pytest.mark.slow
def test_the_script_runs_on_a_cpu(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    assert gpu.main(["--device", "cpu", "--small", "--backend", "eager", "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    assert [each["name"] for each in found["workloads"]] == [
        "block 64, training", "block 64, inference", "ResNet-50, training", "ResNet-50, inference"
    ]  # fmt: skip
    for workload in found["workloads"]:
        assert workload["status"] == "ok", workload
        rows = workload["rows"]
        assert not [row for row in rows if "failed" in row or "failed" in row.get("predicted", {})]
        timed = [row for row in rows if "seconds" in row]
        assert {row["run"] for row in timed} == {"eager", "compiled"}
        assert all(row["seconds_low"] <= row["seconds"] <= row["seconds_high"] for row in timed)
        errors = {row["variant"]: row["error"] for row in timed if row["run"] == "eager"}
        assert errors.pop("fp32") == 0.0
        assert all(0 < error < 0.15 for error in errors.values()), errors
        converted = [row for row in timed if "converted" in row["variant"]]
        assert all(row["predicted"]["seconds"] > 0 for row in converted)
        assert converted


def test_a_spent_budget_skips_what_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["--device", "cpu", "--small", "--budget", "0"]) == 1
    assert capsys.readouterr().out.count("skipped, ") == 4


def test_a_variant_that_raises_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> gpu_variants.Variant:
        raise RuntimeError("no kernel\nand more")

    work = gpu_variants.Workload(gpu_models.block(64, 32, "cpu"), "inference", "cpu", "cpu-amx")
    plain = {"bf16 throughout": lambda: work._plain(torch.bfloat16), "fp32": work._plain}
    monkeypatch.setattr(work, "variants", lambda: iter([("broken", broken), *plain.items()]))
    monkeypatch.setattr(work, "plans", lambda policy: (_ for _ in ()).throw(ValueError("no plan")))
    rows = gpu._rows(work, "cpu", True, gpu._options(["--no-compile", "--small"]), gpu.time.monotonic())
    assert rows[0] == {"variant": "broken", "failed": "RuntimeError: no kernel"}
    assert [row["predicted"] for row in rows[1:]] == [{"failed": "ValueError: no plan"}] * 2


def test_a_call_that_raises_is_left_out() -> None:
    def raises() -> None:
        raise ValueError("not here")

    timed, failed = seconds({"works": lambda: None, "raises": raises}, "cpu", 4)
    assert failed == {"raises": "ValueError: not here"}
    assert timed.keys() == {"works"} and timed["works"].rounds == 4


@pytest.mark.parametrize(
    ("name", "row"),
    [("NVIDIA H200", "h200"), ("NVIDIA A100-SXM4-80GB", "a100"), ("Tesla V100-SXM2-16GB", "v100"), ("GeForce 210", "")],
)
def test_the_drivers_name_finds_the_row(name: str, row: str) -> None:
    assert gpu.device_row(name) == row


def test_sizes_of_the_models() -> None:
    # 25,557,032 parameters: He et al. 2015's ResNet-50 as every library counts it
    assert sum(p.numel() for p in gpu_models.ResNet().parameters()) == 25_557_032
    with torch.device("meta"):
        block = gpu_models.Block(1024)
    inner = 2816  # 8/3 of 1024 rounded up to a multiple of 256
    assert held_bytes(block) == 4 * (4 * 1024 * 1024 + 3 * 1024 * inner + 2 * 1024)


def test_no_cuda_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    assert gpu.main([]) == 2
    assert "--device cpu --small" in capsys.readouterr().err
