"""Saving: both forms reload to the same output, nothing is unpickled, nothing foreign is overwritten."""

from __future__ import annotations

import importlib.util
import inspect
import io
import json
import pickle
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

from precision_audit import atomic, reexport, saving, weights
from precision_audit.backends.torchao_float8 import is_swapped
from precision_audit.capture import capture, private_copy
from precision_audit.converted import Converted
from precision_audit.records import Cast, Fold, InputError, Mode, Plan, Swap
from precision_audit.rewrite import rewrite

SOURCE = '''
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Net(nn.Module):
    """Tied table and head, a norm with statistics, a keyword input, two outputs by name."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(32, 64)
        self.mix = nn.Linear(64, 64)
        self.norm = nn.BatchNorm1d(64)
        self.head = nn.Linear(64, 32, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: Tensor, *, scale: Tensor) -> dict[str, Tensor]:
        x = self.norm(F.gelu(self.mix(self.table(tokens).mean(1))))
        return {"logits": self.head(x) * scale, "tokens": tokens}


def build_model() -> Net:
    torch.manual_seed(1)
    return Net()
'''
_scope: dict[str, Any] = {"__name__": "saved_net"}
exec(compile(SOURCE, "saved_net", "exec"), _scope)
Net: Callable[[], nn.Module] = _scope["Net"]

BATCH = torch.export.Dim("batch", min=2, max=256)
SHAPES = {"tokens": {0: BATCH}, "scale": None}
CASTS = (
    Cast("/mean#0", "bf16", ("mix/linear#0",)),
    Cast("mix.weight", "bf16", ("mix/linear#0",)),
    Cast("mix.bias", "bf16", ("mix/linear#0",)),
    Cast("/gelu#0", "fp32", ("norm/batch_norm#0",)),
)
LOW = (("mix/linear#0", "bf16"), ("/gelu#0", "bf16"))


def inputs(batch: int = 32) -> tuple[tuple[Tensor], dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(batch)
    return (torch.randint(0, 32, (batch, 8), generator=generator),), {"scale": torch.tensor(1.5)}


def trained(seed: int = 0) -> nn.Module:
    """A net whose statistics are not those of a fresh one."""
    torch.manual_seed(seed)
    net = Net().train()
    for batch in (16, 24):
        args, kwargs = inputs(batch)
        net(*args, **kwargs)
    return net


def converted(
    mode: Mode = "inference",
    modes: tuple[Mode, ...] = ("inference",),
    casts: tuple[Cast, ...] = CASTS,
    **options: Any,
) -> tuple[Converted, Plan]:
    net = trained()
    original, (args, kwargs) = private_copy(net), inputs()
    captures = {each: capture(original, args, kwargs, mode=each, dynamic_shapes=SHAPES) for each in modes}
    plans = {each: Plan("hand", each, "fp32", "bf16", LOW, casts, **options) for each in modes}
    module = rewrite(captures, plans, signature=inspect.signature(net.forward))
    return module.train(mode == "training"), plans[mode]


def swapped(mode: Mode = "training") -> tuple[Converted, Plan]:
    swaps = (Swap("mix/linear#0", "mix", "torchao", "rowwise", 64, 64, "batch"),)
    return converted(mode, ("training", "inference"), (CASTS[0], CASTS[3]), swaps=swaps)


def run(module: nn.Module, batch: int = 32) -> Tensor:
    args, kwargs = inputs(batch)
    with torch.no_grad():
        logits: Tensor = module(*args, **kwargs)["logits"]
    return logits


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


# nothing unpickled ---------------------------------------------------------------------------------------------------


def test_loading_unpickles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, plain_plan = converted()
    other, other_plan = swapped()
    saving.save(plain, plain_plan, tmp_path / "net.pt2", *inputs())
    saving.save(other, other_plan, tmp_path / "out", *inputs())
    with zipfile.ZipFile(tmp_path / "net.pt2") as archive:  # the user's sample inputs are not in it
        assert [e.file_size for e in archive.infolist() if e.filename.endswith((".pt", ".pkl"))] == [0]

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("something was unpickled")

    for where, name in ((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load")):
        monkeypatch.setattr(where, name, refuse)
    assert torch.equal(run(saving.load(tmp_path / "net.pt2")), run(plain))
    assert torch.equal(run(saving.load(tmp_path / "out", Net())), run(other))


class _Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return open, (str(self.file), "w")


@pytest.mark.parametrize("place", ["data/sample_inputs/model.pt", "data/constants/model.pt", "data/weights/model.pt"])
def test_a_file_with_pickles_is_refused_unread(tmp_path: Path, place: str) -> None:
    module, plan = converted()
    saving.save(module, plan, tmp_path / "net.pt2", *inputs())
    content = io.BytesIO()
    torch.save((_Trap(tmp_path / "sprung"),), content)
    with zipfile.ZipFile(tmp_path / "net.pt2", "a") as archive:
        root = archive.namelist()[0].partition("/")[0]
        archive.writestr(f"{root}/{place}", content.getvalue())
    with pytest.raises(InputError, match="holds pickled objects"):
        saving.load(tmp_path / "net.pt2")
    assert not (tmp_path / "sprung").exists()


def test_a_config_that_asks_for_pickle_is_refused(tmp_path: Path) -> None:
    entry = {"config": {"w": {"path_name": "weight_0", "is_param": True, "use_pickle": True, "tensor_meta": None}}}
    with zipfile.ZipFile(tmp_path / "net.pt2", "w") as archive:
        archive.writestr("net/data/weights/model_weights_config.json", json.dumps(entry))
    with pytest.raises(InputError, match="holds pickled objects"):
        reexport.read_program(tmp_path / "net.pt2")


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


# atomic --------------------------------------------------------------------------------------------------------------


def _fill(folder: Path) -> None:
    (folder / "one.txt").write_text("one")


def test_a_foreign_folder_is_never_touched(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("all of it")
    with pytest.raises(InputError, match=r"holds thesis\.txt, which precision-audit did not write"):
        atomic.write_folder(tmp_path / "out", _fill, {})
    assert [each.name for each in tmp_path.rglob("*")] == ["out", "thesis.txt"]


def test_our_folder_is_replaced_unless_something_was_added(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    atomic.write_folder(out, lambda folder: (_fill(folder), (folder / "two.txt").write_text("2"))[0], {})
    (out / "__pycache__").mkdir()
    atomic.write_folder(out, _fill, {})
    assert sorted(each.name for each in out.iterdir()) == ["manifest.json", "one.txt"]
    (out / "note.txt").write_text("mine")
    with pytest.raises(InputError, match=r"holds note\.txt"):
        atomic.write_folder(out, _fill, {})
    assert (out / "note.txt").read_text() == "mine"


def test_a_failure_leaves_the_old_folder_and_no_debris(tmp_path: Path) -> None:
    atomic.write_folder(tmp_path / "out", _fill, {})

    def fail(folder: Path) -> None:
        (folder / "half.bin").write_text("half")
        raise InputError("no")

    with pytest.raises(InputError, match="no"):
        atomic.write_folder(tmp_path / "out", fail, {})
    with pytest.raises(InputError, match="no"):
        atomic.write_file(tmp_path / "out.pt2", lambda file: (file.write_text("half"), fail(tmp_path))[0])
    (tmp_path / "half.bin").unlink()
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["manifest.json", "one.txt", "out"]


def test_a_file_and_a_folder_are_not_mixed_up(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("file")
    (tmp_path / "net.pt2").mkdir()
    with pytest.raises(InputError, match="is a file; a folder was expected"):
        atomic.write_folder(tmp_path / "out", _fill, {})
    with pytest.raises(InputError, match="is a folder; a file was expected"):
        atomic.write_file(tmp_path / "net.pt2", lambda file: None)
    with pytest.raises(InputError, match="cannot write"):
        atomic.write_folder(tmp_path / "out" / "below", _fill, {})


# weights -------------------------------------------------------------------------------------------------------------


def test_weights_of_every_shape_come_back(tmp_path: Path) -> None:
    base = torch.arange(12.0)
    state = {
        "a": base[:6],  # two views of one storage
        "b": base[6:],
        "c": base.reshape(3, 4).t(),  # not contiguous
        "d": torch.tensor(3),
        "e": torch.empty(0, 4),
        "f": torch.empty(0, 4),
        "g": torch.ones(2, dtype=torch.bfloat16),
    }
    state["h"] = state["g"]  # tied
    weights.write(state, tmp_path / "w.safetensors")
    found = load_file(tmp_path / "w.safetensors")
    assert sorted(found) == ["a", "b", "c", "d", "e", "f", "g"]
    assert all(torch.equal(value, state[name]) and value.dtype == state[name].dtype for name, value in found.items())


def test_weights_without_values_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a is on the meta device"):
        weights.write({"a": torch.empty(2, device="meta")}, tmp_path / "w.safetensors")
