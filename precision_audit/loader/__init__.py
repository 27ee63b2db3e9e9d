"""The loader: from what the user typed as MODEL to a module, its inputs and everything else the file declares.

Takes `model.py`, `model.py:attr`, `package.module:attr` or `file.pt2`, with the texts of `--input`, a checkpoint and
calibration data; gives `Loaded`. `attr` (dots allowed) is a module, a class, a factory without arguments, an
`fx.GraphModule` or an `ExportedProgram`. A file without `attr` is looked up by the names of `NAMES`.

Executes the user's file (see `user_code.py` for how, and for what is never executed). Never runs the model on real
data unless fake tensors have already said that it will fail, and never changes its mode. Every refusal is one
`InputError` that names what was looked for, where, and what to add.
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from precision_audit.loader import checkpoint as checkpoints
from precision_audit.loader import guess, inputs, sample_inputs, target, trial
from precision_audit.loader.target import Model
from precision_audit.loader.user_code import first_line, running, where
from precision_audit.records import InputError, kind_of

# The names that a model file may declare, in the order in which they are looked up.
NAMES = {
    "build_model": "function without arguments that returns the model",
    "get_model": "the same, second name",
    "model": "the model, its class, or a function that returns it; else the only nn.Module class defined in the file",
    "example_inputs": "inputs of forward, or a function that returns them: a tuple or list of arguments, a dict of "
    "keyword arguments, one tensor, or (args, kwargs); else the model's own dummy_inputs; else usual shapes are tried",
    "dynamic_shapes": "which dimensions of example_inputs vary, as torch.export.export takes it",
    "calibration_batches": "iterable of further inputs, each in a form of example_inputs, or a function returning it",
    "loss": "function of the model's output that returns a scalar",
    "make_optimizer": "function of the parameters that returns an optimizer",
    "metric": "function of the model that returns a number to compare",
}
_BESIDE = tuple(NAMES)[3:]  # what is wanted besides the model


@dataclass(frozen=True)
class Loaded:
    """A model ready for the pipeline. `messages` are lines for stderr: what was assumed, and how to say it instead."""

    model: Model
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    calibration: Iterable[tuple[tuple[Any, ...], dict[str, Any]]] | None
    loss: Callable[[Any], torch.Tensor] | None
    optimizer: Callable[..., torch.optim.Optimizer] | None
    metric: Callable[..., Any] | None
    dynamic_shapes: Any
    sizes: dict[str, int]  # named dimensions of --input and their example sizes
    source: str  # MODEL as it was resolved: `model.py:build_model`
    weights_note: str
    inputs_note: str
    made_up: bool  # the inputs' shapes are the tool's guess
    messages: tuple[str, ...] = ()

    @property
    def provenance(self) -> dict[str, str]:
        """What the report says about where model, weights and inputs came from."""
        return {
            "model": self.source,
            "weights": self.weights_note,
            "inputs": self.inputs_note,
            "made_up": "inputs" if self.made_up else "",
        }


def load(
    spec: str,
    *,
    input_texts: Sequence[str] = (),
    checkpoint: str | Path | None = None,
    calibration_data: str | Path | None = None,
) -> Loaded:
    """Load MODEL; raises InputError, in one line, for anything that cannot be used. Weights that the model draws are
    drawn under one seed, so that a report can be reproduced."""
    torch.manual_seed(inputs.SEED)
    model, source, declared, messages = _resolve(spec)
    made_by = source.rpartition(":")[2] if declared else ""
    weights = f"weights as {made_by} made them (no --checkpoint)" if declared else "weights of the .pt2 file"
    if checkpoint is not None:
        if not isinstance(model, nn.Module):
            raise InputError(f"--checkpoint {checkpoint}: {source} is an exported program, which holds its own weights")
        weights = checkpoints.load(model, checkpoint)
    checkpoints.check_parameters(model)
    return _assemble(
        model,
        source,
        declared,
        weights=weights,
        messages=messages,
        input_texts=input_texts,
        calibration_data=calibration_data,
    )


def load_model(spec: str) -> Model:
    """Only the model of MODEL: no inputs are looked for."""
    return _resolve(spec)[0]


def _resolve(spec: str) -> tuple[Model, str, dict[str, Any], list[str]]:
    """The model, its resolved name, what its file declares beside it, and lines for stderr."""
    path, attribute = target.split(spec)
    if path.endswith(".pt2"):
        return target.program(Path(path), attribute), path, {}, []
    user = target.import_target(path, attribute, _BESIDE)
    name = attribute or target.look_up(user)
    source = f"{user.name}:{name}"
    with running(f"building {source}"):
        model = target.instance(target.attribute(user, name), source)
    declared = {key: getattr(user.module, key, None) for key in _BESIDE}
    return model, source, declared, [user.skipped] if user.skipped else []


def _assemble(
    model: Model,
    source: str,
    declared: dict[str, Any],
    *,
    weights: str,
    messages: list[str],
    input_texts: Sequence[str],
    calibration_data: str | Path | None,
) -> Loaded:
    """Find the inputs and put everything together."""
    module = model if isinstance(model, nn.Module) else model.module(check_guards=False)
    functions = {key: _function(declared.get(key), key, source) for key in ("loss", "make_optimizer", "metric")}
    batches = sample_inputs.batches(declared.get("calibration_batches"), module, source)
    found = _inputs(model, module, source, declared=declared, batches=batches, texts=input_texts)
    if calibration_data is not None:
        batches = sample_inputs.from_file(calibration_data, module, found.args, found.kwargs)
    more = f"calibration data {Path(calibration_data).name}" if calibration_data else "calibration_batches"
    return Loaded(
        model=model,
        args=found.args,
        kwargs=found.kwargs,
        calibration=batches,
        loss=functions["loss"],
        optimizer=functions["make_optimizer"],
        metric=functions["metric"],
        dynamic_shapes=found.dynamic_shapes,
        sizes=found.sizes,
        source=source,
        weights_note=weights,
        inputs_note=found.note if batches is None or more in found.note else f"{found.note}, {more}",
        made_up=found.made_up,
        messages=tuple(filter(None, (*messages, found.message, batches.left_out if batches else ""))),
    )


@dataclass(frozen=True)
class _Inputs:
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    note: str
    made_up: bool = False
    dynamic_shapes: Any = None
    sizes: dict[str, int] = field(default_factory=dict)
    message: str = ""


def _inputs(
    model: Model,
    module: nn.Module,
    source: str,
    *,
    declared: dict[str, Any],
    batches: sample_inputs.Batches | None,
    texts: Sequence[str],
) -> _Inputs:
    """The first of: --input, example_inputs, an exported program's own, dummy_inputs, calibration, a guess."""
    found: _Inputs | None = None
    given = declared.get("example_inputs")
    if texts:
        made = inputs.make(module, texts)
        found = _Inputs(made.args, made.kwargs, made.note, False, made.dynamic_shapes, made.sizes)
    elif given is not None:
        args, kwargs = sample_inputs.example(given, "example_inputs", source)
        shapes = declared.get("dynamic_shapes")
        if inspect.isroutine(shapes):
            with running(f"{source.rpartition(':')[0]}: dynamic_shapes"):
                shapes = shapes()
        found = _Inputs(args, kwargs, "1 batch from example_inputs", dynamic_shapes=shapes)
    elif not isinstance(model, nn.Module):
        (args, kwargs), filled = sample_inputs.of_program(model)
        note = f"made up in the exported program's shapes, seed {inputs.SEED}: {filled}"
        return _Inputs(args, kwargs, note if filled else "the exported program's own inputs", made_up=bool(filled))
    elif (own := sample_inputs.own_inputs(module, source)) is not None:
        found = _Inputs(*own, "dummy_inputs of the model")
    elif batches is not None and (first := next(iter(batches), None)) is not None:
        found = _Inputs(*first, "the first of calibration_batches")
    if found is None:
        return _guessed(module, source)
    _check(model, module, found, source)
    return found


def _check(model: Model, module: nn.Module, found: _Inputs, source: str) -> None:
    """InputError with the model's own error when it does not take the inputs."""
    sample_inputs.check_call(module, found.args, found.kwargs, source)
    checked = model if isinstance(model, nn.Module) else model.module()
    error = trial.refusal(checked, found.args, found.kwargs)
    if error is not None:
        described = sample_inputs.described(found.args, found.kwargs)
        raise InputError(
            f"{where(error)}{source}: forward with {described} ({found.note.split(',')[0]}) failed: "
            f"{first_line(error)}; give inputs that it takes with --input"
        ) from error


def _guessed(module: nn.Module, source: str) -> _Inputs:
    specs = guess.guess(module, source)
    made = inputs.from_specs(module, specs, {})
    command = " ".join(f"--input {spec.text}" for spec in made.specs)
    note = made.note.replace("from --input", "(no inputs given, usual shapes tried)")
    message = f"no inputs given: these fit, values made up: precision-audit {shlex.quote(source)} {command}"
    return _Inputs(
        made.args,
        made.kwargs,
        note if command else "forward takes none",
        bool(command),
        message=message if command else "",
    )


def _function(value: Any, name: str, source: str) -> Any:
    if value is not None and not callable(value):
        raise InputError(f"{source.rpartition(':')[0]}: {name} is {kind_of(value)}; expected {NAMES[name]}")
    return value
