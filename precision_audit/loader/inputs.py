"""`--input`: from a few characters to tensors the model's forward takes.

    --input [NAME=]SHAPE:FORMAT[:LOW..HIGH][,DIM=SIZE...]     repeatable
    --input DIM=SIZE                                          the example size of a named dimension

SHAPE is sizes joined by `x` (`64x1x28x28`), or `scalar`. A size may be a name (`Bx3x224x224`; letters, digits and
`_`, no small `x`): it becomes a dynamic dimension, the same name the same dimension, whose example size is given by
`DIM=SIZE` or is a multiple of 16. FORMAT is a name of `list formats` or a torch dtype (`fp32`, `bfloat16`, `int64`,
`bool`), fp32 when left out. HIGH is excluded, as in `range`. An input without NAME goes to the next free argument of
forward; `batch.ids=...` fills a dict argument, `xs.0=...` a list.

Takes the texts and the module; gives `Made`: args, kwargs, sizes and `dynamic_shapes` for `torch.export`. Values come
from one seed, so that the same command gives the same report, and every made-up value is stated in `note`.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from precision_audit.loader import values
from precision_audit.records import InputError

SEED = 0
_NAMED = re.compile(r"(?P<name>[A-Za-z_]\w*(?:\.\w+)*)=(?P<rest>.*)", re.DOTALL)
_SIZE = re.compile(r"(?P<dim>[A-Za-wyz_][A-Za-wyz0-9_]*)=(?P<size>-?\d+(\.\d+)?|)")
_DIM = re.compile(r"[A-Za-wyz_][A-Za-wyz0-9_]*")
_EXPECTED = "expected [NAME=]SHAPE:FORMAT[:LOW..HIGH], for example --input x=Bx3x224x224:fp32 --input B=16"


@dataclass(frozen=True, slots=True)
class Spec:
    """One `--input`. `low`/`high` are None where the user gave no range."""

    name: str
    shape: tuple[int | str, ...]
    dtype: torch.dtype
    low: float | None = None
    high: float | None = None

    @property
    def text(self) -> str:
        shape = "x".join(str(size) for size in self.shape) or "scalar"
        span = "" if self.low is None or self.high is None else f":{self.low:g}..{self.high:g}"
        return f"{self.name + '=' if self.name else ''}{shape}:{values.format_name(self.dtype)}{span}"


@dataclass(frozen=True)
class Made:
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    sizes: dict[str, int]  # named dimensions and their example sizes
    dynamic_shapes: dict[str, Any] | None
    note: str
    specs: tuple[Spec, ...]


def make(model: nn.Module, texts: Sequence[str]) -> Made:
    """The inputs that `--input` texts describe."""
    specs, sizes = parse(texts)
    return from_specs(model, specs, sizes)


def from_specs(model: nn.Module, specs: Sequence[Spec], sizes: dict[str, int]) -> Made:
    """Tensors for `specs`, bound to the arguments of the model's forward."""
    signature = inspect.signature(model.forward)
    named = _bind(signature, specs)
    sizes = _example_sizes(named, sizes)
    generator = torch.Generator().manual_seed(SEED)
    highs = values.index_limits(model, named)
    trees: dict[str, Any] = {}
    shapes: dict[str, Any] = {}
    notes: list[str] = []
    dims = {name: torch.export.Dim(name) for name in sizes}
    for spec in named:
        shape = tuple(size if isinstance(size, int) else sizes[size] for size in spec.shape)
        try:
            value, how = values.fill(spec, shape, highs.get(spec.name), generator)
        except (RuntimeError, TypeError, MemoryError, OverflowError) as error:
            raise InputError(f"--input {spec.text}: too large to be made here; give smaller sizes") from error
        _place(trees, spec.name, value)
        axes = {axis: dims[size] for axis, size in enumerate(spec.shape) if isinstance(size, str)}
        _place(shapes, spec.name, axes or None)
        notes.append(f"{spec.text} ({how})")
    args, kwargs, order = _call(signature, {name: _listed(tree) for name, tree in trees.items()})
    named_shapes = {name: _listed(shapes[name]) for name in order}
    note = f"made up from --input, seed {SEED}: " + ", ".join(notes)
    if sizes:
        note += "; " + ", ".join(f"{name}={size}" for name, size in sizes.items())
    return Made(args, kwargs, sizes, named_shapes if sizes else None, note, tuple(named))


def parse(texts: Sequence[str]) -> tuple[list[Spec], dict[str, int]]:
    """Every `--input`: the tensors and the sizes of named dimensions."""
    specs: list[Spec] = []
    sizes: dict[str, int] = {}
    for text in texts:
        for part in (piece.strip() for piece in text.split(",")):
            sized = _SIZE.fullmatch(part)
            if sized:
                sizes[sized["dim"]] = _example(sized["size"], part)
            elif part:
                specs.append(_parse_one(part))
    used = {dim for spec in specs for dim in spec.shape if isinstance(dim, str)}
    for name, size in sizes.items():
        if name not in used:
            near = difflib.get_close_matches(name, used, 1)
            mend = f"did you mean {near[0]}?" if near else f"to give an input of that size write {name}={size}:fp32"
            raise InputError(f"--input {name}={size}: no input has a dimension named {name}; {mend}")
    return specs, sizes


def _parse_one(text: str) -> Spec:
    match = _NAMED.fullmatch(text)
    name, rest = (match["name"], match["rest"]) if match else ("", text)
    parts = rest.split(":")
    if len(parts) > 3 or not parts[0]:
        raise InputError(f"--input {text}: {_EXPECTED}")
    dtype = values.dtype(parts[1], text) if len(parts) > 1 else torch.float32
    low, high = _range(parts[2], text) if len(parts) > 2 else (None, None)
    if low is not None and high is not None:
        values.check_range(dtype, low, high, text)
    return Spec(name, _shape(parts[0], text), dtype, low, high)


def _shape(text: str, whole: str) -> tuple[int | str, ...]:
    if text == "scalar":
        return ()
    sizes: list[int | str] = []
    for size in text.split("x"):
        if size.isdecimal():
            sizes.append(int(size))
        elif _DIM.fullmatch(size):
            sizes.append(size)
        else:
            raise InputError(f"--input {whole}: {size!r} is no size in the shape {text!r}; {_EXPECTED}")
    return tuple(sizes)


def _range(text: str, whole: str) -> tuple[float, float]:
    low, dots, high = text.partition("..")
    try:
        bounds = float(low), float(high)
    except ValueError:
        dots = ""
        bounds = (0.0, 0.0)
    if not dots or not bounds[0] < bounds[1]:
        raise InputError(
            f"--input {whole}: {text!r} is no range; expected LOW..HIGH with LOW below HIGH, such as 0..30522"
        )
    return bounds


def _example(text: str, whole: str) -> int:
    if not text.isdecimal() or int(text) < 2:
        raise InputError(
            f"--input {whole}: {text or 'nothing'} cannot stand for a dimension that varies; "
            "expected a whole number of at least 2 (torch.export keeps 0 and 1 constant), such as B=16"
        )
    return int(text)


def _bind(signature: inspect.Signature, specs: Sequence[Spec]) -> list[Spec]:
    """Give every nameless spec the next free argument of forward, and check the names of the others."""
    kinds = {name: parameter.kind for name, parameter in signature.parameters.items()}
    variadic = [name for name, kind in kinds.items() if kind is inspect.Parameter.VAR_POSITIONAL]
    plain = [n for n, k in kinds.items() if k not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)]
    open_ended = inspect.Parameter.VAR_KEYWORD in kinds.values()
    taken = {spec.name.split(".")[0] for spec in specs if spec.name}
    free = [n for n in plain if n not in taken and kinds[n] is not inspect.Parameter.KEYWORD_ONLY]
    bound, extra = [], 0
    for spec in specs:
        head = spec.name.split(".")[0]
        if not spec.name and free:
            spec = replace(spec, name=free.pop(0))  # noqa: PLW2901
        elif not spec.name and variadic:
            spec, extra = replace(spec, name=f"{variadic[0]}.{extra}"), extra + 1  # noqa: PLW2901
        elif not spec.name:
            raise InputError(
                f"--input {spec.text}: forward takes only {len(plain)} inputs: {', '.join(plain) or 'none'}"
            )
        elif head not in kinds and not open_ended:
            near = difflib.get_close_matches(head, plain, 1)
            mend = f"did you mean {near[0]}? " if near else ""
            raise InputError(f"--input {spec.text}: forward has no argument {head}; {mend}it takes: {', '.join(plain)}")
        bound.append(spec)
    names = [spec.name for spec in bound]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise InputError(f"--input: {twice} is given twice; give every argument of forward once")
    return bound


def _example_sizes(specs: Sequence[Spec], given: dict[str, int]) -> dict[str, int]:
    """Sizes for all named dimensions in order of appearance: distinct multiples of 16 where the user gave none."""
    sizes: dict[str, int] = {}
    for name in (size for spec in specs for size in spec.shape if isinstance(size, str)):
        if name not in sizes:
            fresh = next(n for n in range(16, 1 << 20, 16) if n not in (*sizes.values(), *given.values()))
            sizes[name] = given.get(name, fresh)
    return sizes


def _place(tree: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for part in parents:
        tree = tree.setdefault(part, {})
    tree[last] = value


def _listed(tree: Any) -> Any:
    """A dict whose keys are 0, 1, … is a list."""
    if not isinstance(tree, dict) or any(not isinstance(key, str) for key in tree):
        return tree
    if tree and sorted(tree) == sorted(str(i) for i in range(len(tree))):
        return [_listed(tree[str(i)]) for i in range(len(tree))]
    return {key: _listed(value) for key, value in tree.items()}


def _call(signature: inspect.Signature, trees: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any], list[str]]:
    """args and kwargs of the call, and the arguments' names in the order torch.export wants them."""
    variadic = [n for n, p in signature.parameters.items() if p.kind is inspect.Parameter.VAR_POSITIONAL]
    rest = tuple(trees[variadic[0]]) if variadic and variadic[0] in trees else ()
    named = {name: tree for name, tree in trees.items() if not (rest and name == variadic[0])}
    args: list[Any] = []
    order: list[str] = []
    for name, parameter in signature.parameters.items():
        positional = parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        if not positional or name not in named:
            break
        args.append(named.pop(name))
        order.append(name)
    if rest:
        args += rest
        order.append(variadic[0])
    return tuple(args), named, [*order, *named]
