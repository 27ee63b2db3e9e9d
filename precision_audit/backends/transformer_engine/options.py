"""Which fields of TransformerEngine's recipe objects a policy may set (`recipe_options`), and to what.

The recipes are pydantic dataclasses that ignore a keyword they do not know: `DelayedScaling(amax_history=16)` keeps
the history of 1024 and says nothing. So names and values are checked when the policy is read, against this table, which
needs no library; a test holds it to the fields of the release it was taken from (2.20.2), and `modules.py` checks once
more against the fields of the one that is installed.

A field is "whole number", "truth value", or the words it takes. What a policy cannot spell (a function, `MMParams`)
stands as PYTHON: it can be set in the generated code.
"""

from __future__ import annotations

from collections.abc import Mapping

Values = str | tuple[object, ...]

PYTHON = "Python object"
_NUMBER, _FLAG = "whole number", "truth value"
_ATTENTION: Mapping[str, Values] = {"fp8_dpa": _FLAG, "fp8_mha": _FLAG}
_BACKWARD: Mapping[str, Values] = {"backward_override": ("high_precision", "dequantized")}
_PRODUCTS: Mapping[str, Values] = {f"fp8_gemm_{name}": PYTHON for name in ("fprop", "dgrad", "wgrad")}
# Blocks of one row or of rows and columns; of two operands of a product one at most has the latter.
_BLOCKS: Mapping[str, Values] = {f"{name}_block_scaling_dim": (1, 2) for name in ("x", "w", "grad")}
# Pure E5M2 is refused by the library ("Pure E5M2 training is not supported.").
_FORMAT: Mapping[str, Values] = {"fp8_format": ("HYBRID", "E4M3")}

OPTIONS: Mapping[str, Mapping[str, Values]] = {
    "DelayedScaling": {
        "margin": _NUMBER,
        **_FORMAT,
        "amax_history_len": _NUMBER,
        "amax_compute_algo": ("max", "most_recent"),
        "scaling_factor_compute_algo": PYTHON,
        "reduce_amax": _FLAG,
        **_ATTENTION,
        "backward_override": PYTHON,  # it takes None only, the default
    },
    "Float8CurrentScaling": {"use_power_2_scales": _FLAG, **_FORMAT, **_PRODUCTS, **_ATTENTION, **_BACKWARD},
    "Float8BlockScaling": {"use_f32_scales": _FLAG, "fp8_format": ("E4M3",), **_BLOCKS, **_PRODUCTS, **_BACKWARD,
                           "fp8_dpa": (False,), "fp8_mha": (False,)},
    "MXFP8BlockScaling": {"margin": _NUMBER, "fp8_format": ("E4M3",), **_ATTENTION, **_BACKWARD,
                          "enable_2d_quantization": _FLAG},
    "NVFP4BlockScaling": {
        "disable_rht": _FLAG,
        "disable_stochastic_rounding": _FLAG,
        "disable_2d_quantization": _FLAG,
        "row_scaled_activation": _FLAG,
        "nvfp4_4over6": ("none", "weights", "activations", "all"),
        "nvfp4_4over6_e4m3_use_256": ("none", "weights", "activations", "all"),
        "nvfp4_4over6_err_mode": ("MAE", "MSE"),
        "fp4_format": ("E2M1",),
        "fp8_format": ("E4M3",),
        **_ATTENTION,
        **_BACKWARD,
    },
}  # fmt: skip

ENUM_FIELDS = ("fp8_format", "fp4_format")  # members of `recipe.Format`, by name


def problem(recipe: str, name: str, value: object) -> tuple[str, str]:
    """What is wrong with setting field `name` to `value`, and what was expected; ("", "") if nothing is."""
    known = OPTIONS[recipe]
    if name not in known:
        return f"{recipe} has no field {name!r}", "one of " + ", ".join(key for key in known if known[key] != PYTHON)
    values = known[name]
    if values == PYTHON:
        return f"{name} of {recipe} takes no plain value", "it set in the generated code (--write-code)"
    if values == _NUMBER and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        return f"{value!r} is no whole number", f"{name}: a whole number"
    if values == _FLAG and not isinstance(value, bool):
        return f"{value!r} is no truth value", f"{name}: true or false"
    if isinstance(values, tuple) and not any(type(value) is type(each) and value == each for each in values):
        return f"unknown value {value!r} of {name}", "one of " + ", ".join(str(each) for each in values)
    return "", ""
