"""Checks of our TransformerEngine code against the library's real Python classes, run in a process of their own.

Each `check_*` is one: it returns when all is well and raises otherwise. `python -m tests.backends.te_structure` runs
them all over the stand-in of `te_stand_in.py` and prints a line of JSON: name → "" or what was raised. They show names,
signatures, parameters, state dicts and which calls are made in which order; no product is ever computed by the library.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import traceback
import types
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

import precision_audit as pa
from precision_audit.backends import transformer_engine as backend
from precision_audit.backends.transformer_engine import modules, options
from precision_audit.capture import capture
from precision_audit.hardware import device
from precision_audit.hardware.recipes import chosen
from precision_audit.planning import planned
from precision_audit.policy import load
from precision_audit.records import InputError, Plan, Swap
from precision_audit.rewrite import rewrite
from tests.backends import te_stand_in
from tests.backends.te_models import Blocks

# Of two operands of a product one at most has square blocks; weights have them by default.
SQUARE = (("x_block_scaling_dim", 2), ("grad_block_scaling_dim", 2))

# Captured before the library is loaded: torch.export asks for packages that the stand-in only pretends to have.
MODEL = Blocks()
CAPTURED = capture(MODEL, (torch.randn(4, 8, 64),), None, mode="training")


def _plan(name: str = "fp8-training-hopper-te") -> Plan:
    made = load(name)
    return planned(CAPTURED.graph, made, device(made.device)).plan


def _swap(kind: str = "te.Linear", recipe: str = "Float8CurrentScaling", **more: Any) -> Swap:
    given = (("bias", True), *more.pop("options", ()))
    return Swap("fc/linear#0", "fc", "transformer_engine", recipe, 64, 48, 32, kind=kind, options=given, **more)


def _raises(text: str, call: Any) -> None:
    try:
        call()
    except Exception as error:
        assert text in str(error), f"expected {text!r}, got {error}"
        return
    raise AssertionError(f"nothing raised; expected {text!r}")


def check_the_table_of_recipe_fields_is_the_librarys() -> None:
    from transformer_engine.common import recipe as library

    for name, known in options.OPTIONS.items():
        fields = {field.name for field in dataclasses.fields(getattr(library, name))}
        assert set(known) == fields, (name, set(known) ^ fields)


def check_every_value_the_table_allows_is_taken_by_the_library() -> None:
    samples = {options.PYTHON: (), "truth value": (True, False)}
    for name, known in options.OPTIONS.items():
        for field, values in known.items():
            ends = (values.start, values.stop - 1) if isinstance(values, range) else values
            for value in samples.get(str(values), ends):
                if (field, value) in SQUARE:
                    continue
                made = modules.recipe_of(_swap(recipe=name, recipe_options=((field, value),)))
                shown = getattr(made, field)
                assert value in (shown, getattr(shown, "name", shown)), (name, field, value, shown)


def check_the_library_ignores_a_field_it_does_not_know_and_we_do_not() -> None:
    from transformer_engine.common import recipe as library

    assert library.DelayedScaling(amax_history=16).amax_history_len == 1024
    wrong = _swap(recipe="DelayedScaling", recipe_options=(("amax_history", 16),))
    _raises("has no field 'amax_history'", lambda: modules.recipe_of(wrong))


def check_pure_e5m2_is_refused_by_the_library_and_before() -> None:
    from transformer_engine.common import recipe as library

    _raises("Pure E5M2 training is not supported", lambda: library.DelayedScaling(fp8_format=library.Format.E5M2))
    assert options.problem("DelayedScaling", "fp8_format", {"fp8_format": "E5M2"})[0]


def check_a_linear_keeps_its_parameters_format_mode_and_keys() -> None:
    import transformer_engine.pytorch as te

    for dtype in (torch.float32, torch.bfloat16):
        for bias in (True, False):
            linear = nn.Linear(64, 48, bias=bias, dtype=dtype).eval()
            swap = dataclasses.replace(_swap(), options=(("bias", bias),))
            with te_stand_in.pretended_cuda():
                made = modules.made(dict(linear.named_parameters()), swap, linear.training)
            assert isinstance(made, te.Linear) and modules.is_swapped(made) and not made.training
            assert made.weight is linear.weight and (made.bias is linear.bias) is bias
            assert made.use_bias is bias and (made.in_features, made.out_features) == (64, 48)
            assert {each.dtype for each in made.parameters()} == {dtype}
            assert list(made.state_dict()) == list(linear.state_dict())
            assert not [name for name, value in vars(made).items() if isinstance(value, Tensor) and value.is_meta]
            made.load_state_dict(nn.Linear(64, 48, bias=bias, dtype=dtype).state_dict(), strict=True)
            nn.Linear(64, 48, bias=bias, dtype=dtype).load_state_dict(made.state_dict(), strict=True)
            made.load_state_dict({**made.state_dict(), "_extra_state": torch.empty(0, dtype=torch.uint8)}, strict=True)
            assert copy.deepcopy(made).weight is not made.weight


def check_the_librarys_own_class_has_the_traps_we_avoid() -> None:
    import transformer_engine.pytorch as te

    with te_stand_in.pretended_cuda():
        assert te.Linear(64, 48, False, device="meta").use_bias  # the third positional one is no bias
        assert te.Linear(64, 48, device="meta").weight.dtype == torch.float32  # whatever it replaces
        own = te.Linear(64, 48, device="cpu", params_dtype=torch.bfloat16)
    assert list(own.state_dict()) == ["weight", "bias", "_extra_state"]
    assert not isinstance(own, nn.Linear)
    _raises("Unexpected key(s)", lambda: nn.Linear(64, 48).load_state_dict(own.state_dict()))
    _raises("Missing key(s)", lambda: own.load_state_dict(nn.Linear(64, 48).state_dict()))
    _raises("TransformerEngine needs CUDA", lambda: te.Linear(64, 48, device="meta"))


def check_fused_modules_know_exactly_the_parameters_that_the_class_has() -> None:
    import transformer_engine.pytorch as te

    for kind, activation in (("te.LayerNormLinear", ""), ("te.LayerNormMLP", "gelu"), ("te.LayerNormMLP", "swiglu")):
        for normalization in ("LayerNorm", "RMSNorm"):
            for bias in (True, False):
                given = (("bias", bias), ("eps", 1e-6), ("normalization", normalization))
                given += (("activation", activation),) if activation else ()
                n = 256 if activation else 48
                swap = dataclasses.replace(_swap(kind, covers=("norm/x#0",)), options=given, n=n)
                with te_stand_in.pretended_cuda():
                    plain = getattr(te, kind[3:])(**modules.constructor_arguments(swap), device="meta")
                    shapes = {name: value.shape for name, value in plain.named_parameters()}
                    mine = {name: nn.Parameter(torch.randn(shape)) for name, shape in shapes.items()}
                    made = modules.made(mine, swap, True)
                assert all(getattr(made, name) is value for name, value in mine.items())
                assert dict(made.named_parameters()) == {} and made.state_dict() == {}
                made.load_state_dict({}, strict=True)
                if activation:
                    assert shapes["fc1_weight"][0] == n and shapes["fc2_weight"] == (
                        64,
                        n // (1 + (activation == "swiglu")),
                    )


def check_a_recipe_that_the_device_lacks_is_refused_before_anything_is_entered() -> None:
    import transformer_engine.pytorch as te
    from transformer_engine.common import recipe as library
    from transformer_engine.pytorch.quantization import FP8GlobalStateManager as State

    linear = nn.Linear(64, 64)
    swap = dataclasses.replace(_swap(recipe="MXFP8BlockScaling"), n=64)
    with te_stand_in.pretended_cuda((9, 0)):
        _raises("compute capability 10.0", lambda: modules.made(dict(linear.named_parameters()), swap, True))
        assert not State.is_fp8_enabled()

        def enter() -> None:
            with te.autocast(enabled=True, recipe=library.NVFP4BlockScaling()):
                pass

        _raises("10.0 or higher", enter)
        assert State.is_fp8_enabled()  # the library's own: a failed autocast stays switched on
    State.reset()


def check_default_recipes_are_the_librarys() -> None:
    import transformer_engine.pytorch as te

    for name, capability in (("l40s", (8, 9)), ("h100", (9, 0)), ("b200", (10, 0)), ("rtx5090", (12, 0))):
        hardware = _device(name, capability)
        with te_stand_in.pretended_cuda(capability):
            expected = type(te.get_default_recipe()).__name__
        assert chosen(backend.NAME, "", hardware).name == expected, (name, expected)


def _device(name: str, capability: tuple[int, int]) -> Any:
    try:
        return device(name)
    except InputError:
        return dataclasses.replace(device("h100"), capability=f"{capability[0]}.{capability[1]}")


def check_calls_run_inside_both_autocasts_and_the_recipe_is_the_swaps() -> None:
    import transformer_engine.pytorch as te
    from transformer_engine.pytorch.quantization import FP8GlobalStateManager as State

    seen: list[Any] = []

    def record(self: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append((State.is_fp8_enabled(), type(State.get_fp8_recipe()).__name__, torch.is_autocast_enabled("cuda")))
        return x

    on_device = types.SimpleNamespace(is_cuda=True, dtype=torch.bfloat16)
    linear = nn.Linear(64, 48)
    with te_stand_in.pretended_cuda(), mock.patch.object(te.Linear, "forward", record):
        made = modules.made(dict(linear.named_parameters()), _swap(), True)
        made.forward(on_device)
        assert seen == [(True, "Float8CurrentScaling", True)]
        assert not State.is_fp8_enabled() and not torch.is_autocast_enabled("cuda")


def check_off_cuda_a_call_is_emulated_and_has_the_right_shape() -> None:
    linear = nn.Linear(64, 48)
    with te_stand_in.pretended_cuda():
        made = modules.made(dict(linear.named_parameters()), _swap(), True)
    y = made(torch.randn(2, 16, 64, dtype=torch.bfloat16))
    assert y.shape == (2, 16, 48) and y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert linear.weight.grad is not None


def check_a_converted_model_holds_the_librarys_modules_under_the_models_own_keys() -> None:
    import transformer_engine.pytorch as te

    model = MODEL
    with te_stand_in.pretended_cuda(), mock.patch.object(backend, "_PACKAGES", ("transformer_engine",)):
        converted = rewrite({"training": CAPTURED}, {"training": _plan()}, share_parameters=True)
    kinds = {path: type(child).__bases__[1] for path, child in converted.named_modules() if modules.is_swapped(child)}
    assert kinds == {
        "fc1_LayerNormMLP": te.LayerNormMLP, "gate_up_LayerNormMLP": te.LayerNormMLP, "q": te.Linear, "k": te.Linear,
        "out_LayerNormLinear": te.LayerNormLinear, "tail.0": te.Linear,
    }  # fmt: skip
    assert list(converted.state_dict()) == list(model.state_dict())
    converted.load_state_dict(model.state_dict(), strict=True)
    own = dict(model.named_parameters())
    assert all(value is own[name] for name, value in converted.named_parameters())
    fused = converted.get_submodule("fc1_LayerNormMLP")
    assert fused.layer_norm_weight is own["norm.weight"] and fused.fc2_bias is own["fc2.bias"]
    twin = copy.deepcopy(converted)
    assert twin.get_submodule("fc1_LayerNormMLP").fc1_weight is dict(twin.named_parameters())["fc1.weight"]


def check_written_code_performs_the_plan_on_the_users_own_model() -> None:
    import transformer_engine.pytorch as te

    model = Blocks()
    before, keys = dict(model.named_parameters()), {key: value.clone() for key, value in model.state_dict().items()}
    scope: dict[str, Any] = {}
    exec(compile(pa.te_code(_plan()), "te_modules.py", "exec"), scope)
    with te_stand_in.pretended_cuda():
        converted = scope["convert"](model)
    assert converted is model
    kinds = {
        path: type(child)
        for path, child in model.named_children()
        if type(child).__module__.startswith("transformer_engine")
    }
    assert kinds == {
        "fc1": te.LayerNormMLP, "gate_up": te.LayerNormLinear, "down": te.Linear, "q": te.Linear, "k": te.Linear,
        "out": te.LayerNormLinear,
    }  # fmt: skip
    assert type(model.tail[0]) is te.Linear
    assert [name for name, child in model.named_children() if type(child) is nn.Identity] == [
        "norm",
        "act",
        "fc2",
        "norm2",
        "norm4",
    ]
    assert {id(value) for value in model.parameters()} == {id(value) for value in before.values()}
    assert model.fc1.fc2_weight is before["fc2.weight"] and model.gate_up.layer_norm_weight is before["norm2.weight"]
    assert model.gate_up.normalization == "RMSNorm" and model.gate_up.eps == 1e-6 and not model.gate_up.use_bias
    saved = scope["original_state_dict"](model)
    assert sorted(saved) == sorted(keys)
    Blocks().load_state_dict(saved, strict=True)
    with torch.no_grad():
        for value in model.parameters():
            value.zero_()
    scope["load_original"](model, keys)
    assert all(torch.equal(value, keys[key]) for key, value in scope["original_state_dict"](model).items())
    _raises("missing", lambda: scope["load_original"](model, {}))


def check_written_code_enters_the_recipe_and_probes_first() -> None:
    from transformer_engine.pytorch.quantization import FP8GlobalStateManager as State

    scope: dict[str, Any] = {}
    exec(compile(pa.te_code(_plan("mxfp8-training-blackwell")), "te_modules.py", "exec"), scope)
    with te_stand_in.pretended_cuda((9, 0)):
        _raises("MXFP8BlockScaling: Device compute capability 10.0", lambda: scope["convert"](Blocks()))
    with te_stand_in.pretended_cuda((10, 0)), scope["autocast"]():
        assert State.is_fp8_enabled() and State.get_fp8_recipe().mxfp8()
    assert not State.is_fp8_enabled()


def main() -> None:
    te_stand_in.load()
    found: dict[str, str] = {}
    for name, check in sorted(globals().items()):
        if name.startswith("check_"):
            try:
                check()
                found[name] = ""
            except Exception:
                found[name] = traceback.format_exc()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
