"""A converted module that holds casts only becomes a `.pt2` file again, which torch alone reloads.

Takes a converted module and example inputs; gives an `ExportedProgram` of its evaluation graph. Dimensions that were
symbolic in the capture stay so, with their ranges; if export would fix one to the example's value, that is an error,
not a silent loss. Parameters keep their names.

Reading goes through `read_program`, which refuses an archive that would unpickle anything. Sample inputs are not
written: they are the user's data.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from precision_audit.ambient import restored_on_error
from precision_audit.capture.regions import outputs_of
from precision_audit.formats import format_of
from precision_audit.records import InputError, first_line
from precision_audit.rewrite.converted import Converted

_HOLDER = "converted"
_RAW = ("weight_", "tensor_")  # how the archive names tensors stored as bytes


@dataclass(frozen=True, slots=True)
class Dynamic:
    """A symbolic dimension of one flat input. `largest` is None where it has no bound."""

    leaf: int
    dimension: int
    symbol: str
    smallest: int
    largest: int | None


def program_of(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> torch.export.ExportedProgram:
    """Export the evaluation graph of `module` (mode and parameters are left as they are)."""
    args, kwargs = tuple(args), dict(kwargs or {})
    was_training = module.training
    if was_training:
        module.eval()
    try:
        if isinstance(module, Converted):
            args, kwargs = module.as_read(args, kwargs)
        dynamic = dynamic_dimensions(module, args, kwargs)
        callee, signature = _callee(module, len(args), tuple(kwargs))
        shapes = shapes_by_name(dynamic, args, kwargs, signature)
        try:
            with restored_on_error():
                program = torch.export.export(callee, args, kwargs, dynamic_shapes=shapes, strict=False)
        except Exception as error:
            raise InputError(f"the converted graph cannot be exported to .pt2: {first_line(error)}") from error
    finally:
        if was_training:
            module.train()
    _refuse_texts(program)
    _keep_formats(program, module)
    _keep_dynamic(program, dynamic)
    _drop_format_checks(program)
    _strip_prefix(program)
    program.example_inputs = None
    return program


def dynamic_dimensions(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Dynamic, ...]:
    """The symbolic dimensions of the captured inputs, in flat order."""
    graph = _graph_of(module)
    inputs = [node for node in graph.nodes if node.op == "placeholder"] if graph is not None else []
    leaves = pytree.tree_leaves((args, dict(kwargs)))
    if len(inputs) != len(leaves):
        raise InputError(
            f"{len(leaves)} example inputs were given, but the graph takes {len(inputs)}: "
            "give the inputs that the model was converted with"
        )
    found: list[Dynamic] = []
    for number, node in enumerate(inputs):
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            continue
        for dimension, size in enumerate(value.shape):
            if isinstance(size, torch.SymInt) and not size.node.expr.is_Integer:
                found.append(Dynamic(number, dimension, str(size), *_range(size)))
    return tuple(found)


def shapes_by_name(
    dynamic: Sequence[Dynamic], args: tuple[Any, ...], kwargs: Mapping[str, Any], signature: inspect.Signature
) -> dict[str, Any] | None:
    """What `torch.export.export` takes as dynamic_shapes for a forward of that signature."""
    if not dynamic:
        return None
    leaves, spec = pytree.tree_flatten((args, dict(kwargs)))
    wanted: list[dict[int, Any] | None] = [{} if isinstance(leaf, torch.Tensor) else None for leaf in leaves]
    for each in dynamic:
        place = wanted[each.leaf]
        assert place is not None
        limits = {"min": each.smallest} | ({} if each.largest is None else {"max": each.largest})
        place[each.dimension] = torch.export.Dim.AUTO(**limits)
    positional, named = pytree.tree_unflatten(wanted, spec)
    return dict(signature.bind(*positional, **named).arguments)


def read_program(path: Path) -> nn.Module:
    """The module in a `.pt2` file; nothing in it is unpickled."""
    try:
        refuse_pickles(path)
        return _switchable(torch.export.load(path).module())
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{path} is no readable .pt2 file ({first_line(error)}): export it again") from error


def _switchable(module: nn.Module) -> nn.Module:
    """The module of an exported program with an `eval` that changes nothing, which torch's own refuses; `train` says
    what to do instead."""

    def train(mode: bool = True) -> nn.Module:
        if mode:
            raise InputError(
                "this module was saved for evaluation (casts only); to train on, save the converted module's state "
                "dict, load it into the model and convert again"
            )
        return module

    module.train, module.eval = train, lambda: train(False)  # type: ignore[method-assign]
    return module


def refuse_pickles(path: Path) -> None:
    """Raise InputError when reading `path` would unpickle something: torch falls back to it silently."""
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if _is_pickle(name, lambda name=name: archive.read(name)):  # type: ignore[misc]
                raise InputError(f"{path}: {name} holds pickled objects, which are not loaded: export it again")


def _is_pickle(name: str, content: Callable[[], bytes]) -> bool:
    inner = name.partition("/")[2]
    if inner.startswith("data/sample_inputs/"):
        return not _plain_data(content())
    if inner.startswith("data/") and inner.endswith("_config.json"):
        entries = json.loads(content()).get("config", {}).values()
        return any(entry["use_pickle"] or not entry["path_name"].startswith(_RAW) for entry in entries)
    return inner.startswith("data/") and inner.endswith((".pt", ".pkl"))


def _plain_data(content: bytes) -> bool:
    """Nothing, or what loads without unpickling objects."""
    if content:
        with contextlib.suppress(Exception):
            torch.load(io.BytesIO(content), weights_only=True)
            return True
    return not content


def _graph_of(module: nn.Module) -> fx.Graph | None:
    """The graph of a converted module, else of the first graph module inside."""
    graph = getattr(module, "graph", None)
    if isinstance(graph, fx.Graph):
        return graph
    return next((each.graph for each in module.modules() if isinstance(each, fx.GraphModule)), None)


def _range(size: torch.SymInt) -> tuple[int, int | None]:
    """Bounds of a symbolic size as the capture knew them; None where there is no upper one."""
    bounds = size.node.shape_env.bound_sympy(size.node.expr)
    lower = int(bounds.lower) if bounds.lower.is_finite and bounds.lower.is_Integer else 0
    upper = int(bounds.upper) if bounds.upper.is_Integer else None
    return lower, upper


def _callee(module: nn.Module, positional: int, named: Sequence[str]) -> tuple[nn.Module, inspect.Signature]:
    """`module` behind a forward whose arguments have names: export cannot give dynamic shapes to `**kwargs`."""
    own = getattr(module, "_signature", None) or inspect.signature(module.forward)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    known = [name for name, parameter in own.parameters.items() if parameter.kind in kinds]
    names = [known[i] if i < len(known) else f"argument_{i}" for i in range(positional)]
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    parameters += [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in named]
    signature = inspect.Signature(parameters)

    def forward(*args: Any, **kwargs: Any) -> Any:
        return module(*args, **kwargs)

    forward.__signature__ = signature  # type: ignore[attr-defined]
    callee = nn.Module()
    callee.add_module(_HOLDER, module)
    callee.forward = forward
    callee.training = module.training
    return callee, signature


def _keep_dynamic(program: torch.export.ExportedProgram, dynamic: Sequence[Dynamic]) -> None:
    values = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
    inputs = [values.get(name) if isinstance(name, str) else None for name in program.graph_signature.user_inputs]
    for each in dynamic:
        value = inputs[each.leaf]
        assert isinstance(value, torch.Tensor)
        size = value.shape[each.dimension]
        if isinstance(size, int):
            name = program.graph_signature.user_inputs[each.leaf]
            raise InputError(
                f"dimension {each.dimension} of {name} is symbolic ({each.symbol}), but the export would fix it at "
                f"{size}: save to a folder, or convert with that dimension fixed"
            )


def _refuse_texts(program: torch.export.ExportedProgram) -> None:
    for specification in program.graph_signature.output_specs:
        value = getattr(specification.arg, "value", None)
        if isinstance(value, str):
            raise InputError(
                f"the model returns the text {value[:40]!r}, which a .pt2 file cannot hold: return tensors and numbers"
            )


def _keep_formats(program: torch.export.ExportedProgram, module: nn.Module) -> None:
    """Export takes the result of an autocast region for fp32, and then a cast of it to fp32 for the result itself."""
    if not isinstance(module, Converted):
        return
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    for index, (mine, name) in enumerate(
        zip(outputs_of(module.graph), program.graph_signature.user_outputs, strict=True)
    ):
        own, other = getattr(mine, "meta", {}).get("val"), values.get(name) if isinstance(name, str) else None
        if isinstance(own, torch.Tensor) and isinstance(other, torch.Tensor) and own.dtype != other.dtype:
            raise InputError(
                f"export would change output {index} from {format_of(own.dtype)} to {format_of(other.dtype)}: "
                "cast it explicitly where the model returns it"
            )


def _drop_format_checks(program: torch.export.ExportedProgram) -> None:
    """Export asserts the formats that it saw, and sees wrong ones inside the user's autocast regions."""
    for module in program.graph_module.modules():
        if isinstance(module, fx.GraphModule):
            for node in module.graph.find_nodes(
                op="call_function", target=torch.ops.aten._assert_tensor_metadata.default
            ):
                module.graph.erase_node(node)
            module.recompile()


def _strip_prefix(program: torch.export.ExportedProgram) -> None:
    """Parameters and buffers under the names of the original's state dict."""
    prefix = f"{_HOLDER}."
    for specification in (*program.graph_signature.input_specs, *program.graph_signature.output_specs):
        if isinstance(specification.target, str):
            specification.target = specification.target.removeprefix(prefix)
    for table in (program.state_dict, program.constants):
        for name in list(table):
            if name.startswith(prefix):
                table[name.removeprefix(prefix)] = table.pop(name)
