"""Training scripts read as text: correct loops are left alone, and every defect is found at its line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from precision_audit import linting, rules, script
from precision_audit.rules import scripts
from tests.script import (
    bad_copies,
    bad_formats,
    bad_losses,
    bad_names,
    bad_quantised,
    bad_recipes,
    bad_regions,
    bad_scaling,
    bad_unscaling,
    bad_walked,
    good_adversarial,
    good_classes,
    good_closures,
    good_frameworks,
    good_images,
    good_methods,
    good_quantised,
    good_recipes,
    good_switches,
    good_text,
    good_unusual,
    good_walked,
)

GOODS = (
    good_adversarial,
    good_classes,
    good_closures,
    good_frameworks,
    good_images,
    good_methods,
    good_quantised,
    good_recipes,
    good_switches,
    good_text,
    good_unusual,
    good_walked,
)
BADS = (
    bad_copies,
    bad_formats,
    bad_losses,
    bad_names,
    bad_quantised,
    bad_recipes,
    bad_regions,
    bad_scaling,
    bad_unscaling,
    bad_walked,
)
GOOD = {name: text for module in GOODS for name, text in module.LOOPS.items()}
BAD = {name: text for module in BADS for name, text in module.SCRIPTS.items()}
assert (len(GOOD), len(BAD)) == (sum(len(m.LOOPS) for m in GOODS), sum(len(m.SCRIPTS) for m in BADS))  # no name twice
MARK = re.compile(r"# (PA\d{3})$")
WITHOUT_A_LOOP = {
    "LIGHTNING",
    "DEEPSPEED",
    "CUSTOM_FUNCTION",
    "EVALUATION_IN_HALF",
    "TIED",
    "TF32_BY_VERSION",
    "TF32_BY_TRYING",
    "MANUAL_LIGHTNING",
    "TRAINER_SUBCLASS",
    "CHANGED_IN_PLACE",
    "TIE_KEPT",
    "FILTERED_BY_BIAS",
    "WITHOUT_ANY_BIAS",
    "OTHER_CONFIGS",
}
CODES = [code for code in scripts.listed() if not rules.offers(code, "check")]


def marked(text: str) -> list[tuple[int, str]]:
    """Line and code of every mark."""
    lines = enumerate(text.splitlines(), 1)
    return sorted((number, found[1]) for number, line in lines if (found := MARK.search(line)))


def told(text: str) -> list[tuple[int, str]]:
    """Line and code of every open finding."""
    found = scripts.findings(linting.parsed("train.py", text))
    return sorted((one.source.line, one.rule) for one in found if one.source is not None and one.open)


@pytest.mark.parametrize("name", GOOD)
def test_a_correct_loop_is_left_alone(name: str) -> None:
    assert told(GOOD[name]) == []


@pytest.mark.parametrize("name", sorted(set(GOOD) - WITHOUT_A_LOOP))
def test_the_loop_of_a_control_is_seen(name: str) -> None:
    """Silence about a loop that was not found would prove nothing."""
    assert script.read(GOOD[name]).places >= 1


@pytest.mark.parametrize("name", BAD)
def test_every_defect_is_found_at_its_line_and_nothing_else(name: str) -> None:
    assert marked(BAD[name])
    assert told(BAD[name]) == marked(BAD[name])


def test_there_are_three_spellings_of_every_defect() -> None:
    spelled = [code for text in BAD.values() for _, code in marked(text)]
    assert [code for code in CODES if spelled.count(code) < 3] == []


@pytest.mark.parametrize("code", CODES)
def test_a_rule_condemns_its_bad_example_at_the_marked_line_and_leaves_the_good_one(code: str) -> None:
    rule = scripts.listed()[code]
    assert told(rule.bad().text) == marked(rule.bad().text) != []
    assert {each for _, each in marked(rule.bad().text)} == {code}
    assert told(rule.good().text) == []
    compile(rule.good().text, code, "exec")


@pytest.mark.parametrize("name", BAD)
def test_a_finding_says_what_happens_and_what_to_write(name: str) -> None:
    for one in scripts.findings(linting.parsed("train.py", BAD[name])):
        assert one.message and one.remedy and "\n" not in one.message + one.remedy
        assert one.source is not None and one.source.text in BAD[name] and Path(one.source.file).name == "train.py"
        assert re.fullmatch(r"[0-9a-f]{16}", one.fingerprint)


def test_a_mended_line_is_silent() -> None:
    """The fix that PA620 spells out, inserted where it says."""
    text = BAD["CLIP_IN_A_HELPER"]
    (finding,) = scripts.findings(linting.parsed("train.py", text))
    assert finding.remedy.startswith("add scaler.unscale_(optimizer) before this line")
    mended = text.replace("    clip(model", "    scaler.unscale_(optimizer)\n    clip(model")
    assert told(mended) == []


@pytest.mark.parametrize(
    ("name", "line", "fix"),
    [
        ("NORM_IN_EVERY_BATCH", 11,
         "move this line down, behind scaler.unscale_(opt) (line 13) and under the same test"),
        ("CLIP_IN_EVERY_BATCH", 11, "move this line down, before the step (line 14) and under the same test, "
         "with amp_scaler.unscale_(opt) before it"),
        ("NORM_IN_SOME_BATCHES", 12, "move this line down, behind scaler.unscale_(opt) (line 13)"),
        ("NORM_IN_A_HELPER", 6, "move the call of size() down, before the step (line 16) and under the same test, "
         "with scaler.unscale_(opt) before it"),
        ("CLIP_BEFORE_UNSCALE", 17,
         "move self.scaler.unscale_(self.opt) up, before this line, after the last backward()"),
        ("CLIP_OF_THE_OTHER", 16, "add scaler.unscale_(opt_g) before this line, after the last backward()"),
        ("CLIP_IN_A_COMPREHENSION", 16, "what mends line 15 mends this line too: one unscale_() before both"),
        ("R1_OF_SCALED_GRADIENTS", 14,
         "grads = [g / d_scaler.get_scale() for g in grads] before computing with them"),
        ("RESET_IN_EVERY_BATCH", 7, "move it behind scaler.step(opt) (line 12), under the same test"),
        ("LOW_TARGET", 11, "give it out.float()"),
        ("PARTED", 15, "lm.h.weight.data = lm.h.weight.data.half()"),
        ("FP16_UNSCALED", 15, 'scaler = torch.amp.GradScaler("cuda") before the loop, scaler.scale(loss).backward(), '
         "scaler.step(self.opt), scaler.update()"),
        ("AVERAGED_IN_BF16", 9, "remove the scaler: batch_loss.backward(), opt.step()"),
        ("SCALER_IN_FP32", 6, 'put the forward under torch.amp.autocast("cuda", dtype=torch.float16), '
         "or remove the scaler: loss.backward(), opt.step()"),
        ("CAST_UNDER_ANOTHER_AUTOCAST", 7,
         'remove this cast and run the forward under torch.amp.autocast("xpu", dtype=torch.bfloat16)'),
        ("HALF_UNDER_A_BF16_SCALER", 6,
         'remove this cast; torch.amp.autocast("cuda", dtype=torch.bfloat16) casts as it goes'),
    ],
)  # fmt: skip
def test_a_fix_speaks_in_the_names_and_the_format_of_the_script(name: str, line: int, fix: str) -> None:
    found = scripts.findings(linting.parsed("train.py", BAD[name]))
    assert [one.remedy for one in found if one.source is not None and one.source.line == line] == [fix]


def test_a_clip_moved_where_it_says_is_silent() -> None:
    """Behind unscale_() under the test; moved up instead, unscale_() would raise in the second batch, which is said."""
    text = BAD["NORM_IN_EVERY_BATCH"].replace("  # PA620", "")
    (line,) = (each for each in text.splitlines(True) if "print(" in each)
    unscale = "            scaler.unscale_(opt)\n"
    moved = text.replace(line, "").replace(unscale, unscale + "    " + line)
    assert told(moved) == []
    up = text.replace(unscale, "").replace(line, unscale[4:] + line)
    assert [code for _, code in told(up)] == ["PA620"]


@pytest.mark.parametrize(
    ("name", "basis", "evidence"),
    [
        ("PAST_THE_SCALER", "PROVED", "which was not run"),
        ("NO_UPDATE_IN_A_CLASS", "PROVED", "which was not run"),
        ("UPDATE_ONCE_AN_EPOCH", "ASSUMED", "by their names: scaler"),
        ("PAST_IT_AFTER_UNSCALE", "ASSUMED", "by their names: optimizer, scaler"),
    ],
)
def test_what_is_known_by_its_name_alone_is_assumed(name: str, basis: str, evidence: str) -> None:
    (finding,) = scripts.findings(linting.parsed("train.py", BAD[name]))
    assert finding.evidence.basis == basis and finding.evidence.text.endswith(evidence)


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("from torch.cuda.amp import autocast\nautocast(False)\n", 'torch.amp.autocast("cuda", enabled=False)'),
        ("import torch.cpu.amp as a\na.autocast(dtype=d)\n", 'torch.amp.autocast("cpu", dtype=d)'),
        ("import torch\ntorch.cuda.amp.GradScaler(8.0, enabled=on)\n",
         'torch.amp.GradScaler("cuda", init_scale=8.0, enabled=on)'),
        ("from apex import amp\namp.scale_loss(l, opt)\n",
         "scaler.scale(l).backward(), scaler.step(opt), scaler.update()"),
        ("from apex import amp\namp.master_params(optimizer=o)\n",
         "the model's parameters(), after scaler.unscale_(o)"),
        ("import torch\ntorch.cuda.amp.GradScaler(**options)\n", 'torch.amp.GradScaler("cuda", **options)'),
    ],
)  # fmt: skip
def test_an_old_name_is_written_anew_with_its_arguments(text: str, fix: str) -> None:
    (finding,) = scripts.findings(linting.parsed("train.py", text))
    assert finding.remedy == fix


def test_a_comparison_with_an_old_name_uses_nothing() -> None:
    assert told("import torch\nassert f is torch.cuda.amp.autocast\nprint([torch.cuda.amp.GradScaler])\n") == []


@pytest.mark.slow
def test_nothing_is_run_and_torch_is_not_imported(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    (tmp_path / "train.py").write_text(f"open({str(ran)!r}, 'w')\nimport nowhere\n" + BAD["PAST_THE_SCALER"])
    code = (
        "import sys; from precision_audit.cli import main; status = main(['lint', 'train.py', '-q']);"
        "sys.exit(10 * ('torch' in sys.modules) + status)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert "train.py:13: PA623 error [PROVED]" in done.stdout
    assert not ran.exists()


@pytest.mark.parametrize(
    ("text", "loops"),
    [
        ("", 0),
        ("x = 1\n", 0),
        (GOOD["LIGHTNING"], 0),
        (GOOD["WGAN_CLIPPED"], 2),  # the critic's loop within the generator's
        (GOOD["TORCHVISION"], 1),  # called for every epoch, and counted once
        (GOOD["DCGAN"] + GOOD["BF16_ONLY"], 2),
    ],
)
def test_loops_are_counted_once(text: str, loops: int) -> None:
    assert script.read(text).places == loops
