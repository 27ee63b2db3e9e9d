"""TransformerEngine: what a plan says. The library itself is not needed, nor imported."""

from __future__ import annotations

import ast
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import precision_audit as pa
from precision_audit import backends, policy, recipes
from precision_audit.backends import transformer_engine
from precision_audit.backends.transformer_engine import NAME, RECIPES, build, offer
from precision_audit.cli import main
from precision_audit.hardware import device
from precision_audit.hardware.recipes import chosen, lacking
from precision_audit.plan import file as plan_file
from precision_audit.records import InputError, Mode, Plan, Refusal, Swap
from tests.backends.graphs import entering, graph, linear, sized, state
from tests.backends.te_models import Blocks

H100, B200, L40S = device("h100"), device("b200"), device("l40s")

# recipe, mode, (K, N, M) → what stands against the linear, "" for nothing
SIZES = [
    ("DelayedScaling", "inference", (64, 40, 24), ""),  # N % 8, M % 8 suffice forward
    ("DelayedScaling", "training", (64, 40, 32), "N=40 is not a multiple of 16"),
    ("DelayedScaling", "training", (64, 48, 24), "M=24 is not a multiple of 16, as backward needs"),
    ("DelayedScaling", "inference", (64, 48, 1), "M=1 is not a multiple of 8"),
    ("Float8CurrentScaling", "inference", (72, 48, 32), "K=72 is not a multiple of 16"),
    ("Float8CurrentScaling", "training", (64, 48, 32), ""),
    ("MXFP8BlockScaling", "training", (48, 64, 32), "K=48 is not a multiple of 32"),
    ("MXFP8BlockScaling", "inference", (64, 64, 32), ""),
    ("Float8BlockScaling", "training", (128, 64, 128), "N=64 is not a multiple of 128"),
    ("NVFP4BlockScaling", "inference", (64, 48, 24), "M=24 is not a multiple of 16"),
]


@pytest.mark.parametrize(("recipe", "mode", "shape", "words"), SIZES)
def test_sizes_by_recipe(recipe: str, mode: Mode, shape: tuple[int, int, int], words: str) -> None:
    k, n, m = shape
    op, records = sized(k, n, (m,), (m,))
    found = offer(op, records, recipe, mode, B200)
    assert found.backend == "transformer_engine"
    if words:
        assert isinstance(found, Refusal) and words in found.reason
    else:
        assert isinstance(found, Swap)
        assert (found.kind, found.k, found.n, found.m, found.covers) == ("te.Linear", k, n, m, ())


def test_open_sizes_are_stated_and_backward_apart() -> None:
    op, records = sized(lead=("B",), hint=(24,), symbols=(("B", 24),))
    found = offer(op, records, "DelayedScaling", "training", H100)
    assert isinstance(found, Swap)
    assert found.constraints == ("B % 16 == 0 in backward, last batch included (the example's M=24 breaks it)",)
    found = offer(op, records, "DelayedScaling", "inference", H100)
    assert isinstance(found, Swap) and found.constraints == ("B % 8 == 0",)


@pytest.mark.parametrize(
    ("name", "recipe"), [("h100", "MXFP8BlockScaling"), ("h100", "NVFP4BlockScaling"), ("a100", "DelayedScaling"),
                         ("l40s", "Float8BlockScaling"), ("rtx5090", "MXFP8BlockScaling")],
)  # fmt: skip
def test_a_recipe_that_the_device_lacks_is_refused_by_name(name: str, recipe: str) -> None:
    try:
        hardware = device(name)
    except InputError:
        pytest.skip(f"no {name} in the table")
    reason = lacking(recipes.recipe("transformer_engine", recipe), hardware)
    assert recipe in reason and name in reason


def test_the_recipe_of_a_device_is_the_librarys_default() -> None:
    assert [chosen("transformer_engine", "", each).name for each in (L40S, H100, B200)] == [
        "DelayedScaling", "DelayedScaling", "MXFP8BlockScaling",
    ]  # fmt: skip
    rules = "rules:\n  - {name: all, op: linear, class: fp8-eligible, backend: transformer_engine}\n"
    made = policy.parse(f"name: te\nextends: bf16-training\ndevice: b200\n{rules}")
    report = pa.audit(nn.Sequential(nn.Linear(64, 64)), (torch.randn(32, 64),), policy=made)
    assert [swap.recipe for swap in report.plan.swaps] == ["MXFP8BlockScaling"]


def test_a_functional_linear_is_refused_before_all_else() -> None:
    op = linear("attn", "attn.in_proj_weight", "", module_type="torch.nn.modules.activation.MultiheadAttention")
    records = graph(entering((16, 64), (16, 64)), state("attn.in_proj_weight", (192, 64)), op)
    found = offer(op, records, "DelayedScaling", "training", H100)
    assert isinstance(found, Refusal)
    assert found.reason.startswith("functional linear")


def test_build_is_one_clear_line_where_nothing_can_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    swap = Swap("fc/linear#0", "fc", "transformer_engine", RECIPES[0], 64, 48, 32, kind="te.Linear")
    monkeypatch.setattr(transformer_engine, "_PACKAGES", ("no_such_package_of_anyone",))
    with pytest.raises(InputError, match=r"fc cannot be swapped for te\.Linear: TransformerEngine is not installed"):
        build(nn.Linear(64, 48), swap)
    monkeypatch.setattr(transformer_engine, "_PACKAGES", ("torch",))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="there is no CUDA device here"):
        build(nn.Linear(64, 48), swap)


def test_no_library_is_imported() -> None:
    code = (
        "import sys; from precision_audit import backends; backends.listed();"
        "sys.exit(any(name.split('.')[0] in ('torch', 'torchao', 'transformer_engine') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- a whole model ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def report() -> pa.Report:
    return pa.audit(Blocks(), (torch.randn(4, 8, 64),), policy="fp8-training-hopper-te")


def test_the_plan_of_a_model_names_the_largest_modules_that_fit(report: pa.Report) -> None:
    swaps = {swap.module: swap for swap in report.plan.swaps}
    assert {module: swap.kind for module, swap in swaps.items()} == {
        "fc1": "te.LayerNormMLP", "gate_up": "te.LayerNormMLP", "q": "te.Linear", "k": "te.Linear",
        "out": "te.LayerNormLinear", "tail.0": "te.Linear",
    }  # fmt: skip
    assert swaps["fc1"].covers == ("norm/layer_norm#0", "act/gelu#0", "fc2/linear#0")
    assert dict(swaps["fc1"].options) == {
        "bias": True, "activation": "gelu", "eps": 1e-5, "normalization": "LayerNorm",
    }  # fmt: skip
    assert dict(swaps["gate_up"].parameters) == {
        "layer_norm_weight": "norm2.weight", "fc1_weight": "gate_up.weight", "fc2_weight": "down.weight",
    }  # fmt: skip
    assert "te.Linear, not te.LayerNormLinear: norm3 is also read by k" in swaps["q"].notes
    decided = {decision.op: decision for decision in report.decisions}
    assert "computed inside te.LayerNormMLP at fc1" in decided["norm/layer_norm#0"].reason
    assert decided["fc2/linear#0"].chosen == "fp8 Float8CurrentScaling"
    assert decided["norm3/layer_norm#0"].chosen == "fp32"
    assert "8 of 8 linears" in report.summary


def test_an_audit_away_from_cuda_says_what_it_ran(report: pa.Report) -> None:
    assert report.verification is not None and report.verification.passed
    assert report.verdict == "READY WITH CHANGES"
    assert any("emulated by this tool's own quantisers" in note for note in report.verification.notes)
    assert report.verification.shapes == ""  # meta knows torch's rules, not TransformerEngine's
    assert report.verification.outputs[0].relative_l2 > 1e-2  # fp8, not bf16


def test_recipes_that_one_step_cannot_show_are_not_enough_evidence() -> None:
    report = pa.audit(Blocks(), (torch.randn(4, 8, 64),), policy="nvfp4-training-blackwell")
    assert report.verdict == "NOT ENOUGH EVIDENCE"
    assert "NVFP4BlockScaling cannot be emulated whole on this machine" in report.summary
    assert report.verification is not None
    assert any("stochastic rounding" in note for note in report.verification.notes)
    first, last = report.decisions[1], next(each for each in report.decisions if each.op == "tail.0/linear#0")
    assert "first-linear-stays-bf16" in first.reason and "last-linears-stay-bf16" in last.reason


def test_fuse_and_pins_keep_ops_outside() -> None:
    def kinds(rule: str = "", fuse: str = "mlp") -> list[str]:
        text = (
            f"name: te\nextends: bf16-training\ndevice: h100\nhazards: {{PA410: off}}\nrules:\n{rule}"
            f"  - {{name: l, op: linear, class: fp8-eligible, backend: transformer_engine, fuse: {fuse}}}\n"
        )
        made = policy.parse(text)
        return [each.kind[3:] for each in pa.audit(Blocks(), (torch.randn(4, 8, 64),), policy=made).plan.swaps]

    assert kinds(fuse="none") == ["Linear"] * 8
    assert kinds(fuse="norm") == ["LayerNormLinear", "Linear"] * 2 + ["Linear", "Linear", "LayerNormLinear", "Linear"]
    pinned = kinds("  - {name: n, op: layer_norm, module: norm, class: 'pin:fp32'}\n")
    assert pinned[:2] == ["Linear", "Linear"] and "LayerNormMLP" in pinned


def test_a_plan_file_holds_all_of_a_swap(report: pa.Report, tmp_path: Path) -> None:
    plan_file.write(report.plan, tmp_path / "plan.yaml")
    read = plan_file.read(tmp_path / "plan.yaml")
    assert [dict(each.options) for each in read.swaps] == [dict(each.options) for each in report.plan.swaps]
    assert [each.parameters for each in read.swaps] == [each.parameters for each in report.plan.swaps]
    again = pa.audit(Blocks(), (torch.randn(4, 8, 64),), policy="fp8-training-hopper-te", apply_plan=read)
    assert again.plan.swaps == read.swaps


def test_convert_refuses_before_it_runs_anything() -> None:
    class Untouchable(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise AssertionError("it was run")

    with pytest.raises(InputError, match="whose modules cannot be made here") as caught:
        pa.convert(Untouchable(), (torch.randn(1),), policy="fp8-training-hopper-te")
    assert "\n" not in str(caught.value) and "--write-code" in str(caught.value)
    assert backends.lacking("torchao") == ""


# --- what a policy may say -------------------------------------------------------------------------------------------

OPTIONS = [
    ("DelayedScaling", "{amax_history: 16}", "6: rules[0].recipe_options.amax_history: DelayedScaling has no field "
     "'amax_history' (did you mean amax_history_len?)"),
    ("DelayedScaling", "{amax_history_len: many}", "'many' is no whole number"),
    ("DelayedScaling", "{amax_history_len: true}", "True is no whole number"),
    ("DelayedScaling", "{amax_history_len: 0}", "amax_history_len cannot be 0; expected a whole number from 1 on"),
    ("DelayedScaling", "{amax_history_len: -1}", "from 1 on"),
    ("DelayedScaling", "{amax_history_len: 99999999999}", "from 1 on"),
    ("DelayedScaling", "{amax_history_len: 1.5}", "1.5 is no whole number"),
    ("DelayedScaling", "{margin: -1}", "margin cannot be -1; expected a whole number from 0 to 18"),
    ("DelayedScaling", "{margin: 19}", "from 0 to 18"),
    ("MXFP8BlockScaling", "{margin: 19}", "from 0 to 18"),
    ("Float8BlockScaling", "{x_block_scaling_dim: 2}", "x_block_scaling_dim 2 beside w_block_scaling_dim 2, the "
     "default: they meet in a product; expected w_block_scaling_dim: 1, or x_block_scaling_dim: 1"),
    ("Float8BlockScaling", "{w_block_scaling_dim: 1, x_block_scaling_dim: 2, grad_block_scaling_dim: 2}",
     "beside grad_block_scaling_dim 2: they meet"),
    ("DelayedScaling", "{amax_compute_algo: mean}", "one of max, most_recent"),
    ("DelayedScaling", "{backward_override: high_precision}", "takes no plain value"),
    ("DelayedScaling", "{fp8_format: E5M2}", "one of HYBRID, E4M3"),
    ("Float8CurrentScaling", "{use_power_2_scales: 1}", "1 is no truth value"),
    ("Float8CurrentScaling", "{margin: 0}", "Float8CurrentScaling has no field 'margin'"),
    ("Float8BlockScaling", "{w_block_scaling_dim: 3}", "one of 1, 2"),
    ("NVFP4BlockScaling", "{fp8_gemm_fprop: 1}", "has no field"),
]  # fmt: skip
RULE = """name: te
extends: bf16-training
device: b200
rules:
  - {name: linears, op: linear, class: fp8-eligible, backend: BACKEND, recipe: RECIPE,
     recipe_options: OPTIONS}
"""


@pytest.mark.parametrize(("recipe", "given", "words"), OPTIONS)
def test_wrong_fields_of_a_recipe_are_errors_with_file_and_line(recipe: str, given: str, words: str) -> None:
    text = RULE.replace("BACKEND", "transformer_engine").replace("RECIPE", recipe).replace("OPTIONS", given)
    with pytest.raises(InputError, match=r"^mine\.yaml:6: ") as caught:
        policy.parse(text, "mine.yaml")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("recipe", "given"),
    [
        ("DelayedScaling", "{amax_history_len: 1, margin: 18}"),
        ("MXFP8BlockScaling", "{margin: 0}"),
        ("Float8BlockScaling", "{w_block_scaling_dim: 1, x_block_scaling_dim: 2}"),
        ("Float8BlockScaling", "{w_block_scaling_dim: 1, grad_block_scaling_dim: 2}"),
        ("Float8BlockScaling", "{w_block_scaling_dim: 2}"),
    ],
)
def test_the_ends_of_what_a_field_takes(recipe: str, given: str) -> None:
    hardware = "device: h100" if recipe != "MXFP8BlockScaling" else "device: b200"
    text = RULE.replace("BACKEND", "transformer_engine").replace("RECIPE", recipe).replace("OPTIONS", given)
    assert policy.parse(text.replace("device: b200", hardware)).rules[0].recipe_options


def test_at_the_next_margin_everything_is_zero() -> None:
    largest = torch.tensor([448 / 2**18, 448 / 2**19], dtype=torch.float64).float()
    assert largest.to(torch.float8_e4m3fn).float().tolist() == [2.0**-9, 0.0]


def test_fields_want_a_recipe_and_a_backend_that_has_them() -> None:
    text = RULE.replace("OPTIONS", "{margin: 1}")
    with pytest.raises(InputError, match="has no fields to set"):
        policy.parse(text.replace("BACKEND", "torchao").replace("RECIPE", "rowwise"))
    with pytest.raises(InputError, match="recipe_options without recipe"):
        policy.parse(text.replace("BACKEND", "transformer_engine").replace(" recipe: RECIPE,", ""))


def test_right_fields_reach_swap_and_code() -> None:
    text = RULE.replace("BACKEND", "transformer_engine").replace("RECIPE", "DelayedScaling")
    made = policy.parse(text.replace("OPTIONS", "{amax_history_len: 16, fp8_format: E4M3}").replace("b200", "h100"))
    plan = pa.audit(nn.Sequential(nn.Linear(64, 64)), (torch.randn(32, 64),), policy=made).plan
    assert dict(plan.swaps[0].recipe_options) == {"amax_history_len": 16, "fp8_format": "E4M3"}
    code = pa.te_code(plan)
    assert "recipe.DelayedScaling(amax_history_len=16, fp8_format=recipe.Format.E4M3)" in code
    assert "DelayedScaling raises under torch.compile" in code


def _swap(**given: object) -> Swap:
    plain = Swap("fc/linear#0", "fc", NAME, "DelayedScaling", 64, 48, 32, kind="te.Linear", options=(("bias", True),))
    return replace(plain, **given)  # type: ignore[arg-type]


def _plan_of(*swaps: Swap, name: str = "mine") -> Plan:
    return Plan(name, "training", "fp32", "bf16", (), (), swaps=swaps)


ODD = ("it's", 'say "x"', "a\nb", "a\\", "\\n", "\r", "\x00", "\u2028", "@rows@", "@notes@", "{x}", "%s", "é",
       '"""', "'''", "#", "__import__('os')", "fc'], None) #", "x" * 300)  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_every_name_is_written_as_it_is(name: str) -> None:
    """The code is data and the same statements whatever the words are: path, policy, recipe's conditions."""
    swap = _swap(op=f"{name}.1/linear#0", module=f"{name}.1", constraints=(f"{name} % 16 == 0",))
    made, plain = (
        ast.parse(pa.te_code(each)) for each in (_plan_of(swap, swap, name=name), _plan_of(_swap(), name="m"))
    )
    assert [type(each) for each in made.body] == [type(each) for each in plain.body]
    (rows,) = (each.value for each in made.body if isinstance(each, ast.Assign) and _target(each) == "MODULES")
    assert isinstance(rows, ast.List) and isinstance(rows.elts[0], ast.Tuple)
    path, _, _, parameters, *_ = rows.elts[0].elts
    assert ast.literal_eval(path) == f"{name}.1"
    assert ast.literal_eval(parameters) == {"weight": f"{name}.1.weight", "bias": f"{name}.1.bias"}
    shown = name if name.isprintable() else repr(name)[1:-1].replace("\\\\", "\\")
    assert f"policy {shown} has them" in (ast.get_docstring(made) or "")


def _target(assigned: ast.Assign) -> str:
    return getattr(assigned.targets[0], "id", "")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"kind": "te.Linear)#"}, "no class 'te.Linear)#'; expected one of te.Linear, te.LayerNormLinear"),
        ({"kind": "Float8Linear"}, "no class 'Float8Linear'"),
        ({"recipe": "os.abort"}, "no recipe 'os.abort'; expected one of DelayedScaling"),
        ({"recipe_options": (("fp8_format", "E4M3, x=1"),)}, "unknown value 'E4M3, x=1' of fp8_format"),
        ({"recipe_options": (("margin=0, x", 1),)}, "has no field 'margin=0, x'"),
        ({"options": ()}, "options are none; expected bias"),
        ({"options": (("bias", True), ("x=1)#", 1))}, "options are 'bias', 'x=1)#'; expected bias"),
        ({"options": (("bias", math.inf),)}, "bias cannot be inf"),
        ({"k": "K"}, "size 'K' is no whole number"),
        (
            {
                "kind": "te.LayerNormLinear",
                "options": tuple(dict.fromkeys(("bias", "eps", "normalization"), 1).items()),
            },
            "no norm",
        ),
    ],
)
def test_what_a_plan_file_makes_up_is_no_code(given: dict[str, object], words: str) -> None:
    with pytest.raises(InputError) as caught:
        pa.te_code(_plan_of(_swap(**given)))
    text = str(caught.value)
    assert text.startswith("the plan's swap at fc: ") and words in text and "\n" not in text, text


# --- the command line ------------------------------------------------------------------------------------------------

MODEL = """
import torch
from tests.backends.te_models import Blocks as build_model

example_inputs = (torch.ones(4, 8, 64),)
"""


def test_the_command_line_writes_code_that_parses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    out = tmp_path / "te_modules.py"
    arguments = [str(tmp_path / "model.py"), "--policy", "fp8-training-hopper-te", "--isolated", "-q"]
    assert main([*arguments, "--write-code", str(out), "--exit-zero"]) == 0, capsys.readouterr().err
    compile(out.read_text(), "te_modules.py", "exec")
    assert main([*arguments, "--write-code", str(out), "--exit-zero"]) == 0  # its own file may be replaced
    assert "gate_up: the plan has one te.LayerNormMLP here; its activation is no module of its own" in out.read_text()
    assert main(["convert", *arguments, "-o", str(tmp_path / "out")]) == 2
    assert "whose modules cannot be made here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("te_modules", "no name of a Python module; expected one such as te_modules.py"),
        ("te-modules.py", "no name of a Python module"),
        ("class.py", "no name of a Python module"),
        ("modules.txt", "no name of a Python module"),
        ("folder.py", "is a folder; give a file in it"),
        ("nowhere/te.py", "there is no folder"),
        ("model.py", "is the model of this run and will not be overwritten"),
        ("other.py", "is there already and was not written by this option; give another name"),
    ],
)
def test_where_code_cannot_go(name: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "other.py").write_text("mine = 1\n")
    (tmp_path / "folder.py").mkdir()
    place = str(tmp_path / name)
    assert main([str(tmp_path / "model.py"), "--policy", "fp8-training-hopper-te", "--write-code", place]) == 2
    said = capsys.readouterr().err
    assert f"--write-code {place}: " in said and words in said and "-o " not in said.replace("--write-code", "")
    assert (tmp_path / "other.py").read_text() == "mine = 1\n"


def test_code_is_refused_for_a_policy_without_such_swaps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nowhere.py", "--policy", "bf16-training", "--write-code", str(tmp_path / "a.py")]) == 2
    assert "swaps nothing by backend transformer_engine" in capsys.readouterr().err
    with pytest.raises(InputError, match="swaps nothing by backend transformer_engine"):
        pa.te_code(Plan("bf16-training", "training", "fp32", "bf16", (), ()))
