"""--input: what is parsed, what is made of it, and which shapes are tried when nothing is given."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from precision_audit.loader import guess, inputs, trial
from precision_audit.loader.inputs import Spec
from precision_audit.records import InputError


class Takes(nn.Module):
    """forward with every kind of argument."""

    def forward(self, x, ids=None, *more, scale=None, **rest):
        return x


class Dict(nn.Module):
    def forward(self, batch, pair):
        return batch["ids"].float() + pair[0] + pair[1]


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("64x1x28x28:fp32", Spec("", (64, 1, 28, 28), torch.float32)),
        ("64x1x28x28", Spec("", (64, 1, 28, 28), torch.float32)),
        ("ids=Bx128:int64:0..30522", Spec("ids", ("B", 128), torch.int64, 0.0, 30522.0)),
        ("x=BxSx8:bf16:-1.5..2.5", Spec("x", ("B", "S", 8), torch.bfloat16, -1.5, 2.5)),
        ("x=4:float16", Spec("x", (4,), torch.float16)),
        ("t=scalar:int64", Spec("t", (), torch.int64)),
        ("batch.ids=batchx8:int32", Spec("batch.ids", ("batch", 8), torch.int32)),
        ("mask=2x8:bool", Spec("mask", (2, 8), torch.bool)),
        ("z=2x8:complex64", Spec("z", (2, 8), torch.complex64)),
        ("x=0x4:fp64", Spec("x", (0, 4), torch.float64)),
    ],
)
def test_parse(text: str, spec: Spec) -> None:
    assert inputs.parse([text]) == ([spec], {})


@pytest.mark.parametrize("texts", [["Bx3:fp32", "B=4"], ["B=4", "Bx3:fp32"], ["Bx3:fp32,B=4"], ["Bx3:fp32, B=4"]])
def test_sizes_stand_anywhere(texts: list[str]) -> None:
    assert inputs.parse(texts) == ([Spec("", ("B", 3), torch.float32)], {"B": 4})


@pytest.mark.parametrize(
    ("texts", "parts"),
    [
        (["3,4:fp32:a:b"], ["expected [NAME=]SHAPE:FORMAT"]),
        ([":fp32"], ["expected [NAME=]SHAPE:FORMAT"]),
        (["3x-4:fp32"], ["'-4' is no size"]),
        (["3xx4:fp32"], ["'' is no size"]),
        (["3x4:fp23"], ["unknown format 'fp23'", "did you mean fp32?"]),
        (["3x4:int46"], ["unknown format 'int46'", "int64"]),
        (["3x4:mxint8"], ["torch has no tensors of format mxint8"]),
        (["3x4:quint8"], ["torch cannot fill a tensor of quint8"]),
        (["3x4:fp32:5"], ["'5' is no range"]),
        (["3x4:fp32:5..2"], ["'5..2' is no range"]),
        (["3x4:int64:0..0.5"], ["whole numbers"]),
        (["3x4:uint8:0..300"], ["holds 0..256"]),
        (["3x4:bool:0..1"], ["range means nothing for bool"]),
        (["B=4"], ["no input has a dimension named B"]),
        (["Bx4:fp32", "b=4"], ["no input has a dimension named b"]),
        (["Bx4:fp32", "B=1"], ["1 cannot stand for a dimension that varies"]),
        (["Bx4:fp32", "B=-2"], ["-2 cannot stand"]),
        (["y=3x4:fp32"], ["no argument y", "x"]),
        (["xs=3x4:fp32"], ["no argument xs", "did you mean x?"]),
        (["3x4", "3x4"], ["forward takes only 1 inputs: x"]),
        (["x=3x4", "x=3x4"], ["x is given twice"]),
        (["99999999999x99999999"], ["too large"]),
        (["99999999999999999999x1"], ["too large"]),
    ],
)
def test_mistakes(texts: list[str], parts: list[str]) -> None:
    class One(nn.Module):
        def forward(self, x):
            return x

    with pytest.raises(InputError) as error:
        inputs.make(One(), texts)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith("--input")
    for part in parts:
        assert part in str(error.value)


def test_arguments_are_bound_as_python_binds_them() -> None:
    made = inputs.make(Takes(), ["scale=2:fp32", "3x4:fp32", "5:int64", "6x1:fp32", "7:fp32", "other=8:fp32"])
    assert [tuple(tensor.shape) for tensor in made.args] == [(3, 4), (5,), (6, 1), (7,)]
    assert {name: tuple(tensor.shape) for name, tensor in made.kwargs.items()} == {"scale": (2,), "other": (8,)}
    assert made.dynamic_shapes is None


def test_an_argument_that_is_skipped_makes_the_rest_keywords() -> None:
    class Two(nn.Module):
        def forward(self, x=None, y=None):
            return y

    made = inputs.make(Two(), ["y=3:fp32"])
    assert made.args == ()
    assert list(made.kwargs) == ["y"]


def test_dotted_names_fill_dicts_and_lists() -> None:
    made = inputs.make(Dict(), ["batch.ids=Bx4:int64:0..5", "pair.0=Bx4", "pair.1=Bx4:fp32,B=6"])
    batch, pair = made.args
    assert list(batch) == ["ids"]
    assert isinstance(pair, list)
    assert Dict()(*made.args).shape == (6, 4)
    assert set(made.dynamic_shapes) == {"batch", "pair"}
    program = torch.export.export(Dict(), made.args, dynamic_shapes=made.dynamic_shapes, strict=False)
    assert program.module()({"ids": torch.ones(9, 4, dtype=torch.int64)}, [torch.ones(9, 4)] * 2).shape == (9, 4)


def test_one_name_is_one_dimension_for_torch_export() -> None:
    class Sum(nn.Module):
        def forward(self, x, y, *, z):
            return x + y.sum(1, keepdim=True) + z

    made = inputs.make(Sum(), ["BxS:fp32", "BxT:fp32", "z=4:fp32", "B=6", "S=4"])
    assert made.sizes == {"B": 6, "S": 4, "T": 16}
    assert made.dynamic_shapes["z"] is None
    assert made.dynamic_shapes["x"][0] is made.dynamic_shapes["y"][0]
    fixed = inputs.make(Sum(), ["Bx4:fp32", "BxT:fp32", "z=4:fp32", "B=6"])
    program = torch.export.export(
        Sum(), fixed.args, fixed.kwargs, dynamic_shapes=fixed.dynamic_shapes, strict=False
    ).module()
    assert program(torch.ones(3, 4), torch.ones(3, 9), z=torch.ones(4)).shape == (3, 4)


def test_unsized_dimensions_get_distinct_multiples_of_16() -> None:
    made = inputs.make(Takes(), ["BxSxT:fp32", "S=16"])
    assert made.sizes == {"B": 32, "S": 16, "T": 48}


def test_values_are_seeded_in_range_and_stated() -> None:
    texts = ["x=1000:fp32:-2..3", "ids=1000:int64:5..8"]
    first, second = inputs.make(Takes(), texts), inputs.make(Takes(), texts)
    for one, other in zip(first.args, second.args, strict=True):
        assert torch.equal(one, other)
    floats, integers = first.args
    assert -2 <= floats.min() < -1.9 < 2.9 < floats.max() < 3
    assert sorted(set(integers.tolist())) == [5, 6, 7]
    assert "x=1000:fp32:-2..3" in first.note
    assert "seed 0" in first.note
    normal = inputs.make(Takes(), ["10000"]).args[0]
    assert abs(normal.mean().item()) < 0.05
    assert abs(normal.std().item() - 1) < 0.05


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("attention_mask", [1, 1, 1, 1]),
        ("token_type_ids", [0, 0, 0, 0]),
        ("position_ids", [0, 1, 2, 3]),
    ],
)
def test_integers_known_by_name(name: str, expected: list[int]) -> None:
    made = inputs.make(Takes(), [f"{name}=4:int64"])
    assert made.kwargs[name].tolist() == expected


@pytest.mark.parametrize(("rows", "given", "highs"), [([7], 1, [7]), ([7, 3], 2, [7, 3]), ([9, 4, 6], 2, [4, 4])])
def test_integers_point_at_rows_of_embeddings(rows: list[int], given: int, highs: list[int]) -> None:
    class Embeds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.ModuleList(nn.Embedding(count, 2) for count in rows)

        def forward(self, a, b=None):
            return a

    made = inputs.make(Embeds(), ["2000:int64"] * given)
    assert [tensor.max().item() + 1 for tensor in made.args] == highs


class Conv(nn.Module):
    def __init__(self, side: int = 28, channels: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 4, 3)
        self.fc = nn.Linear(4 * (side - 2) ** 2, 10)

    def forward(self, image):
        return self.fc(self.conv(image).flatten(1))


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 8), nn.Embedding(32, 8)

    def forward(self, input_ids, attention_mask):
        length = input_ids.shape[1]
        assert length <= 32
        return (self.words(input_ids) + self.places(torch.arange(length))) * attention_mask[..., None]


class Diffusion(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.steps = nn.Conv2d(4, 4, 3, padding=1), nn.Embedding(1000, 4)

    def forward(self, sample, timestep):
        return self.conv(sample) + self.steps(timestep)[:, :, None, None]


class Patches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(1, 49, 16))
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def forward(self, x):
        return self.layer(x + self.positions)


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.ConvTranspose2d(12, 4, 4), nn.BatchNorm2d(4), nn.Tanh())

    def forward(self, z):
        return self.net(z[:, :, None, None])


class Nothing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))

    def forward(self):
        return self.weight * 2


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (nn.Sequential(nn.Linear(20, 4)), ["input=16x20:fp32"]),
        (nn.Sequential(nn.Linear(20, 4)).bfloat16(), ["input=16x20:bf16"]),
        (Conv(), ["image=16x1x28x28:fp32"]),
        (Conv(32, 3), ["image=16x3x32x32:fp32"]),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1)), ["input=16x3x224x224:fp32"]),
        (nn.Sequential(nn.Conv1d(2, 4, 3)), ["input=16x2x1024:fp32"]),
        (nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 2)), ["input=16x128:int64"]),
        (nn.GRU(12, 4), ["input=16x12:fp32"]),
        (Language(), ["input_ids=16x32:int64", "attention_mask=16x32:int64"]),
        (Diffusion(), ["sample=16x4x224x224:fp32", "timestep=16:int64"]),
        (Patches(), ["x=16x49x16:fp32"]),
        (Generator(), ["z=16x12:fp32"]),
        (Nothing(), []),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_guess(model: nn.Module, expected: list[str]) -> None:
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    specs = guess.guess(model, "net.py:Net")
    assert [spec.text for spec in specs] == expected
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    made = inputs.from_specs(model, specs, {})
    assert model(*made.args, **made.kwargs) is not None


def test_guessing_never_runs_the_real_model() -> None:
    class Counts(nn.Module):
        seen: list[torch.Tensor] = []  # noqa: RUF012  shared by copies on purpose

        def __init__(self) -> None:
            super().__init__()
            self.fc, self.runs = nn.Linear(6, 2), 0

        def forward(self, x):
            self.runs += 1
            Counts.seen.append(x)
            return self.fc(x)

    model = Counts()
    guess.guess(model, "net.py:Counts")
    assert model.runs == 0
    assert {type(tensor).__name__ for tensor in Counts.seen} == {"FakeTensor"}


@pytest.mark.parametrize("signature", ["self, *tensors", "self, x, y"])
def test_nothing_fits(signature: str) -> None:
    space: dict[str, object] = {}
    exec(f"def forward({signature}):\n    raise ValueError('needs a graph')\n", space)
    odd = type("Odd", (nn.Module,), {"forward": space["forward"]})()
    with pytest.raises(InputError) as error:
        guess.guess(odd, "net.py:Odd")
    assert "net.py:Odd: no inputs were given" in str(error.value)
    assert "--input x=SHAPE:FORMAT" in str(error.value)
    assert ("needs a graph" in str(error.value)) == (signature != "self, *tensors")


def test_a_fake_failure_alone_refuses_nothing() -> None:
    class Branches(nn.Module):
        def forward(self, x):
            return x + 1 if x.sum().item() > 0 else x.numpy() is None

    assert trial.refusal(Branches(), (torch.ones(2),), {}) is None
    error = trial.refusal(nn.Linear(3, 2), (torch.ones(1, 4),), {})
    assert "mat1 and mat2" in str(error)
