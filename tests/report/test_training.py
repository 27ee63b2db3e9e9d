"""The training part of a report, of evidence made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from precision_audit.records import LossScale, Optimizer, OptimizerState, Range, Report, Training, Update
from precision_audit.report import as_full, as_json, as_markdown, training
from tests.report import sample


def ranged(value: str, *histogram: tuple[int, int]) -> Range:
    """Numbers of 1.5 * 2**e; zeros beside them are not counted."""
    low, high = 1.5 * 2.0 ** histogram[0][0], 1.5 * 2.0 ** histogram[-1][0]
    return Range(value, "OBSERVED", sum(n for _, n in histogram), high, low, low, high, histogram=histogram)


EVIDENCE = Training(
    steps=2,
    losses=(2.5, 2.25),
    weights=(ranged("fc.weight", (-3, 800)),),
    weight_gradients=(ranged("fc.weight", (-30, 100), (-26, 100), (-10, 800)),),
    activations=(ranged("fc/linear#0", (0, 50), (17, 50)),),
    activation_gradients=(ranged("fc/linear#0", (-8, 1000)),),
    below=(0.1, 0.3),
    updates=(Update("fc.weight", 1000, (("bf16", 0.75), ("fp16", 0.25)), (("bf16", 0.1), ("fp16", 0.8)), 0.0),),
    optimizer=Optimizer(
        "AdamW",
        (("lr", 1e-3),),
        None,
        (OptimizerState("exp_avg", ranged("exp_avg", (-12, 800)), 3200),),
    ),
    scale=LossScale("fp16", 4.0, 1024.0, 65536.0, "fc.weight", "fc/linear#0", 2.0, 0.1, 0.0),
)


def report(low: str = "fp16") -> Report:
    made = sample.report()
    plan = replace(made.plan, low=low, formats=(("fc/linear#0", low),))
    return replace(made, training=EVIDENCE, plan=plan)


def test_shares_of_the_four_kinds() -> None:
    """Of the weight gradients 1.5 * 2^-30 and 1.5 * 2^-26 vanish, a fifth: both are below 2^-25; times 2^10 neither
    does. Half of the activations are 1.5 * 2^17, beyond 65504."""
    made = report()
    columns = training.header(made)
    rows = {row[0]: dict(zip(columns, row, strict=True)) for row in training.rows(made)}
    assert columns[:5] == ("zero, infinite in", "tensors", "fp16", "fp16 x 2^10", "bf16")
    assert rows["weight gradients"]["fp16"] == "20.0 % zero" and rows["weight gradients"]["fp16 x 2^10"] == "fits"
    assert rows["activations"]["fp16"] == "50.0 % inf" and rows["activations"]["fp16 x 2^10"] == "-"
    assert rows["weights"]["fp16"] == "fits" and rows["activation gradients"]["bf16"] == "fits"
    # scaled by 2^18 to 1.5 * 2^8 at most: 1.5 * 2^-26 becomes 1.5 * 2^-8, above 2^-9; 1.5 * 2^-30 becomes 1.5 * 2^-12
    assert rows["weight gradients"]["fp8_e4m3 scaled"] == "10.0 % zero"


def test_remarks() -> None:
    bands, scale, updates, memory = training.remarks(report())
    assert bands.startswith("gradients in fp16: 5.0 % below 2^-27 (do not matter), 5.0 % from there to 2^-24")
    assert "2^2 suffices (fc.weight); 2^10 recommended (10.0 % of the gradients vanish without, 0 % with it)" in scale
    assert "2^16 the largest safe (fc/linear#0, margin 2)" in scale
    assert "needed" not in updates.replace("not needed", "") and "25.0 % of the updates (0 of 1 parameters" in updates
    assert "3.12 KiB, 33% of weights, gradients and state; in bf16 it would save 17% of them" in memory  # 4 of 12 bytes


def test_bf16_says_why_no_scale_is_needed() -> None:
    assert EVIDENCE.scale is not None
    of_bf16 = replace(EVIDENCE.scale, format="bf16", sufficient=1.0, vanish=0.0)
    made = replace(report("bf16"), training=replace(EVIDENCE, scale=of_bf16))
    scale, updates, _ = training.remarks(made)
    assert scale.startswith("loss scale: none needed, bf16 has the range of fp32 (down to 9e-41)")
    assert "master weights in fp32, which this plan keeps: needed; bf16 weights would lose 75.0 %" in updates
    assert training.loop(made) == ()


def test_no_scale_fits_and_nothing_is_representable() -> None:
    assert EVIDENCE.scale is not None
    none = replace(EVIDENCE.scale, sufficient=4.0, safe=1.0, recommended=1.0)
    lost = (ranged("fc.weight", (-40, 10)), ranged("fc.bias", (-9, 10)))
    made = replace(report(), training=replace(EVIDENCE, scale=none, weight_gradients=lost))
    said = list(training.remarks(made))
    assert any("loss scale: none fits; fc.weight needs 2^2, fc/linear#0 allows 2^0" in line for line in said)
    assert any(line == "not representable in fp16 even at the largest safe scale: fc.weight" for line in said)


@pytest.mark.parametrize("autocast", ["", "cuda", "cpu"])
def test_the_loop_is_python_with_todays_names(autocast: str) -> None:
    made = report()
    lines = training.loop(replace(made, plan=replace(made.plan, autocast_device=autocast)))
    body = "\n".join(line[4:] for line in lines[1:])
    compile(body, "loop", "exec")
    order = ["GradScaler", "criterion", "scale(loss)", "unscale_", "clip_grad_norm_", "scaler.step", "scaler.update"]
    assert [body.index(word) for word in order] == sorted(body.index(word) for word in order)
    assert "torch.cuda.amp" not in body and "init_scale=2.0**10" in body
    assert (f'torch.amp.autocast("{autocast}", dtype=torch.float16)' in body) == bool(autocast)
    assert ("converted(inputs)" in body) == (not autocast)


def test_half_parameters_get_a_loop_with_masters_and_bf16_none() -> None:
    made = report()
    for low in ("fp16", "bf16"):
        ops = tuple(
            replace(op, outputs=tuple(replace(each, format=low) for each in op.outputs))
            if op.kind == "parameter"
            else op
            for op in made.graph.ops
        )
        lines = training.loop(replace(made, graph=replace(made.graph, ops=ops)))
        assert any("MasterWeights(optimizer" in line for line in lines) == (low == "fp16")
        compile("\n".join(line[4:] for line in lines[1:]), "loop", "exec")


def test_masters_by_parameter() -> None:
    header, row = training.update_rows(report("bf16"))
    assert dict(zip(header, row, strict=True)) == {
        "update of": "fc.weight",
        "lost in bf16": "75.0 %",
        "lost in fp16": "25.0 %",
        "of half a step in bf16": "1.0e-1",
        "of half a step in fp16": "8.0e-1",
        "master": "needed",
    }
    assert training.update_rows(report("fp16"))[1][-1] == "-"


@pytest.mark.parametrize("verbose", [False, True])
def test_all_reports_show_it(verbose: bool) -> None:
    text = as_full.render(report(), verbose=verbose)
    assert "training: 2 steps in fp32, AdamW (lr 0.001), loss 2.5 to 2.25" in text
    assert ("gradient of" in text) == verbose and ("scaler.update()" in text) == verbose
    assert "| weight gradients | 1 |" in as_markdown.render(report())
    assert as_json.read(as_json.render(report())).training == EVIDENCE
