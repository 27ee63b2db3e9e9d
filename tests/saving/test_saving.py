"""Saving: both forms reload to the same output, nothing is unpickled, nothing foreign is overwritten."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from precision_audit import saving
from precision_audit.backends.torchao_float8 import is_swapped
from precision_audit.capture import capture
from precision_audit.records import Cast, Fold, InputError, Mode, Plan, Swap
from precision_audit.rewrite import rewrite
from precision_audit.rewrite.converted import Converted
from tests.conversions import CASTS, SOURCE, Net, converted, inputs, run, swapped, trained

# casts only: one file ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [32, 5, 256])
def test_a_pt2_gives_the_same_output_at_any_batch(tmp_path: Path, batch: int) -> None:
    module, plan = converted()
    path = saving.save(module, plan, tmp_path / "net.pt2", *inputs())
    loaded = saving.load(path)
    assert torch.equal(run(loaded, batch), run(module, batch))
    assert run(module, batch).std() > 0
    assert set(loaded.state_dict()) == set(trained().state_dict())
    args, kwargs = inputs(32)
    assert torch.equal(loaded(*args, **kwargs)["tokens"], args[0])


def test_symbolic_dimensions_keep_their_range(tmp_path: Path) -> None:
    module, plan = converted()
    saving.save(module, plan, tmp_path / "net.pt2", *inputs())
    program = torch.export.load(tmp_path / "net.pt2")
    assert [(int(r.lower), int(r.upper)) for r in program.range_constraints.values()] == [(2, 256)]
    with pytest.raises((AssertionError, RuntimeError), match="256"):
        run(program.module(), 257)


def test_a_pt2_needs_torch_alone(tmp_path: Path) -> None:
    module, plan = converted()
    saving.save(module, plan, tmp_path / "net.pt2", *inputs())
    code = (
        "import sys, torch; sys.modules['precision_audit'] = None;"
        "extra = {'plan.yaml': '', 'manifest.json': ''};"
        "net = torch.export.load('net.pt2', extra_files=extra).module();"
        "tokens = torch.arange(24).reshape(3, 8);"
        "print(extra['manifest.json'].count('precision-audit'), len(extra['plan.yaml']) > 20,"
        " net(tokens, scale=torch.tensor(1.5))['logits'].double().sum().item())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    mentions, has_plan, total = done.stdout.split()
    expected = module(torch.arange(24).reshape(3, 8), scale=torch.tensor(1.5))["logits"].double().sum().item()
    assert int(mentions) > 0 and has_plan == "True"
    assert float(total) == pytest.approx(expected, rel=1e-6)


def test_a_training_conversion_saves_its_evaluation_graph(tmp_path: Path) -> None:
    module, plan = converted("training", ("training", "inference"))
    saving.save(module, plan, tmp_path / "net.pt2", *inputs())
    assert module.training
    loaded = saving.load(tmp_path / "net.pt2")
    assert torch.equal(run(loaded), run(module.eval()))


def test_folded_weights_are_saved_low(tmp_path: Path) -> None:
    folds = (Fold("mix.weight", "bf16", ("mix/linear#0",)), Fold("mix.bias", "bf16", ("mix/linear#0",)))
    module, plan = converted(casts=(CASTS[0], CASTS[3]), folds=folds)
    saving.save(module, plan, tmp_path / "net.pt2", *inputs())
    loaded = saving.load(tmp_path / "net.pt2")
    assert loaded.state_dict()["mix.weight"].dtype == torch.bfloat16
    assert torch.equal(run(loaded, 7), run(module, 7))


def test_a_folder_holds_the_file_plan_and_digests(tmp_path: Path) -> None:
    module, plan = converted()
    saving.save(module, plan, tmp_path / "out", *inputs(), extra={"report.txt": "READY\n"})
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == [
        "README.md", "manifest.json", "model.pt2", "plan.yaml", "report.txt",
    ]  # fmt: skip
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["kind"] == "exported" and manifest["versions"]["torch"] == torch.__version__
    assert manifest["files"]["report.txt"] == {
        "bytes": 6,
        "sha256": "3dfa3fb239f56c778a1e9b33eb31328349edd155a95806dac4378904e88527e5",  # printf "READY\n" | sha256sum
    }
    assert torch.equal(run(saving.load(tmp_path / "out")), run(module))


# swapped: a folder ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["training", "inference"])
def test_a_swapped_folder_gives_the_same_module(tmp_path: Path, mode: Mode) -> None:
    module, plan = swapped(mode)
    assert is_swapped(module.get_submodule("mix"))
    saving.save(module, plan, tmp_path / "out", *inputs())
    fresh = Net()
    before = {name: value.clone() for name, value in fresh.state_dict().items()}
    loaded = saving.load(tmp_path / "out", fresh)
    assert is_swapped(loaded.get_submodule("mix"))
    assert loaded.training is (mode == "training")
    assert {name: value.dtype for name, value in loaded.state_dict().items()} == {
        name: value.dtype for name, value in before.items()
    }
    assert loaded.get_submodule("head").weight is loaded.get_submodule("table").weight
    for switch in (loaded.eval, loaded.train):
        switch()
        module.train(loaded.training)
        assert torch.equal(run(loaded), run(module))
        assert torch.equal(run(loaded, 48), run(module, 48))
    assert all(torch.equal(value, before[name]) for name, value in fresh.state_dict().items())


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class Rounding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix, self.out = nn.Linear(64, 64), nn.Linear(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(Straight.apply(self.mix(x) * 4))
        return y


def test_a_hand_written_gradient_is_kept_in_a_swapped_folder(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, x = Rounding(), torch.randn(32, 64)
    captures = {"training": capture(net, (x,), mode="training", kept={"Straight"})}
    swap = Swap("mix/linear#0", "mix", "torchao", "rowwise", 64, 64, 32)
    cast = (Cast("x", "bf16", ("mix/linear#0",)), Cast("/mul#0", "fp32", ("/function::Straight#0",)))
    formats = (("mix/linear#0", "bf16"), ("/mul#0", "bf16"), ("/function::Straight#0", "fp32"))
    plan = Plan("hand", "training", "fp32", "bf16", formats, cast, swaps=(swap,))
    module = rewrite(captures, {"training": plan})
    saving.save(module, plan, tmp_path / "out", (x,))
    loaded = saving.load(tmp_path / "out", Rounding())
    assert isinstance(loaded, Converted) and loaded.functions == module.functions == {"Straight"}
    left, right = (torch.autograd.grad(each(x).sum(), each.get_submodule("mix").weight)[0] for each in (module, loaded))
    assert torch.equal(left, right) and float(left.abs().max()) > 0


def test_gradients_after_loading_are_those_before(tmp_path: Path) -> None:
    module, plan = swapped()
    saving.save(module, plan, tmp_path / "out", *inputs())
    loaded = saving.load(tmp_path / "out", Net())
    gradients = []
    for each in (module, loaded):
        args, kwargs = inputs()
        F.cross_entropy(each(*args, **kwargs)["logits"], args[0][:, 0]).backward()
        gradients.append({name: parameter.grad for name, parameter in each.named_parameters()})
    assert gradients[0].keys() == gradients[1].keys()
    assert all(torch.equal(value, gradients[1][name]) for name, value in gradients[0].items())


def test_masters_are_saved_in_fp32_and_ties_once(tmp_path: Path) -> None:
    module, plan = swapped()
    saving.save(module, plan, tmp_path / "out", *inputs())
    state = load_file(tmp_path / "out" / "model.safetensors")
    assert {value.dtype for name, value in state.items() if "tracked" not in name} == {torch.float32}
    assert set(trained().state_dict()) - set(state) == {"table.weight"}  # written once, as head.weight


def test_the_folder_finds_the_source_and_so_does_its_loader(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(SOURCE)
    module, plan = swapped("inference")
    saving.save(module, plan, tmp_path / "out", *inputs(), model=str(tmp_path / "net.py") + ":build_model")
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["model"] == "../net.py:build_model"
    assert torch.equal(run(saving.load(tmp_path / "out")), run(module))
    found = importlib.util.spec_from_file_location("out_load", tmp_path / "out" / "load.py")
    assert found is not None and found.loader is not None
    loader = importlib.util.module_from_spec(found)
    found.loader.exec_module(loader)
    assert torch.equal(run(loader.load()), run(module))
    assert torch.equal(run(loader.load(Net())), run(module))
    moved = tmp_path / "moved"
    moved.mkdir()
    (tmp_path / "out").rename(moved / "out")
    (tmp_path / "net.py").rename(moved / "net.py")
    assert torch.equal(run(saving.load(moved / "out")), run(module))


def test_saving_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    module, plan = swapped()
    for name in ("a", "b"):
        saving.save(module, plan, tmp_path / name, *inputs())
    assert {each.name: each.read_bytes() for each in (tmp_path / "a").iterdir()} == {
        each.name: each.read_bytes() for each in (tmp_path / "b").iterdir()
    }
    plain, plain_plan = converted()
    for name in ("a.d", "b.d"):
        saving.save(plain, plain_plan, tmp_path / name / "net.pt2", *inputs())
    with zipfile.ZipFile(tmp_path / "a.d/net.pt2") as first, zipfile.ZipFile(tmp_path / "b.d/net.pt2") as second:
        assert {n: first.read(n) for n in first.namelist()} == {n: second.read(n) for n in second.namelist()}


# what is in the way --------------------------------------------------------------------------------------------------


def test_a_swapped_module_is_no_pt2(tmp_path: Path) -> None:
    module, plan = swapped()
    with pytest.raises(InputError, match="give a folder"):
        saving.save(module, plan, tmp_path / "net.pt2", *inputs())
    assert list(tmp_path.iterdir()) == []


def test_other_inputs_than_the_captured_are_refused(tmp_path: Path) -> None:
    module, plan = converted()
    with pytest.raises(InputError, match="1 example inputs were given, but the graph takes 2"):
        saving.save(module, plan, tmp_path / "net.pt2", inputs()[0])


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda out: (out / "model.safetensors").write_bytes(b"1234"), "model.safetensors has changed since"),
        (lambda out: (out / "model.safetensors").unlink(), "model.safetensors is missing"),
        (lambda out: (out / "plan.yaml").write_text(""), "plan.yaml has changed since"),
        (lambda out: (out / "manifest.json").unlink(), "holds no manifest.json"),
        (lambda out: (out / "manifest.json").write_text("{"), "cannot be read"),
        (lambda out: (out / "manifest.json").write_text("{}"), "was not written by precision-audit"),
        (
            lambda out: (out / "manifest.json").write_text('{"tool": "precision-audit", "files": {}, "schema": 99}'),
            "has schema 99, this version reads 1",
        ),
    ],
)
def test_a_spoilt_folder_is_one_clear_line(tmp_path: Path, spoil: Callable[[Path], Any], words: str) -> None:
    module, plan = swapped()
    out = saving.save(module, plan, tmp_path / "out", *inputs())
    spoil(out)
    with pytest.raises(InputError) as caught:
        saving.load(out, Net())
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_another_model_is_told_apart(tmp_path: Path) -> None:
    module, plan = swapped()
    out = saving.save(module, plan, tmp_path / "out", *inputs())
    with pytest.raises(InputError, match=r"model\.safetensors does not fit Linear"):
        saving.load(out, nn.Linear(64, 64))

    class Renamed(type(trained())):  # type: ignore[misc]
        def forward(self, tokens: Tensor, *, scale: Tensor) -> dict[str, Tensor]:
            x = self.norm(F.relu(self.mix(self.table(tokens).mean(1))))
            return {"logits": self.head(x) * scale, "tokens": tokens}

    with pytest.raises(InputError, match="the plan names /gelu#0, which this model has not"):
        saving.load(out, Renamed())
    with pytest.raises(InputError, match="does not say where the model's source is"):
        saving.load(out)


@pytest.mark.parametrize("name", ["missing", "missing.pt2"])
def test_nothing_there(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="no such file or folder"):
        saving.load(tmp_path / name)


def test_no_program_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "net.pt2").write_text("hello")
    with pytest.raises(InputError, match=r"is no readable \.pt2 file"):
        saving.load(tmp_path / "net.pt2")
