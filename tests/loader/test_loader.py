"""The loader: every form of MODEL, every name of its table, and what people give it by mistake."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
from torch import fx, nn

from precision_audit import loader
from precision_audit.loader import script
from precision_audit.records import InputError

HEAD = "import torch\nfrom torch import nn\n"
NET = (
    "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.fc = nn.Linear(4, 3)\n\n"
)
NET += "    def forward(self, x):\n        return self.fc(x)\n\n\n"
INPUTS = "example_inputs = (torch.ones(2, 4),)\n"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(text: str | bytes, name: str = "net.py") -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return name

    return write


def refused(spec: str, **options: object) -> str:
    with pytest.raises(InputError) as error:
        loader.load(spec, **options)  # type: ignore[arg-type]
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("body", "attribute", "found"),
    [
        ("def build_model():\n    return Net()\n", "", "build_model"),
        ("def get_model():\n    return Net()\n", "", "get_model"),
        ("model = Net()\n", "", "model"),
        ("model = Net\n", "", "model"),
        ("", "", "Net"),
        ("def make(width=3):\n    return Net()\n", "make", "make"),
        ("class Box:\n    inner = Net()\n", "Box.inner", "Box.inner"),
        ("traced = torch.fx.symbolic_trace(Net())\n", "traced", "traced"),
        ("exported = torch.export.export(Net(), (torch.ones(2, 4),))\n", "exported", "exported"),
        ("compiled = torch.compile(Net())\n", "compiled", "compiled"),
    ],
)
def test_every_form_of_model(write, body: str, attribute: str, found: str) -> None:
    name = write(HEAD + NET + body + INPUTS)
    loaded = loader.load(f"{name}:{attribute}" if attribute else name)
    assert loaded.source == f"net.py:{found}"
    assert loaded.weights_note == f"weights as {found} made them (no --checkpoint)"
    assert [tuple(tensor.shape) for tensor in loaded.args] == [(2, 4)]
    kinds = {"traced": fx.GraphModule, "exported": torch.export.ExportedProgram}
    assert isinstance(loaded.model, kinds.get(attribute, nn.Module))
    module = loaded.model.module() if attribute == "exported" else loaded.model
    assert module(*loaded.args).shape == (2, 3)
    assert type(module).__name__ != "OptimizedModule"


def test_build_model_comes_before_model_and_classes(write) -> None:
    name = write(HEAD + NET + "model = nn.Linear(4, 1)\ndef build_model():\n    return nn.Linear(4, 2)\n" + INPUTS)
    assert loader.load(name).model.out_features == 2


def test_dotted_module(write) -> None:
    write("", "pkg_of_models/__init__.py")
    write(HEAD + NET + INPUTS, "pkg_of_models/nets.py")
    loaded = loader.load("pkg_of_models.nets:Net")
    assert loaded.source == "pkg_of_models.nets:Net"
    assert loaded.inputs_note == "1 batch from example_inputs"


def test_pt2_file_brings_model_and_inputs(write, tmp_path: Path) -> None:
    program = torch.export.export(nn.Linear(4, 3), (torch.ones(2, 4),))
    torch.export.save(program, tmp_path / "net.pt2")
    loaded = loader.load("net.pt2")
    assert isinstance(loaded.model, torch.export.ExportedProgram)
    assert torch.equal(loaded.args[0], torch.ones(2, 4))
    assert "2x4" not in refused("net.pt2:attr")
    assert "net.pt2" in refused("net.pt2", input_texts=["3x5:fp32"])


def test_pt2_file_without_inputs_gets_its_own_shapes(write, tmp_path: Path) -> None:
    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(5, 4)

        def forward(self, x, batch):
            return x + self.table(batch["ids"])

    size = torch.export.Dim("B")
    program = torch.export.export(
        Looks(),
        (torch.ones(6, 4, dtype=torch.float64),),
        {"batch": {"ids": torch.ones(6, dtype=torch.int64)}},
        dynamic_shapes={"x": {0: size}, "batch": {"ids": {0: size}}},
        strict=False,
    )
    program._example_inputs = None
    torch.export.save(program, tmp_path / "net.pt2")
    loaded = loader.load("net.pt2")
    assert loaded.args[0].shape == (6, 4)
    assert loaded.args[0].dtype == torch.float64
    assert loaded.kwargs["batch"]["ids"].shape == (6,)
    assert loaded.made_up
    assert loaded.model.module()(*loaded.args, **loaded.kwargs).shape == (6, 4)


def test_all_other_names_of_the_table(write) -> None:
    body = (
        "def example_inputs():\n    return torch.ones(2, 4)\n"
        "def calibration_batches():\n    yield torch.zeros(2, 4)\n    yield {'x': torch.ones(2, 4)}\n"
        "def loss(output):\n    return output.sum()\n"
        "def make_optimizer(parameters):\n    return torch.optim.SGD(parameters, lr=0.5)\n"
        "def metric(model):\n    return 1.0\n"
        "dynamic_shapes = {'x': {0: torch.export.Dim('B')}}\n"
    )
    loaded = loader.load(write(HEAD + NET + body))
    assert loaded.loss(torch.ones(3)).item() == 3
    assert loaded.optimizer(loaded.model.parameters()).defaults["lr"] == 0.5
    assert loaded.metric(None) == 1.0
    assert loaded.dynamic_shapes["x"][0].__name__ == "B"
    for _ in range(2):  # batches can be walked again
        (zeros, none), (empty, ones) = list(loaded.calibration)
        assert zeros[0].sum() == 0
        assert none == {}
        assert empty == ()
        assert ones["x"].sum() == 8


@pytest.mark.parametrize(
    ("value", "positional", "named"),
    [
        ("torch.ones(2, 4)", 1, []),
        ("(torch.ones(2, 4),)", 1, []),
        ("[torch.ones(2, 4)]", 1, []),
        ("{'x': torch.ones(2, 4)}", 0, ["x"]),
        ("((), {'x': torch.ones(2, 4)})", 0, ["x"]),
        ("((torch.ones(2, 4),), {})", 1, []),
        ("lambda: {'x': torch.ones(2, 4)}", 0, ["x"]),
        ("(torch.ones(2, 4, requires_grad=True) * 2,)", 1, []),
    ],
)
def test_forms_of_example_inputs(write, value: str, positional: int, named: list[str]) -> None:
    loaded = loader.load(write(HEAD + NET + f"example_inputs = {value}\n"))
    assert len(loaded.args) == positional
    assert list(loaded.kwargs) == named
    tensor = [*loaded.args, *loaded.kwargs.values()][0]
    assert tensor.is_leaf
    assert tensor.requires_grad == ("requires_grad" in value)


def test_dummy_inputs_then_calibration_batches_stand_in_for_example_inputs(write) -> None:
    own = NET + "    @property\n    def dummy_inputs(self):\n        return {'x': torch.ones(5, 4)}\n"
    own = own.replace("\n\n\n    @property", "\n\n    @property")
    assert loader.load(write(HEAD + own)).kwargs["x"].shape == (5, 4)
    loaded = loader.load(write(HEAD + NET + "calibration_batches = iter([torch.ones(6, 4)])\n", "b.py"))
    assert loaded.args[0].shape == (6, 4)
    assert len(list(loaded.calibration)) == 1


def test_mode_and_parameters_are_left_alone(write) -> None:
    body = "def build_model():\n    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout()).train()\n"
    loaded = loader.load(write(HEAD + body))
    assert all(module.training for module in loaded.model.modules())
    assert loaded.model[1].num_batches_tracked.item() == 0
    assert loaded.made_up


MISTAKES = [
    ("", ["empty", "build_model"]),
    ("   \n", ["empty"]),
    ("x = 1\n", ["no model found", "build_model, get_model, model"]),
    ("def f(:\n", ["net.py:1", "not valid Python"]),
    (b"x = '\xff\xfe'\n", ["not a Python source file", "UTF-8"]),
    (b"x = 1\0\n", ["not valid Python"]),
    ("build_model = 5\nimport sys\nsys.exit(3)\n", ["net.py:3", "ended the process (exit code 3)", "__main__"]),
    ("def build_model():\n    exit()\n", ["net.py:2", "ended the process"]),
    ("def build_model():\n    return 1 / 0\n", ["net.py:2", "ZeroDivisionError: division by zero"]),
    ("import no_such_library\nmodel = 1\n", ["net.py:1", "No module named 'no_such_library'"]),
    ("def build_model():\n    return 'bert'\n", ["is a str", "expected an nn.Module"]),
    ("def build_model(width, depth=2):\n    pass\n", ["needs arguments (width)", "def build_model"]),
    (HEAD + "class A(nn.Module): pass\nclass B(nn.Module): pass\n", ["several candidates", "A, B", "net.py:B"]),
    (
        HEAD + "class A(nn.Module):\n    def __init__(self, width):\n        pass\n",
        ["constructor", "(width)", "width=..."],
    ),
    (HEAD + NET + "example_inputs = 5\n", ["example_inputs is an int", "tuple or list"]),
    (
        HEAD + NET + "def example_inputs():\n    raise KeyError('gone')\n",
        ["net.py:13: example_inputs failed", "KeyError: 'gone'"],
    ),
    (HEAD + NET + "def example_inputs(size):\n    pass\n", ["example_inputs needs arguments (size)"]),
    (HEAD + NET + "example_inputs = {'y': torch.ones(2, 4)}\n", ["y=2x4:fp32", "forward takes (x)"]),
    (HEAD + NET + "example_inputs = {1: torch.ones(2, 4)}\n", ["the key 1"]),
    (HEAD + NET + "example_inputs = torch.ones(2, 5)\n", ["net.py:9", "2x5:fp32", "cannot be multiplied"]),
    (HEAD + NET + INPUTS + "loss = 3\n", ["loss is an int", "scalar"]),
    (
        HEAD + NET + INPUTS + "calibration_batches = torch.ones(2, 4)\n",
        ["calibration_batches is a Tensor", "in a list"],
    ),
    (
        HEAD + "model = nn.Linear(4, 3)\nnn.init.constant_(model.bias, float('nan'))\n" + INPUTS,
        ["parameter bias holds NaN (3 of 3 values)"],
    ),
    (HEAD + "model = torch.jit.script(nn.Linear(4, 3))\n", ["TorchScript"]),
]


@pytest.mark.parametrize(("text", "parts"), MISTAKES, ids=[parts[0] for _, parts in MISTAKES])
def test_mistakes_are_one_clear_line(write, text: str | bytes, parts: list[str]) -> None:
    said = refused(write(text))
    assert "net.py" in said or "NaN" in said
    for part in parts:
        assert part in said, said


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ("nett.py", ["no such file", "did you mean net.py?"]),
        (".", ["is a folder", "net.py"]),
        ("net.py:Nett", ["there is no Nett", "did you mean net.py:Net?"]),
        ("net.py:torch", ["is a module"]),
        ("net.py:", ["nothing after the colon"]),
        (":Net", ["nothing before the colon"]),
        (" ", ["MODEL is empty"]),
        ("no_such_package.models:Net", ["no such module"]),
        ("torch.nn:Linear", ["in_features, out_features"]),
        ("weights.bin", ["no Python file"]),
        ("broken.pt2", ["cannot be read as an exported program"]),
        ("gone.pt2", ["no such file"]),
    ],
)
def test_wrong_model_arguments(write, spec: str, parts: list[str]) -> None:
    write(HEAD + NET + INPUTS)
    write(b"abc", "weights.bin")
    write(b"abc", "broken.pt2")
    said = refused(spec)
    for part in parts:
        assert part in said, said


def test_names_with_spaces_relative_paths_and_relative_data(write, tmp_path: Path) -> None:
    write("WIDTH = 3\n", "my nets/widths_of_net.py")
    write(b"4", "my nets/in.txt")
    body = "from pathlib import Path\nfrom widths_of_net import WIDTH\n"
    body += "SIZE = int((Path(__file__).parent / 'in.txt').read_text())\n"
    body += "def build_model():\n    return nn.Linear(SIZE, WIDTH)\n" + INPUTS
    write(HEAD + body, "my nets/the net.py")
    loaded = loader.load("my nets/../my nets/the net.py")
    assert loaded.model.weight.shape == (3, 4)
    assert os.getcwd() == str(tmp_path)


def test_two_files_of_one_name_do_not_mix(write) -> None:
    first = loader.load(write(HEAD + NET + INPUTS, "a/net.py"))
    second = loader.load(write(HEAD + NET.replace("4, 3", "4, 2") + INPUTS, "b/net.py"))
    assert (first.model.fc.out_features, second.model.fc.out_features) == (3, 2)


def test_what_the_file_prints_goes_to_stderr(write, capsys: pytest.CaptureFixture[str]) -> None:
    loader.load(
        write(HEAD + NET + "print('at import')\ndef build_model():\n    print('building')\n    return Net()\n" + INPUTS)
    )
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.split() == ["at", "import", "building"]


TRAINING = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--hidden", type=int, default=3)
options = parser.parse_args()
open("ran.txt", "w").close()

class Block(nn.Module):
    def forward(self, x):
        return x

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.block = nn.Linear(4, options.hidden), Block()

    def forward(self, x):
        return self.block(self.fc(x))

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
torch.save(model.state_dict(), "ran.txt")
"""


def test_a_training_script_is_not_run(write, tmp_path: Path) -> None:
    said = refused(write(HEAD + TRAINING, "train.py"))
    assert "classes in it: Block, Net" in said
    assert "train.py:Net" in said
    assert not (tmp_path / "ran.txt").exists()


def test_a_class_of_a_training_script_is_loaded_without_training(write, tmp_path: Path) -> None:
    loaded = loader.load(f"{write(HEAD + TRAINING, 'train.py')}:Net")
    assert loaded.model.fc.out_features == 3
    assert not (tmp_path / "ran.txt").exists()
    assert "only its definitions were run" in loaded.messages[0]
    assert "Net" in refused("train.py:Nets")


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ("import torch\nWIDTH = 3\nprint('hello')\ntorch.manual_seed(0)\n", False),
        ("'''doc'''\nif __name__ == '__main__':\n    train()\n", False),
        ("try:\n    import apex\nexcept ImportError:\n    apex = None\n", False),
        ("def train():\n    loss.backward()\n", False),
        ("def main():\n    pass\nmain()\n", True),
        ("for i in range(3):\n    pass\n", True),
        ("if True:\n    while x:\n        pass\n", True),
        ("model = 1\nfor i in range(3):\n    pass\n", False),  # declares a model and does not train
        ("model = 1\ndef train():\n    loss.backward()\ndef main():\n    train()\nmain()\n", True),
        ("model = 1\nlosses = [train_one() for _ in range(3)]\ndef train_one():\n    optimizer.step()\n", True),
        ("def build_model():\n    return 1\nmain()\n", False),
    ],
)
def test_what_counts_as_work_at_import(text: str, runs: bool) -> None:
    assert (script.work_at_import(script.parse(text, "net.py")) is not None) == runs


def test_load_model_needs_no_inputs(write) -> None:
    assert isinstance(loader.load_model(write(HEAD + NET.replace("forward(self, x)", "forward(self, *x)"))), nn.Module)


def test_every_name_is_documented() -> None:
    assert list(loader.NAMES)[:4] == ["build_model", "get_model", "model", "example_inputs"]
    assert all(len(text) > 10 for text in loader.NAMES.values())


@pytest.mark.parametrize("inputs", ["(torch.ones(2, 4),)", "{'x': torch.ones(2, 4)}"])
def test_calibration_data_is_given_as_the_example_is(write, inputs: str) -> None:
    import numpy

    numpy.savez("data.npz", x=numpy.full((2, 4), 3.0, dtype="float32"))
    loaded = loader.load(write(f"{HEAD}{NET}example_inputs = {inputs}\n"), calibration_data="data.npz")
    assert loaded.calibration is not None
    ((args, kwargs),) = loaded.calibration
    assert (len(args), sorted(kwargs)) == (len(loaded.args), sorted(loaded.kwargs))
    assert torch.equal(kwargs["x"] if kwargs else args[0], torch.full((2, 4), 3.0))


def test_calibration_data_is_cut_into_batches(write, tmp_path: Path) -> None:
    import numpy

    numpy.savez(tmp_path / "data.npz", x=numpy.arange(28, dtype="float32").reshape(7, 4))
    loaded = loader.load(write(HEAD + NET + INPUTS), calibration_data="data.npz")
    batches = [args[0] for args, _ in loaded.calibration]
    assert [batch[0, 0].item() for batch in batches] == [0, 8, 16]  # seven rows are three batches of two
    said = "3 batches of 2 (the example's size); the last sample is left out, give a multiple of 2 to use all 7"
    assert loaded.messages[-1] == f"calibration data data.npz: {said}"
    numpy.savez(tmp_path / "data.npz", x=numpy.ones((6, 4), dtype="float32"))
    loaded = loader.load(write(HEAD + NET + INPUTS), calibration_data="data.npz")
    assert not any("calibration" in message for message in loaded.messages)


@pytest.mark.parametrize(
    ("arrays", "part"),
    [
        ({"y": [[1.0] * 4] * 2}, "no tensor argument y"),
        ({"x": [[1.0] * 5] * 2}, "expected Nx4"),
        ({"x": [[1.0] * 4]}, "expected one number above 0"),
        ({"x": [[float("nan")] * 4] * 2}, "NaN"),
    ],
)
def test_calibration_data_that_does_not_fit(write, arrays: dict[str, list], part: str) -> None:
    import numpy

    numpy.savez("data.npz", **{name: numpy.array(rows, dtype="float32") for name, rows in arrays.items()})
    assert part in refused(write(HEAD + NET + INPUTS), calibration_data="data.npz")


def test_complex_calibration_data_for_a_real_input(write) -> None:
    import numpy

    numpy.savez("data.npz", x=numpy.ones((2, 4), dtype="complex64"))
    assert "x is complex, the example is not" in refused(write(HEAD + NET + INPUTS), calibration_data="data.npz")
