"""Save a conversion, and load it again to the same output. Nothing is pickled, nothing unpickled.

A conversion of casts only is exported again: `OUT.pt2` holds its evaluation graph and needs torch alone, not this
package (`torch.export.load("OUT.pt2").module()`); plan and provenance are inside it as extra files. Export must come
before a swap, so a graph with swapped linears becomes a folder: weights (safetensors), the plan of each mode, a loader
and a manifest with versions and digests. Loading it builds the model from its source, loads the weights strictly,
captures it as it was captured and applies the plan.

    save(result.module, result.plan, "out", args)          # folder; out.pt2 for one file, casts only
    module = load("out", build_model())                    # a swapped folder needs the model it was made from

Must never overwrite what it did not write, nor leave half of a conversion behind (see `atomic.py`).
"""

from __future__ import annotations

import copy
import inspect
import json
import os
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import nn

from precision_audit import backends, loader
from precision_audit.backends import torchao_float8
from precision_audit.capture import capture
from precision_audit.loader import checkpoint
from precision_audit.plan import file as plan_file
from precision_audit.records import Graph, InputError, Mode, Plan, first_line
from precision_audit.rewrite import rewrite
from precision_audit.rewrite.converted import Converted
from precision_audit.saving import atomic, quantised, reexport, weights
from precision_audit.saving.inputs import SavedInputs
from precision_audit.saving.texts import loader_text, readme_text

SCHEMA = 1
PROGRAM, WEIGHTS, LOADER, README = "model.pt2", "model.safetensors", "load.py", "README.md"
PLANS = ("plan.yaml", "plan.inference.yaml", "plan.training.yaml")
_PACKAGES = ("precision-audit", "torch", "torchao", "transformer-engine", "safetensors")


def save(
    module: nn.Module,
    plan: Plan,
    path: str | Path,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    model: str = "",
    extra: Mapping[str, str] | None = None,
) -> Path:
    """Write the conversion to `path`: one file if that ends in .pt2, a folder otherwise; returns what was written.

    `args`, `kwargs`: the example inputs it was converted with. `model`: where its source is (`model.py:build_model`),
    so that the folder's loader can build it. `extra`: further text files for the folder (a report).
    """
    path, args, kwargs = Path(path), tuple(args), dict(kwargs or {})
    swapped = bool(plan.swaps) or any(torchao_float8.is_swapped(each) for each in module.modules())
    if swapped and path.suffix == ".pt2":
        raise InputError(f"{path}: a graph with swapped linears cannot be exported; give a folder instead of a file")
    plans: dict[str, Plan] = {
        _plan_name(mode, plan): each for mode, each in (getattr(module, "plans", None) or {plan.mode: plan}).items()
    }
    facts = _facts(module, plan, swapped, args, kwargs)
    facts["model"] = _source_from(model, path) if swapped else ""
    program = None if swapped else reexport.program_of(module, args, kwargs)
    if path.suffix == ".pt2" and program is not None:
        inside = {name: plan_file.text(each) for name, each in plans.items()}
        inside[atomic.MANIFEST] = json.dumps({"tool": atomic.TOOL, **facts}, indent=2, sort_keys=True)
        atomic.write_file(path, lambda file: _export(program, file, inside))
        return path
    texts = {README: readme_text(facts), **({LOADER: loader_text(facts)} if swapped else {}), **(extra or {})}
    atomic.write_folder(path, lambda folder: _fill(folder, module, program, plans, texts), facts)
    return path


def _fill(
    folder: Path,
    module: nn.Module,
    program: torch.export.ExportedProgram | None,
    plans: Mapping[str, Plan],
    texts: Mapping[str, str],
) -> None:
    for name, plan in plans.items():
        plan_file.write(plan, folder / name)
    if program is None:
        plain, parts = quantised.apart(module.state_dict())
        weights.write(plain, folder / WEIGHTS)
        if parts:
            weights.write(parts, folder / quantised.FILE)
    else:
        _export(program, folder / PROGRAM, {})
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


def load(
    path: str | Path,
    model: nn.Module | None = None,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    source: str = "",
) -> nn.Module:
    """The converted module saved at `path`, a `.pt2` file or a folder.

    `model`: for a folder with swapped linears, the model it was made from, freshly built (it is not changed); without
    it `source`, or else the source that the manifest names, is executed. `args`, `kwargs`: inputs to capture it with;
    without them zeros in the shapes and formats that were saved.
    """
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path}: no such file or folder; give what save() or convert -o wrote")
    if path.is_file():
        return reexport.read_program(path)
    manifest = atomic.read_manifest(path)
    if manifest.get("schema") != SCHEMA:
        raise InputError(f"{path} has schema {manifest.get('schema')}, this version reads {SCHEMA}: convert it again")
    if manifest["kind"] == "exported":
        atomic.check_digests(path, manifest, (PROGRAM,))
        return reexport.read_program(path / PROGRAM)
    original = copy.deepcopy(model if model is not None else _from_source(path, source or manifest["model"]))
    return _load_swapped(path, manifest, original, args, kwargs)


def _load_swapped(
    path: Path,
    manifest: Mapping[str, Any],
    original: nn.Module,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
) -> nn.Module:
    """Load the weights, capture, apply the plan of each mode."""
    names = [name for name in PLANS if name in manifest["files"]]
    held = [quantised.FILE] if quantised.FILE in manifest["files"] else []
    atomic.check_digests(path, manifest, (WEIGHTS, *held, *names))
    checkpoint.load(original, path / WEIGHTS, quantised.names(path / quantised.FILE))
    plans = {plan.mode: plan for plan in (plan_file.read(path / name) for name in names)}
    backends.check_here((swap.backend for plan in plans.values() for swap in plan.swaps), str(path))
    inputs = SavedInputs.of_json(manifest["inputs"])
    if args is None and kwargs is None:
        args, kwargs = inputs.zeros()
    args, kwargs = tuple(args or ()), dict(kwargs or {})
    signature = inspect.signature(original.forward)
    shapes = reexport.shapes_by_name(inputs.dynamic, args, kwargs, signature)
    captures = {
        mode: capture(original, args, kwargs, mode=mode, dynamic_shapes=shapes, kept=manifest.get("functions", ()))
        for mode in sorted(plans, key=lambda mode: mode != "training")
    }
    for mode, captured in captures.items():
        _check_fit(path, plans[mode], captured.graph)
    converted = rewrite(captures, plans, share_parameters=True, signature=signature)
    if held:
        quantised.restore(converted, path / quantised.FILE)
    return converted.train(manifest["training"])


def _facts(
    module: nn.Module, plan: Plan, swapped: bool, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The manifest but for its digests."""
    return {
        "schema": SCHEMA,
        "kind": "swapped" if swapped else "exported",
        "policy": plan.policy,
        "formats": {"high": plan.high, "low": plan.low},
        "mode": plan.mode,
        "training": module.training,
        "graph_digest": plan.graph_digest,
        "casts": len(plan.casts),
        "swaps": [{"module": s.module, "backend": s.backend, "recipe": s.recipe} for s in plan.swaps],
        "functions": sorted(module.functions) if isinstance(module, Converted) else [],
        "inputs": SavedInputs.of_call(module, args, kwargs).to_json(),
        "model": "",
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
    }


def _version(package: str) -> str:
    if package == "torch":  # with the build, which the package's metadata may leave out
        return str(torch.__version__)
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _export(program: torch.export.ExportedProgram, file: Path, inside: Mapping[str, str]) -> None:
    """Write a program and make sure that reading it will unpickle nothing."""
    try:
        torch.export.save(program, file, extra_files=dict(inside))
    except OSError:
        raise
    except Exception as error:
        raise InputError(
            f"the converted graph cannot be written by torch.export.save ({first_line(error)}): "
            "take and return tensors, numbers, tuples, lists and dicts, or register the class with torch.export"
        ) from error
    try:
        reexport.read_program(file)
    except InputError as error:  # torch writes some programs that it cannot read: better no file than that
        why = first_line(error.__cause__ or error)
        raise InputError(f"torch.export.save wrote a file that torch cannot read ({why}): convert otherwise") from error


def _plan_name(mode: Mode, plan: Plan) -> str:
    """`plan.yaml` is the plan of the policy's mode; the other mode's stands beside it."""
    return "plan.yaml" if mode == plan.mode else f"plan.{mode}.yaml"


def _source_from(model: str, folder: Path) -> str:
    """`model` with its file relative to the folder, so that both can be moved together."""
    file, colon, attribute = model.partition(":")
    if not file.endswith(".py"):
        return model
    return f"{Path(os.path.relpath(file, folder)).as_posix()}{colon}{attribute}"


def _from_source(path: Path, source: str) -> nn.Module:
    """The model built by its own source: executes it."""
    if not source:
        raise InputError(f"{path} does not say where the model's source is: call load(path, model) with a fresh model")
    file, colon, attribute = source.partition(":")
    here = f"{path / file}{colon}{attribute}" if file.endswith(".py") else source
    model = loader.load_model(here)
    if not isinstance(model, nn.Module):
        raise InputError(f"{here} is an exported program; the folder needs the nn.Module it was made from")
    return model


def _check_fit(path: Path, plan: Plan, graph: Graph) -> None:
    """All that the plan names has to be there: a changed source is told apart from a bad file."""
    known = {op.key for op in graph.ops} | {value for op in graph.ops for value in op.values}
    named = [key for key, _ in plan.formats] + [swap.op for swap in plan.swaps]
    read = [(each.value, each.consumers) for each in plan.casts] + [(each.value, each.consumers) for each in plan.folds]
    for value, consumers in read:
        named += [value, *(key for key in consumers if not key.startswith("output:"))]
    if missing := sorted({key for key in named if key not in known}):
        raise InputError(
            f"{path}: the plan names {missing[0]}, which this model has not ({len(missing)} in all): "
            "load it with the source it was converted from, or convert again"
        )
