"""Weights from a safetensors file, strictly: every tensor of the model, and none beside them.

Takes a module and a path; fills the module's parameters and buffers and gives the sentence that the report prints.
All differences (missing, unexpected, other shape) are listed before a tensor is read. A missing name whose storage is
filled under another name (tied weights) is no difference. Another format is none either, and is stated. Never
unpickles anything: `.pt` and `.bin` files are refused with the command that converts them.

`check_parameters` is for any model: a NaN in a parameter makes every later number meaningless.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from precision_audit import formats
from precision_audit.records import InputError

SHOWN = 3  # names listed per kind of difference; the count says how many there are
_PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle")
_INDEX = ".safetensors.index.json"  # how public checkpoints in several files are named


def load(model: nn.Module, path: str | Path, elsewhere: Collection[str] = ()) -> str:
    """Fill `model` from `path`; InputError lists what does not fit. `elsewhere`: names that another file holds."""
    path = Path(path)
    files = _files(path)
    state = {name: value for name, value in model.state_dict(keep_vars=True).items() if isinstance(value, torch.Tensor)}
    shapes = {name: shape for file in files for name, shape in _shapes(file).items()}
    problems = _differences({name: value for name, value in state.items() if name not in elsewhere}, shapes)
    if problems:
        raise InputError(f"{path} does not fit {type(model).__name__}: {'; '.join(problems)}")
    changed: Counter[tuple[str, str]] = Counter()
    fresh: dict[str, torch.Tensor] = {}
    for name, tensor in _tensors(files):
        target = state[name]
        if tensor.dtype != target.dtype:
            changed[formats.format_of(tensor.dtype), formats.format_of(target.dtype)] += 1
        if target.is_meta:
            own = _identity(target)
            fresh |= dict.fromkeys((n for n, t in state.items() if _identity(t) == own), tensor.to(target.dtype))
        else:
            with torch.no_grad():
                target.copy_(tensor)
    if fresh:
        model.load_state_dict(fresh, strict=False, assign=True)
    return f"weights from {path.name}, {len(shapes)} tensors{_stated(changed)}"


def check_parameters(model: Any) -> None:
    """InputError naming the first parameter that holds a NaN. `model` is a module or an ExportedProgram."""
    for name, parameter in model.named_parameters():
        if parameter.is_meta or isinstance(parameter, FakeTensor):
            continue
        if not (parameter.is_floating_point() or parameter.is_complex()):
            continue
        try:
            if not bool(torch.isnan(parameter.detach().sum())):  # one pass; a sum without NaN has no NaN in it
                continue
            nans = int(torch.isnan(parameter.detach()).sum())
        except (RuntimeError, NotImplementedError):  # a format without arithmetic
            nans = int(torch.isnan(parameter.detach().float()).sum())
        if nans:
            raise InputError(
                f"parameter {name} holds NaN ({nans} of {parameter.numel()} values); "
                "expected finite weights: give a sound checkpoint with --checkpoint, or initialise it"
            )


def _files(path: Path) -> list[Path]:
    """The safetensors files behind `path`; refuses everything else with the mend."""
    if not path.exists():
        raise InputError(f"checkpoint {path}: no such file; expected a .safetensors file")
    if path.is_dir():
        raise InputError(f"checkpoint {path}: is a folder; give the .safetensors file in it")
    if path.suffix.lower() in _PICKLES:
        target = path.with_suffix(".safetensors").name
        raise InputError(
            f"checkpoint {path}: {path.suffix} files are pickles, which can run code when opened, and are not read; "
            'convert it once: python -c "import torch; from safetensors.torch import save_file; '
            f"d = torch.load('{path.name}', weights_only=True); "
            f"save_file({{k: v.clone() for k, v in d.items()}}, '{target}')\""
        )
    if not path.name.endswith(_INDEX):
        return [path]
    try:
        names = sorted({f"{name}" for name in json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()})
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise InputError(
            f"checkpoint {path}: not an index of safetensors files; expected a weight_map in it"
        ) from error
    missing = [name for name in names if not (path.parent / name).is_file()]
    if missing:
        raise InputError(f"checkpoint {path}: it names {missing[0]}, which is not beside it; download all its parts")
    return [path.parent / name for name in names]


def _shapes(file: Path) -> dict[str, tuple[int, ...]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as opened:
            return {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(
            f"checkpoint {file}: not a readable safetensors file ({str(error).splitlines()[0]}); "
            "write it with safetensors.torch.save_file(model.state_dict(), ...)"
        ) from error


def _tensors(files: list[Path]) -> Iterator[tuple[str, torch.Tensor]]:
    """One tensor at a time: never the whole file in memory."""
    from safetensors import safe_open

    for file in files:
        with safe_open(file, framework="pt") as opened:
            for name in sorted(opened.keys()):
                yield name, opened.get_tensor(name)


def _differences(state: Mapping[str, torch.Tensor], shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """What keeps the file from fitting, one phrase per kind."""
    filled = {_identity(state[name]) for name in shapes if name in state}
    missing = [name for name in state if name not in shapes and _identity(state[name]) not in filled]
    unexpected = [name for name in shapes if name not in state]
    other = [
        f"{name} ({_shape(shape)} in the file, {_shape(tuple(state[name].shape))} in the model)"
        for name, shape in shapes.items()
        if name in state and tuple(state[name].shape) != shape
    ]
    problems = []
    if missing:
        problems.append(f"{len(missing)} missing: {_listed(missing)}")
    if unexpected:
        problems.append(f"{len(unexpected)} unexpected: {_listed(unexpected)}")
    if other:
        problems.append(f"{len(other)} of another shape: {_listed(other)}")
    prefix = _prefix(missing, unexpected)
    if prefix:
        problems.append(prefix)
    return problems


def _prefix(missing: list[str], unexpected: list[str]) -> str:
    """The commonest reason: one side's names begin with a word that the other's lack."""
    heads = {name.split(".")[0] for name in unexpected}
    if len(heads) == 1 and missing:
        head = heads.pop() + "."
        if set(missing) <= {name.removeprefix(head) for name in unexpected}:
            return f"the file's names begin with {head!r}: remove that before saving"
    heads = {name.split(".")[0] for name in missing}
    if len(heads) == 1 and unexpected:
        head = heads.pop() + "."
        if {name.removeprefix(head) for name in missing} <= set(unexpected):
            return f"the model's names begin with {head!r}: save the file from the same wrapper"
    return ""


def _identity(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Equal for two names of one tied tensor."""
    if tensor.is_meta or tensor.numel() == 0:
        return ("object", id(tensor))
    return ("storage", tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()))


def _listed(names: list[str]) -> str:
    more = f", and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(str(size) for size in shape) or "scalar"


def _stated(changed: Mapping[tuple[str, str], int]) -> str:
    return "".join(f"; {count} stored as {a}, read as the model's {b}" for (a, b), count in sorted(changed.items()))
