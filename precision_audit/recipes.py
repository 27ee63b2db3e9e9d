"""The recipes by which a linear is quantised: one row each, whichever library performs it.

`RECIPES[backend, name]` says what a recipe does to the three products of a linear, which sizes its kernels take and
which devices have them. Everything that speaks of a recipe reads it here: a backend's offer (sizes), the device's say
(`lacking`), the price (bytes, peak, which products) and the evidence (`scheme`, a block format of `formats.FORMATS`).
Imports no library.

y[M, N] = x[M, K] · W[N, K] transposed; the gradient of the input sums over N, that of the weight over M. `multiple`
are what (K, N, M) must be multiples of going forward, `multiple_training` with backward; 1 leaves a size free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from precision_audit.records import Mode

Sizes = tuple[int, int, int]  # K, N, M


@dataclass(frozen=True, slots=True)
class Recipe:
    backend: str
    name: str  # as its library calls it
    scheme: str  # how input and weight are quantised: a block format of `formats.FORMATS`
    peak: str  # whose peak its products reach: fp8, mxfp8, mxfp4, nvfp4, int8; "" that of the low format
    products: tuple[bool, bool, bool]  # quantised: forward, gradient of the input, gradient of the weight
    multiple: Sizes
    multiple_training: Sizes
    modes: tuple[Mode, ...]
    minimum: str = ""  # lowest CUDA capability, "8.9"; "" for any
    below: str = ""  # first capability that is refused again
    beyond: str = ""  # what stands against it from `below` on
    only: tuple[str, ...] = ()  # the only capabilities, where not a range
    rocm: tuple[str, ...] = ()  # AMD architectures that have it
    cpu: bool = False  # the library multiplies so on a CPU too
    asks: tuple[tuple[str, str], ...] = ()  # what must be known beside, by the capability it holds of; "" for all
    stored: bool = False  # weights are kept quantised (inference), not quantised in every step
    activations: bool = True  # the input is quantised too; false for weights only
    gradient: str = ""  # format of the quantised gradient
    source: str = ""


_TORCHAO = "torchao float8; torch's _scaled_mm"
_TE = "TransformerEngine 2.20, pytorch/quantization.py and docs"
_AMD = ("gfx942", "gfx950", "gfx1200", "gfx1201")
_NO_ROWWISE = "its kernel is missing there (pytorch issue 192707)"
_NO_HADAMARD = "its random Hadamard transform fails there, though TransformerEngine lets it through (issues 2255, 2372)"
_THROUGH_MX = "runs as MXFP8 there"
_BOTH: tuple[Mode, ...] = ("training", "inference")
_TRAINING: tuple[Mode, ...] = ("training",)
_INFERENCE: tuple[Mode, ...] = ("inference",)
_ALL = (True, True, True)
_FORWARD = (True, False, False)
_QUANTIZE = "torchao 0.18 quantize_, names of its benchmarks; sizes by torch's _scaled_mm on the meta device"

_ROWS = (
    # torchao's Float8Linear. M counts in backward, as the inner size of the gradient of the weight.
    Recipe("torchao", "tensorwise", "fp8_tensorwise", "fp8", _ALL, (16, 16, 1), (16, 16, 16), _BOTH,
           minimum="8.9", rocm=_AMD, gradient="fp8_e5m2", source=_TORCHAO),
    Recipe("torchao", "rowwise", "fp8_rowwise", "fp8", _ALL, (16, 16, 1), (16, 16, 16), _BOTH,
           minimum="8.9", below="12.0", beyond=_NO_ROWWISE, rocm=_AMD, gradient="fp8_e4m3fn", source=_TORCHAO),
    Recipe("torchao", "rowwise_with_gw_hp", "fp8_rowwise", "fp8", (True, True, False), (16, 16, 1), (16, 16, 1), _BOTH,
           minimum="8.9", below="12.0", beyond=_NO_ROWWISE, rocm=_AMD, gradient="fp8_e4m3fn", source=_TORCHAO),
    # TransformerEngine. Python asks for 8/8/16, the GEMMs for 16 of every leading dimension, which backward makes of
    # M and N too; blocks of 128 as documented.
    Recipe("transformer_engine", "DelayedScaling", "fp8_tensorwise", "fp8", _ALL, (16, 8, 8), (16, 16, 16), _BOTH,
           minimum="8.9", asks=(("8.9", "needs CUDA 12.1 and cuBLASLt 12.1.3"),), gradient="fp8_e5m2", source=_TE),
    Recipe("transformer_engine", "Float8CurrentScaling", "fp8_tensorwise", "fp8", _ALL, (16, 8, 8), (16, 16, 16), _BOTH,
           minimum="8.9", gradient="fp8_e5m2", source=_TE),
    Recipe("transformer_engine", "Float8BlockScaling", "fp8_blockwise_128", "fp8", _ALL, (128, 128, 128),
           (128, 128, 128), _BOTH, minimum="9.0", gradient="fp8_e4m3fn", source=_TE,
           asks=(("", "needs CUDA 12.9"), ("10.0", _THROUGH_MX), ("10.3", _THROUGH_MX))),
    Recipe("transformer_engine", "MXFP8BlockScaling", "mxfp8_e4m3", "mxfp8", _ALL, (32, 32, 32), (32, 32, 32), _BOTH,
           minimum="10.0", below="12.0", beyond="TransformerEngine refuses it there (issue 2304)",
           gradient="fp8_e4m3fn", source=_TE),
    Recipe("transformer_engine", "NVFP4BlockScaling", "nvfp4", "nvfp4", _ALL, (16, 16, 16), (16, 16, 16), _BOTH,
           minimum="10.0", below="12.0", beyond=_NO_HADAMARD, gradient="fp4_e2m1", source=_TE),
    # torchao's quantize_, for inference. A weight alone may have any size; a scaled product wants K and N in sixteens,
    # whole blocks, and 32 of two values in a byte. int8's sizes and its capability are those of cuBLAS: where they do
    # not fit, torchao quietly multiplies on the CPU.
    Recipe("torchao_quantize", "float8dq-row", "fp8_rowwise", "fp8", _FORWARD, (16, 16, 1), (16, 16, 1), _INFERENCE,
           minimum="8.9", below="12.0", beyond=_NO_ROWWISE, rocm=_AMD[:2], stored=True, source=_QUANTIZE),
    Recipe("torchao_quantize", "float8dq-tensor", "fp8_tensorwise", "fp8", _FORWARD, (16, 16, 1), (16, 16, 1),
           _INFERENCE, minimum="8.9", rocm=_AMD[:2], stored=True, source=_QUANTIZE),
    Recipe("torchao_quantize", "float8wo", "fp8_rowwise", "", _FORWARD, (1, 1, 1), (1, 1, 1), _INFERENCE,
           stored=True, activations=False, source=_QUANTIZE),
    Recipe("torchao_quantize", "int8dq", "int8", "int8", _FORWARD, (8, 8, 1), (8, 8, 1), _INFERENCE,
           minimum="7.5", cpu=True, stored=True, source=f"{_QUANTIZE}; torchao/kernel/intmm.py"),
    Recipe("torchao_quantize", "int8wo", "int8", "", _FORWARD, (1, 1, 1), (1, 1, 1), _INFERENCE,
           stored=True, activations=False, source=_QUANTIZE),
    Recipe("torchao_quantize", "mxfp8", "mxfp8_e4m3", "mxfp8", _FORWARD, (32, 16, 1), (32, 16, 1), _INFERENCE,
           minimum="10.0", rocm=("gfx950",), stored=True, source=_QUANTIZE),
    Recipe("torchao_quantize", "mxfp4", "mxfp4", "mxfp4", _FORWARD, (32, 16, 1), (32, 16, 1), _INFERENCE,
           only=("10.0", "10.3"), rocm=("gfx950",), stored=True, source=_QUANTIZE),
    Recipe("torchao_quantize", "nvfp4", "nvfp4", "nvfp4", _FORWARD, (32, 16, 1), (32, 16, 1), _INFERENCE,
           minimum="10.0", stored=True, source=_QUANTIZE),
    # Experts: torch's grouped product as torchao's Float8TrainingOpConfig runs it. Judged, never swapped.
    Recipe("torchao_grouped", "fp8_rowwise", "fp8_rowwise", "fp8", _ALL, (16, 16, 1), (16, 16, 16), _BOTH,
           only=("9.0", "10.0"), gradient="fp8_e4m3fn", source="torch's _scaled_grouped_mm; torchao moe_training"),
)  # fmt: skip

# What a rule that names no recipe gets, by the CUDA capability from which it does; any other backend: the first of its
# rows. Of torchao's recipes that are fp8 in every product rowwise is closest to bf16; TransformerEngine's is its own.
DEFAULTS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "torchao": (("12.0", "tensorwise"), ("", "rowwise")),
    "transformer_engine": (("12.0", "Float8CurrentScaling"), ("10.0", "MXFP8BlockScaling"), ("", "DelayedScaling")),
}

RECIPES: Mapping[tuple[str, str], Recipe] = {(row.backend, row.name): row for row in _ROWS}


def recipe(backend: str, name: str) -> Recipe:
    """The row of a recipe; both were validated with the policy."""
    return RECIPES[backend, name]


def arithmetic(backend: str, name: str) -> str:
    """The word for what a recipe's products are made of: fp8, mxfp8, mxfp4, nvfp4, int8."""
    row = RECIPES.get((backend, name))
    return (row.peak or row.scheme.partition("_")[0]) if row else "fp8"


def of_backend(backend: str) -> tuple[str, ...]:
    """Names of a backend's recipes, in the table's order."""
    return tuple(name for of, name in RECIPES if of == backend)
