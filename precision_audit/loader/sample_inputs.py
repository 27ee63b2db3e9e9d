"""Inputs that the user gave: `example_inputs`, `calibration_batches`, a file of calibration data.

Takes what a model file declares, in any of the forms people write (a tuple or list of arguments, a dict of keyword
arguments, one tensor, `(args, kwargs)`, or a function that returns one of them); gives `(args, kwargs)`. Never changes
the user's tensors; a tensor that is the result of a computation is detached, because it cannot be copied otherwise.
Calibration data is read from `.npz` or `.safetensors`, never unpickled.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from precision_audit import formats
from precision_audit.loader import values
from precision_audit.loader.inputs import SEED, Spec
from precision_audit.loader.user_code import running
from precision_audit.records import InputError, kind_of

Call = tuple[tuple[Any, ...], dict[str, Any]]


class Batches:
    """Batches that can be walked as often as one likes, each as `(args, kwargs)`. `left_out` says what of the source is
    in none of them, "" where nothing is."""

    def __init__(
        self, source: Callable[[], Iterable[Any]], normal: Callable[[Any, int], Call], left_out: str = ""
    ) -> None:
        self._source, self._normal, self.left_out = source, normal, left_out

    def __iter__(self) -> Iterator[Call]:
        for index, batch in enumerate(self._source()):
            yield self._normal(batch, index)


def example(value: Any, name: str, source: str) -> Call:
    """`(args, kwargs)` of what the file declares as `name`."""
    where = f"{source.rpartition(':')[0] or source}: {name}"
    if inspect.isroutine(value):
        _needs_nothing(value, where)
        with running(where):
            value = value()
    return _normal(value, where)


def own_inputs(model: nn.Module, source: str) -> Call | None:
    """What the module itself offers as `dummy_inputs`, None when it has none."""
    with running(f"{source}: dummy_inputs"):
        value = getattr(model, "dummy_inputs", None)
    return None if value is None else example(value, "dummy_inputs", source)


def of_program(program: torch.export.ExportedProgram) -> tuple[Call, str]:
    """Inputs in the shapes and formats an exported program was made with, and how each was filled."""
    if program.example_inputs is not None:
        args, kwargs = program.example_inputs
        return (tuple(args), dict(kwargs)), ""
    generator = torch.Generator().manual_seed(SEED)
    wanted = program.graph_signature.user_inputs
    leaves: list[Any] = []
    notes: list[str] = []
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in wanted:
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor):
                shape = tuple(size if isinstance(size, int) else int(size.node.hint or 16) for size in value.shape)
                spec = Spec(node.name, shape, value.dtype)
                value, how = values.fill(spec, shape, None, generator)
                notes.append(f"{spec.text} ({how})")
            leaves.append(value)
    args, kwargs = pytree.tree_unflatten(leaves, program.call_spec.in_spec)
    return (tuple(args), dict(kwargs)), ", ".join(notes)


def batches(value: Any, model: nn.Module, source: str) -> Batches | None:
    """Batches of what the file declares as `calibration_batches`."""
    if value is None:
        return None
    where = f"{source.rpartition(':')[0] or source}: calibration_batches"

    def normal(batch: Any, index: int) -> Call:
        args, kwargs = _normal(batch, f"{where}, batch {index}")
        check_call(model, args, kwargs, f"{where}, batch {index}")
        return args, kwargs

    if inspect.isroutine(value):
        _needs_nothing(value, where)

        def run() -> Iterator[Any]:
            with running(where):
                yield from value()

        return Batches(run, normal)
    if isinstance(value, Mapping | torch.Tensor) or not isinstance(value, Iterable):
        raise InputError(f"{where} is {kind_of(value)}; expected an iterable of batches: put it in a list")
    if isinstance(value, Iterator):
        with running(where):
            value = tuple(value)
    return Batches(lambda: value, normal)


def from_file(path: str | Path, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Batches:
    """Batches of a file whose arrays are named as the arguments of forward, with samples along the first axis.

    Every array is cut into batches as long as the example's; a rest that is shorter is left out and said to be, since
    the captured shapes may not allow it.
    """
    named = _bound(model, args, kwargs)
    arrays = {name.removesuffix(".npy"): array for name, array in _arrays(Path(path)).items()}
    counts = {_count(path, name, array, named) for name, array in arrays.items()}
    missing = [k for k, v in named.items() if isinstance(v, torch.Tensor) and k not in arrays]
    if missing or len(counts) != 1 or counts == {0}:
        why = (
            f"{missing[0]} is missing"
            if missing
            else f"batches per array: {sorted(counts)}, expected one number above 0"
        )
        raise InputError(f"calibration data {path}: {why}; expected one array per argument: {', '.join(named)}")

    def cut() -> Iterator[Mapping[str, Any]]:
        for index in range(min(counts)):
            sizes = {name: named[name].shape[0] for name in arrays}
            yield {n: a[index * sizes[n] : (index + 1) * sizes[n]].to(named[n].dtype) for n, a in arrays.items()}

    def normal(batch: Mapping[str, Any], _: int) -> Call:
        order = list(inspect.signature(model.forward).bind(*args).arguments) if args else []
        given = tuple(batch.get(name, value) for name, value in zip(order, args, strict=False))
        named = {**kwargs, **{name: value for name, value in batch.items() if name not in order}}
        return (*given, *args[len(given) :]), named

    return Batches(cut, normal, _rest(Path(path), arrays, named, min(counts)))


def check_call(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], where: str) -> None:
    """InputError when forward cannot be called with these arguments, whatever their shapes."""
    signature = inspect.signature(model.forward)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InputError(f"{where}: {error}; forward takes {signature}, and got {described(args, kwargs)}") from error


def described(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """The inputs as `--input` would spell them."""
    parts = [_spelled(value) for value in args] + [f"{name}={_spelled(value)}" for name, value in kwargs.items()]
    return ", ".join(parts) or "no inputs"


def _normal(value: Any, where: str) -> Call:
    """`(args, kwargs)` of one batch in any of its forms."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = {}
    if isinstance(value, torch.Tensor):
        args = (value,)
    elif isinstance(value, Mapping):
        args, kwargs = (), dict(value)
    elif isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], tuple) and isinstance(value[1], dict):
        args, kwargs = value[0], dict(value[1])
    elif isinstance(value, tuple | list):
        args = tuple(value)
    else:
        raise InputError(
            f"{where} is {kind_of(value)}; expected a tuple or list of arguments, a dict of keyword arguments, "
            "one tensor, or (args, kwargs)"
        )
    unnamed = [key for key in kwargs if not isinstance(key, str)]
    if unnamed:
        raise InputError(f"{where} has the key {unnamed[0]!r}; expected the names of forward's arguments")
    args, kwargs = pytree.tree_map_only(torch.Tensor, _leaf, (args, kwargs))
    return args, kwargs


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that can be copied: the result of a computation is cut off from it."""
    return tensor if tensor.is_leaf else tensor.detach().requires_grad_(tensor.requires_grad)


def _needs_nothing(function: Callable[..., Any], where: str) -> None:
    parameters = inspect.signature(function).parameters.values()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p.name for p in parameters if p.default is inspect.Parameter.empty and p.kind not in variadic]
    if needed:
        raise InputError(
            f"{where} needs arguments ({', '.join(needed)}); expected a function without, give them defaults"
        )


def _bound(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return dict(inspect.signature(model.forward).bind(*args, **kwargs).arguments)


def _arrays(path: Path) -> dict[str, torch.Tensor]:
    """Tensors of a `.npz` or `.safetensors` file."""
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "no such file"
        raise InputError(f"calibration data {path}: {what}; expected a .npz or .safetensors file")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        if path.suffix == ".npz":
            import numpy

            with numpy.load(path, allow_pickle=False) as opened:
                return {name: torch.from_numpy(opened[name]) for name in opened.files}
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"calibration data {path}: cannot be read ({reason}); write it with numpy.savez") from error
    raise InputError(
        f"calibration data {path}: unknown kind {path.suffix or '(no suffix)'}; expected .npz or .safetensors"
    )


def _count(path: str | Path, name: str, array: torch.Tensor, named: Mapping[str, Any]) -> int:
    """How many batches an array holds, once it is sure that they fit the argument `name`."""
    if not isinstance(named.get(name), torch.Tensor):
        known = ", ".join(key for key, value in named.items() if isinstance(value, torch.Tensor))
        raise InputError(f"calibration data {path}: forward has no tensor argument {name}; name the arrays {known}")
    expected = tuple(named[name].shape)
    if array.dim() != len(expected) or tuple(array.shape[1:]) != expected[1:] or not expected:
        shape = "x".join(["N", *map(str, expected[1:])])
        raise InputError(
            f"calibration data {path}: {name} has shape {tuple(array.shape)}; expected {shape}, samples first"
        )
    if array.is_complex() and not named[name].is_complex():
        raise InputError(f"calibration data {path}: {name} is complex, the example is not; store its real part")
    if torch.is_floating_point(array) and not bool(torch.isfinite(array).all()):
        raise InputError(f"calibration data {path}: {name} holds NaN or Inf; remove those samples")
    return int(array.shape[0] // max(1, expected[0]))


def _rest(path: Path, arrays: Mapping[str, torch.Tensor], named: Mapping[str, Any], batches: int) -> str:
    """What is left over when the samples are cut into batches as long as the example's."""
    for name, array in arrays.items():
        size, total = named[name].shape[0], array.shape[0]
        rest = total - batches * size
        if rest:
            samples = "sample is" if rest == 1 else f"{rest} samples are"
            return (
                f"calibration data {path.name}: {batches} batches of {size} (the example's size); the last {samples} "
                f"left out, give a multiple of {size} to use all {total}"
            )
    return ""


def _spelled(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{'x'.join(str(size) for size in value.shape) or 'scalar'}:{formats.format_of(value.dtype)}"
    return type(value).__name__
