"""Flags of this process that change how products are computed and summed, as they stand now.

Takes nothing; gives name and value of each that differs from exact fp32 products and sums, as a policy's `environment:`
spells them. They belong to the process that audits: one that deploys sets its own. Changes none of them, raises nothing
and warns of nothing: torch refuses to read a setting by its older name once a newer one contradicts it, and such a
reading is left out. Rules read flags from `Facts` only, so that a report says what it was made from.

`settings` is the one place that says which kind of product runs in TF32. In torch 2.13, as tried out:

    kind     own setting (older name)                        where it says none
    matmul   cuda.matmul.fp32_precision (allow_tf32)         the generic torch.backends.fp32_precision
    conv     cudnn.conv.fp32_precision (cudnn.allow_tf32)    likewise; tf32 in a fresh process
    rnn      cudnn.rnn.fp32_precision (cudnn.allow_tf32)     likewise; tf32 in a fresh process

The generic setting replaces a fresh process's default and nothing that was set. `matmul.allow_tf32 = False` writes
ieee, `cudnn.allow_tf32 = False` writes none: beside a generic tf32 it changes nothing. `set_float32_matmul_precision`
writes the matmul setting: both high and medium are TF32 on CUDA. What the process holds is read resolved; a policy's
`environment:` is applied over it as to a fresh process.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

_MATMUL = "torch.backends.cuda.matmul"
REDUCED_FP16 = f"{_MATMUL}.allow_fp16_reduced_precision_reduction"
REDUCED_BF16 = f"{_MATMUL}.allow_bf16_reduced_precision_reduction"
FP16_SUMS = f"{_MATMUL}.allow_fp16_accumulation"
FP32_PRODUCTS = "torch.get_float32_matmul_precision()"
GENERIC = "torch.backends.fp32_precision"
MATMUL = f"{_MATMUL}.fp32_precision"
CONV = "torch.backends.cudnn.conv.fp32_precision"
RNN = "torch.backends.cudnn.rnn.fp32_precision"
ON_CPU = "torch.backends.mkldnn."
CPU_MATMUL = f"{ON_CPU}matmul.fp32_precision"
OLDER_MATMUL = f"{_MATMUL}.allow_tf32"
OLDER_CUDNN = "torch.backends.cudnn.allow_tf32"

_READ = (
    *(REDUCED_FP16, REDUCED_BF16, FP16_SUMS, OLDER_MATMUL, OLDER_CUDNN),
    *(GENERIC, MATMUL, CONV, RNN, CPU_MATMUL),
    *(f"{ON_CPU}{kind}.fp32_precision" for kind in ("conv", "rnn")),
)
_EXACT = ("false", "highest", "none", "ieee", "")

# kind of product → its own setting, that setting's older name, and what the older name's false writes there
_SETTINGS: Mapping[str, tuple[str, str, str]] = {
    "matmul": (MATMUL, OLDER_MATMUL, "ieee"),
    "conv": (CONV, OLDER_CUDNN, "none"),
    "rnn": (RNN, OLDER_CUDNN, "none"),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """What fp32 products of one kind run in on a CUDA device, and by which setting: `name` has `value`, in the policy's
    environment or in this process."""

    tf32: bool
    name: str
    value: str
    by_policy: bool


def flags() -> tuple[tuple[str, str], ...]:
    """The flags that are switched on, by name; `highest`, `ieee` and unset fp32 products are none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [(name, _value(name)) for name in _READ]
        found.append((FP32_PRODUCTS, _products()))
    return tuple((name, value) for name, value in found if value not in _EXACT)


def settings(process: Iterable[tuple[str, str]], environment: Iterable[tuple[str, str]]) -> dict[str, Setting]:
    """By kind of product (matmul, conv, rnn); `process` are the flags of `Facts`, `environment` is the policy's."""
    held, given = dict(process), dict(environment)
    found = {}
    for kind, (own, older, off) in _SETTINGS.items():
        name, value, written, by_policy = own, held.get(own, "none"), held.get(own, "none"), False
        for each in (older, own):  # the order in which a policy's block sets them: sorted by name
            if each in given:
                name, value, by_policy = each, given[each], True
                written = {"true": "tf32", "false": off}.get(value.lower(), value)
        generic = given.get(GENERIC, "none")
        if generic != "none" and (written == "none" or not by_policy):
            name, value, written, by_policy = GENERIC, generic, generic, True
        found[kind] = Setting(written == "tf32", name, value, by_policy)
    return found


def _value(name: str) -> str:
    """Text of a flag as a policy spells it; "" where torch refuses to read it. A flag may hold (reductions, split
    sums): either counts."""
    try:
        value = functools.reduce(getattr, name.split(".")[1:], torch)
    except (RuntimeError, AttributeError):
        return ""
    held: object = any(value) if isinstance(value, (tuple, list)) else value
    return held if isinstance(held, str) else str(bool(held)).lower()


def _products() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # newer settings contradict it
        return ""
