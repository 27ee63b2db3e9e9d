"""`module_filter_fn`: torchao's own walk converts the plan's swaps and nothing else."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import nn
from torchao.float8 import Float8LinearConfig, convert_to_float8_training

import precision_audit as pa
from precision_audit.backends.torchao_float8 import is_swapped
from precision_audit.plan import file as plan_file
from tests.applying.small import Holder, Net, TwoNames, converted, rows, seeded

POLICY = "fp8-training-hopper"


def by_torchao(model: nn.Module, chosen: object) -> set[str]:
    config = dataclasses.replace(Float8LinearConfig.from_recipe_name("rowwise"), emulate=True)
    convert_to_float8_training(model, config=config, module_filter_fn=chosen)
    return {name for name, module in model.named_modules(remove_duplicate=False) if is_swapped(module)}


def test_exactly_the_swaps(tmp_path: Path) -> None:
    result = converted(seeded(Net), POLICY)
    swaps = {swap.module for swap in result.plan.swaps}
    assert swaps == {"first", "again"}  # no subclass, no out_proj, no N = 10
    plan_file.write(result.plan, tmp_path / "plan.yaml")
    for given in (result, result.report, result.plan, tmp_path / "plan.yaml"):
        assert by_torchao(seeded(Net), pa.module_filter_fn(given)) == swaps


def test_one_linear_under_two_parents_is_swapped_in_both() -> None:
    result = converted(seeded(Holder), POLICY)
    model = seeded(Holder)
    assert by_torchao(model, pa.module_filter_fn(result)) == {"left.0", "right.0"}
    assert model.left[0].weight is model.right[0].weight


def test_two_names_under_one_parent_are_for_apply() -> None:
    """torchao looks at the first of them only; `apply` swaps both."""
    result = converted(seeded(TwoNames), POLICY)
    model = seeded(TwoNames)
    assert by_torchao(model, pa.module_filter_fn(result)) == {"one"}
    model = seeded(TwoNames)
    pa.apply(model, result)
    assert is_swapped(model.one) and model.one is model.other
    model(rows()).sum().backward()
    assert model.one.weight.grad is not None


def test_names_that_wrappers_lengthen() -> None:
    result = converted(seeded(Net), POLICY)
    wrapped = nn.Sequential()
    wrapped.add_module("_orig_mod", seeded(Net))
    assert by_torchao(wrapped, pa.module_filter_fn(result)) == {"_orig_mod.first", "_orig_mod.again"}


def test_hooks_are_not_dropped() -> None:
    result = converted(seeded(Net), POLICY)
    model = seeded(Net)
    model.first.register_forward_hook(lambda module, args, output: output * 2)
    with pytest.warns(UserWarning, match=r"first has hooks, which torchao would drop: left as it is"):
        assert by_torchao(model, pa.module_filter_fn(result)) == {"again"}


def test_another_model() -> None:
    result = converted(seeded(Net), POLICY)
    model = seeded(Net)
    model.first = nn.Linear(48, 64)
    with pytest.raises(pa.InputError, match=r"first is 48 -> 64, the plan swaps 32 -> 64: make the plan again"):
        by_torchao(model, pa.module_filter_fn(result))


def test_several_recipes_are_filtered_one_by_one() -> None:
    plan = converted(seeded(Net), POLICY).plan
    mixed = dataclasses.replace(
        plan,
        swaps=tuple(dataclasses.replace(s, recipe="tensorwise") if s.module == "first" else s for s in plan.swaps),
    )
    with pytest.raises(pa.InputError, match=r"several recipes, rowwise \(1\), tensorwise \(1\): give recipe="):
        pa.module_filter_fn(mixed)
    with pytest.raises(pa.InputError, match=r"no swap of recipe 'mxfp8'; it has rowwise \(1\), tensorwise \(1\)"):
        pa.module_filter_fn(mixed, recipe="mxfp8")
    model = seeded(Net)
    assert by_torchao(model, pa.module_filter_fn(mixed, recipe="tensorwise")) == {"first"}
    assert by_torchao(model, pa.module_filter_fn(mixed, recipe="rowwise")) == {"first", "again"}


def test_another_backend_is_refused() -> None:
    plan = converted(seeded(Net), POLICY).plan
    other = dataclasses.replace(plan, swaps=tuple(dataclasses.replace(s, backend="te") for s in plan.swaps))
    with pytest.raises(pa.InputError, match="swaps by backend te"):
        pa.module_filter_fn(other)


def test_what_is_no_plan() -> None:
    with pytest.raises(pa.InputError, match="plan is an int; expected a Plan, a Report, a Conversion or a plan file"):
        pa.module_filter_fn(3)  # type: ignore[arg-type]


def test_a_plan_without_swaps_converts_nothing() -> None:
    chosen = pa.module_filter_fn(converted(seeded(Net), "bf16-training"))
    assert by_torchao(seeded(Net), chosen) == set()
    assert not chosen(torch.nn.Linear(16, 16), "first")
