"""No inputs given: shapes tried under fake tensors until the model takes one.

Takes a module; gives the `Spec`s that fitted first, or raises one line that says what to type. Candidates come from
the argument's name and from what the module is made of (channels of its convolutions, features of its linears, its
embeddings), the usual ones first, so that the answer is the same every time. The real model is never run.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from precision_audit.loader.inputs import Spec
from precision_audit.loader.trial import Trial
from precision_audit.loader.user_code import first_line
from precision_audit.records import InputError

BATCH = 16  # fp8 matrix products need multiples of 16 rows
MAX_TRIALS = 400  # a failing trial costs milliseconds: it ends at the first op that does not fit
_SIDES = (224, 32, 28, 64, 128, 256, 384, 299, 96, 512, 16, 8)
_TOKENS = (128, 64, 32, 16, 256, 512, 8)
_SAMPLES = (1024, 128, 16000, 4096, 256, 64)
_CUBES = (32, 16, 64, 8)

# Arguments known by their name, the usual names of public models.
_TOKEN_NAMES = ("input_ids", "decoder_input_ids", "ids", "tokens", "idx", "token_ids")
_COMPANION_NAMES = ("attention_mask", "mask", "token_type_ids", "position_ids", "positions")
_STEP_NAMES = ("timestep", "timesteps", "t", "time", "labels", "y", "class_labels")

Candidate = tuple[tuple[int, ...], torch.dtype]


def guess(model: nn.Module, shown: str) -> list[Spec]:
    """The first inputs that the model takes, as `--input` would give them."""
    names = _arguments(model, shown)
    trial = Trial(model)
    if trial.failure is not None:
        raise InputError(
            f"{shown}: no inputs were given and none could be tried ({first_line(trial.failure)}); {_mend(names)}"
        )
    last: Exception | None = None
    for combination in itertools.islice(_combinations(model, names), MAX_TRIALS):
        specs = [Spec(name, shape, kind) for name, (shape, kind) in zip(names, combination, strict=True)]
        with trial.mode:
            tensors = {spec.name: torch.empty(combination[i][0], dtype=spec.dtype) for i, spec in enumerate(specs)}
        last = trial.run((), tensors) if _by_keyword(model, names) else trial.run(tuple(tensors.values()), {})
        if last is None and not trial.unknown:
            return specs
    why = f"; the last answer was: {first_line(last)}" if last is not None else ""
    raise InputError(f"{shown}: no inputs were given, and none of the usual shapes fits{why}; {_mend(names)}")


def _arguments(model: nn.Module, shown: str) -> list[str]:
    """The arguments of forward that need a value."""
    parameters = list(inspect.signature(model.forward).parameters.values())
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    plain = [p for p in parameters if p.kind not in variadic]
    required = [p.name for p in plain if p.default is inspect.Parameter.empty]
    if not required and plain:
        known = [p.name for p in plain if p.name in (*_TOKEN_NAMES, "pixel_values", "x")]
        return known[:1] or [plain[0].name]
    if not plain and parameters:
        raise InputError(f"{shown}: no inputs were given and forward(*args) does not say what it takes; {_mend(['x'])}")
    return required


def _by_keyword(model: nn.Module, names: Sequence[str]) -> bool:
    """Positional is what every forward takes; keywords are needed where an earlier argument is left out."""
    parameters = inspect.signature(model.forward).parameters
    positional = [n for n, p in parameters.items() if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    return positional[: len(names)] != list(names)


def _combinations(model: nn.Module, names: Sequence[str]) -> Iterator[tuple[Candidate, ...]]:
    """One candidate per argument, the likeliest combinations first."""
    first = _entry_candidates(model, names[0] if names else "")
    if len(names) <= 1:
        yield from ((candidate,) for candidate in first) if names else iter([()])
        return
    for leading in first:
        others = [_companion_candidates(model, name, leading) for name in names[1:]]
        for rest in itertools.islice(itertools.product(*others), 24):
            yield (leading, *rest)


def _entry_candidates(model: nn.Module, name: str) -> list[Candidate]:
    """Shapes for the first argument, those of the module's first layers in front."""
    made = {kind: _of_kind(model, kind) for kind in ("image", "tokens", "signal", "volume", "features")}
    order = _kinds_in_order(model)
    if name in _TOKEN_NAMES:
        order = ["tokens", *order]
    if name in ("pixel_values", "image", "images", "img", "sample"):
        order = ["image", *order]
    order += ["features", "image", "signal", "volume", "tokens"]  # last: fake kernels take ids that real ones refuse
    found = [candidate for kind in order for candidate in made[kind]]
    own = _own_format(model)
    return list(dict.fromkeys((shape, own if kind == torch.float32 else kind) for shape, kind in found))


def _companion_candidates(model: nn.Module, name: str, leading: Candidate) -> list[Candidate]:
    """Shapes for a further argument beside `leading`."""
    shape, _ = leading
    own = _own_format(model)
    same: list[Candidate] = [leading]
    steps: list[Candidate] = [(shape[:1], torch.int64), (shape[:1], own), ((), torch.int64)]
    tokens: list[Candidate] = [(shape[:2], torch.int64)]
    features = [((*shape[:1], size), own) for size in _linear_sizes(model)]
    if "mask" in name:
        return [*tokens, (shape[:2], torch.bool), (shape[:2], own), *same]
    if name in (*_TOKEN_NAMES, *_COMPANION_NAMES):
        return [*tokens, *same]
    if name in _STEP_NAMES:
        return [*steps, *same, *tokens, *features]
    sequences = [((*shape[:1], length, size), own) for size in _linear_sizes(model) for length in (128, 77)]
    return [*same, *features, *steps, *tokens, *sequences[:8]]


def _of_kind(model: nn.Module, kind: str) -> list[Candidate]:
    modules = list(model.modules())
    if kind == "tokens":
        lengths = (*_position_lengths(model), *_TOKENS)
        return [((BATCH, length), torch.int64) for length in lengths] + [((BATCH,), torch.int64)]
    if kind == "image":
        channels = _first(m.in_channels for m in modules if isinstance(m, nn.Conv2d)) or [3, 1]
        return [((BATCH, c, side, side), torch.float32) for c in channels for side in _SIDES]
    if kind == "signal":
        channels = _first(m.in_channels for m in modules if isinstance(m, nn.Conv1d)) or [1]
        return [((BATCH, c, length), torch.float32) for c in channels for length in _SAMPLES]
    if kind == "volume":
        channels = _first(m.in_channels for m in modules if isinstance(m, nn.Conv3d)) or [1]
        return [((BATCH, c, side, side, side), torch.float32) for c in channels for side in _CUBES]
    flat = [((BATCH, size), torch.float32) for size in _linear_sizes(model)]
    lengths = (*_position_lengths(model), 128, 64)
    return flat + [((BATCH, length, size), torch.float32) for size in _linear_sizes(model) for length in lengths]


def _kinds_in_order(model: nn.Module) -> list[str]:
    """What kinds of input the module's layers read, in the order the layers were made."""
    kinds = (
        (nn.Conv2d, "image"),
        (nn.Conv1d, "signal"),
        (nn.Conv3d, "volume"),
        (nn.Embedding, "tokens"),
        (nn.EmbeddingBag, "tokens"),
        (nn.Linear, "features"),
        (nn.RNNBase, "features"),
        (nn.MultiheadAttention, "features"),
        (nn.LayerNorm, "features"),
    )
    return list(dict.fromkeys(kind for m in model.modules() for cls, kind in kinds if isinstance(m, cls)))


def _linear_sizes(model: nn.Module) -> list[int]:
    """Last dimensions that the module's layers read, at most eight."""
    sizes: list[int] = []
    for module in model.modules():
        if isinstance(module, nn.Linear):
            sizes.append(module.in_features)
        elif isinstance(module, nn.RNNBase):
            sizes.append(module.input_size)
        elif isinstance(module, nn.MultiheadAttention):
            sizes.append(module.embed_dim)
        elif isinstance(module, nn.LayerNorm | nn.RMSNorm):
            sizes.append(module.normalized_shape[-1])
        elif isinstance(module, nn.BatchNorm1d):
            sizes.append(module.num_features)
        elif isinstance(module, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d):
            sizes.append(module.in_channels)  # of a generator, from the size of its noise
    own = [parameter.shape[-2] for parameter in model.parameters(recurse=False) if parameter.dim() == 2]
    return list(dict.fromkeys(sizes + own))[:8] or [16]


def _own_format(model: nn.Module) -> torch.dtype:
    """The float format of the model's parameters, fp32 when it has none."""
    return next((p.dtype for p in model.parameters() if p.dtype.is_floating_point), torch.float32)


def _position_lengths(model: nn.Module) -> list[int]:
    """Lengths of learned positions: parameters of shape [1, length, width]."""
    return _first(p.shape[1] for p in model.parameters() if p.dim() == 3 and p.shape[0] == 1)


def _first(sizes: Iterator[int]) -> list[int]:
    """The first three different sizes."""
    return list(itertools.islice(dict.fromkeys(sizes), 3))


def _mend(names: Sequence[str]) -> str:
    shapes = " ".join(f"--input {name}=SHAPE:FORMAT" for name in names) or "--input SHAPE:FORMAT"
    first = names[0] if names else "x"
    example = f"{first}={BATCH}x128:int64:0..100" if first in _TOKEN_NAMES else f"{first}={BATCH}x3x224x224:fp32"
    return f"add {shapes} (such as {example}), or example_inputs to the file"
