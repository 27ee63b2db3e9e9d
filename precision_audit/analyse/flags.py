"""Flags of this process that change how products are summed, as they stand now.

Takes nothing; gives name and value of each that differs from exact sums, as a policy's `environment:` spells them. They
belong to the process that audits: one that deploys sets its own. Changes none of them. Rules read them from `Facts`
only, so that a report says what it was made from.
"""

from __future__ import annotations

import torch

_MATMUL = "torch.backends.cuda.matmul"
REDUCED_FP16 = f"{_MATMUL}.allow_fp16_reduced_precision_reduction"
REDUCED_BF16 = f"{_MATMUL}.allow_bf16_reduced_precision_reduction"
FP16_SUMS = f"{_MATMUL}.allow_fp16_accumulation"
FP32_PRODUCTS = "torch.get_float32_matmul_precision()"


def flags() -> tuple[tuple[str, str], ...]:
    """The flags that are switched on, by name; `highest` fp32 products are none."""
    matmul = torch.backends.cuda.matmul
    found = [
        (REDUCED_FP16, _said(matmul.allow_fp16_reduced_precision_reduction)),
        (REDUCED_BF16, _said(matmul.allow_bf16_reduced_precision_reduction)),
        (FP16_SUMS, _said(matmul.allow_fp16_accumulation)),
        (FP32_PRODUCTS, torch.get_float32_matmul_precision()),
    ]
    return tuple((name, value) for name, value in found if value not in ("false", "highest"))


def _said(value: object) -> str:
    """A flag may hold (reductions, split sums): either counts."""
    return str(bool(any(value) if isinstance(value, (tuple, list)) else value)).lower()
