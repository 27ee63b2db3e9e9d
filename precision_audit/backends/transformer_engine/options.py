"""Which fields of TransformerEngine's recipe objects a policy may set (`recipe_options`), and to what.

The recipes are pydantic dataclasses that ignore a keyword they do not know: `DelayedScaling(amax_history=16)` keeps
the history of 1024 and says nothing. So names and values are checked when the policy is read, against this table, which
needs no library; a test holds it to the fields of the release it was taken from (2.20.2), and `modules.py` checks once
more against the fields of the one that is installed.

The classes themselves take any whole number and fail, or compute zeros, in the first steps on the GPU.

A field is a range of whole numbers, "truth value", or the words it takes. What a policy cannot spell (a function,
`MMParams`) stands as PYTHON: it can be set in the generated code.
"""

from __future__ import annotations

from collections.abc import Mapping

Values = str | range | tuple[object, ...]

PYTHON = "Python object"
_FLAG = "truth value"
# Scales are divided by 2 to this power. The largest magnitude becomes 448 / 2^margin in E4M3, whose smallest number is
# 2^-9: from 19 on everything rounds to zero. Below zero the largest would lie beyond the format.
_MARGIN = range(19)
_STEPS = range(1, 2**31)  # of a history that the next scale is read from: there must be one
_ATTENTION: Mapping[str, Values] = {"fp8_dpa": _FLAG, "fp8_mha": _FLAG}
_BACKWARD: Mapping[str, Values] = {"backward_override": ("high_precision", "dequantized")}
_PRODUCTS: Mapping[str, Values] = {f"fp8_gemm_{name}": PYTHON for name in ("fprop", "dgrad", "wgrad")}
# Blocks of one row or of rows and columns, and which of both is the default; each two are operands of a product, and
# one of two at most may have the latter.
_BLOCK_DEFAULTS = {"x_block_scaling_dim": 1, "w_block_scaling_dim": 2, "grad_block_scaling_dim": 1}
_BLOCKS: Mapping[str, Values] = dict.fromkeys(_BLOCK_DEFAULTS, (1, 2))
# Pure E5M2 is refused by the library ("Pure E5M2 training is not supported.").
_FORMAT: Mapping[str, Values] = {"fp8_format": ("HYBRID", "E4M3")}

OPTIONS: Mapping[str, Mapping[str, Values]] = {
    "DelayedScaling": {
        "margin": _MARGIN,
        **_FORMAT,
        "amax_history_len": _STEPS,
        "amax_compute_algo": ("max", "most_recent"),
        "scaling_factor_compute_algo": PYTHON,
        "reduce_amax": _FLAG,
        **_ATTENTION,
        "backward_override": PYTHON,  # it takes None only, the default
    },
    "Float8CurrentScaling": {"use_power_2_scales": _FLAG, **_FORMAT, **_PRODUCTS, **_ATTENTION, **_BACKWARD},
    "Float8BlockScaling": {"use_f32_scales": _FLAG, "fp8_format": ("E4M3",), **_BLOCKS, **_PRODUCTS, **_BACKWARD,
                           "fp8_dpa": (False,), "fp8_mha": (False,)},
    "MXFP8BlockScaling": {"margin": _MARGIN, "fp8_format": ("E4M3",), **_ATTENTION, **_BACKWARD,
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


def problem(recipe: str, name: str, given: Mapping[str, object]) -> tuple[str, str]:
    """What is wrong with field `name` of all that are `given`, and what was expected; ("", "") if nothing is."""
    known = OPTIONS[recipe]
    if name not in known:
        return f"{recipe} has no field {name!r}", "one of " + ", ".join(key for key in known if known[key] != PYTHON)
    values, value = known[name], given[name]
    if values == PYTHON:
        return f"{name} of {recipe} takes no plain value", "it set in the generated code (--write-code)"
    if isinstance(values, range) and (isinstance(value, bool) or not isinstance(value, int)):
        return f"{value!r} is no whole number", f"{name}: a whole number {_bounds(values)}"
    if isinstance(values, range) and value not in values:
        return f"{name} cannot be {value}", f"a whole number {_bounds(values)}"
    if values == _FLAG and not isinstance(value, bool):
        return f"{value!r} is no truth value", f"{name}: true or false"
    if isinstance(values, tuple) and not any(type(value) is type(each) and value == each for each in values):
        return f"unknown value {value!r} of {name}", "one of " + ", ".join(str(each) for each in values)
    return _beside(name, given)


def _bounds(values: range) -> str:
    return f"from {values.start} on" if values.stop >= 2**31 else f"from {values.start} to {values.stop - 1}"


def _beside(name: str, given: Mapping[str, object]) -> tuple[str, str]:
    """Blocks of rows and columns in both operands of a product, for which the library has no kernel."""
    if name not in _BLOCK_DEFAULTS or given[name] != 2:
        return "", ""
    other = next((each for each, usual in _BLOCK_DEFAULTS.items() if each != name and given.get(each, usual) == 2), "")
    if not other:
        return "", ""
    usual = "" if other in given else ", the default"
    return f"{name} 2 beside {other} 2{usual}: they meet in a product", f"{other}: 1, or {name}: 1"
