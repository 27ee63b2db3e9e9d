"""The pipeline: capture → analyse → decide → plan → rewrite → verify → report.

`audit` runs all of it on a copy and reports; `convert` also hands the module back. The user's module is never changed,
and the converted one shares no parameter with it unless asked to.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from precision_audit import backends
from precision_audit import policy as policies
from precision_audit.ambient import precision_settings_kept, random_state_kept
from precision_audit.analyse import analyse
from precision_audit.analyse.training import STEPS, lesson_of
from precision_audit.capture import Captured, private_copy
from precision_audit.capture.accepts import check_model
from precision_audit.capture.origins import as_fake, has_weights
from precision_audit.capturing import captures as captures_of
from precision_audit.cost import cost as cost_of
from precision_audit.cost.layers import layers
from precision_audit.hardware import device as device_named
from precision_audit.hardware.local import resolved
from precision_audit.loader.checkpoint import check_parameters
from precision_audit.loader.sample_inputs import check_call
from precision_audit.plan.check import check
from precision_audit.planning import Planned, fitting_plan, planned
from precision_audit.records import Facts, Hardware, InputError, Mode, Plan, Policy, Report, kind_of
from precision_audit.report.assemble import assemble, provenance_of
from precision_audit.report.provenance import started_digest
from precision_audit.rewrite import rewrite
from precision_audit.rewrite.converted import Converted
from precision_audit.suppressions import read as read_suppressions
from precision_audit.verify.comparing import Teaching, compare
from precision_audit.verify.runs import Batch

Model = nn.Module | torch.export.ExportedProgram


@dataclass(frozen=True)
class Conversion:
    """What `convert` returns: the converted module, the report on it and the plan that made it."""

    module: Converted
    report: Report
    plan: Plan

    @property
    def graph(self) -> fx.Graph:
        """The FX graph of the module's present mode."""
        return self.module.graph


@dataclass(frozen=True)
class Request:
    """What is to be audited or converted, and how; the fields are the arguments of `convert`."""

    model: Model
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] | None = None
    policy: str | Path | Policy = "bf16-inference"
    device: str | None = None
    calibration: Iterable[Any] | None = None
    dynamic_shapes: Any = None
    loss: Callable[[Any], torch.Tensor] | None = None
    optimizer: Callable[..., torch.optim.Optimizer] | None = None
    steps: int | None = None
    verify: bool = True
    share_parameters: bool = False
    apply_plan: str | Path | Plan | None = None
    check_plan: Plan | None = None  # used like `apply_plan` where it fits; where it does not a plan is made
    hand_back: bool = False  # the converted module is what is wanted: no stand-in for a library that is not there
    provenance: Mapping[str, str] | None = None


def audit(
    model: Model,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    policy: str | Path | Policy = "bf16-inference",
    device: str | None = None,
    calibration: Iterable[Any] | None = None,
    dynamic_shapes: Any = None,
    loss: Callable[[Any], torch.Tensor] | None = None,
    optimizer: Callable[..., torch.optim.Optimizer] | None = None,
    steps: int | None = None,
    **options: Any,
) -> Report:
    """Audit `model` and report; the model is not changed. Arguments and errors as for `convert`.

    A model without weights (on the meta device) is captured, decided and planned; the report says that nothing was run.
    """
    _refuse_unknown("audit", options)
    request = Request(
        model, args, kwargs, policy, device, calibration, dynamic_shapes, loss, optimizer, steps, **options
    )
    return run(request)[0]


def convert(
    model: Model,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    policy: str | Path | Policy = "bf16-inference",
    device: str | None = None,
    calibration: Iterable[Any] | None = None,
    dynamic_shapes: Any = None,
    loss: Callable[[Any], torch.Tensor] | None = None,
    optimizer: Callable[..., torch.optim.Optimizer] | None = None,
    steps: int | None = None,
    **options: Any,
) -> Conversion:
    """Convert `model` under `policy`, verify the result and report.

    `args`, `kwargs`: example inputs. `policy`: a shipped name, a path or a `Policy`. `device`: what the plan is made
    for. `calibration`: further inputs, each an `args` tuple, `(args, kwargs)`, a dict of `kwargs`, or the one tensor.
    `dynamic_shapes`: as for `torch.export.export`. `loss(output)` gives a scalar, `optimizer(parameters)` an
    optimizer; with a policy of mode training, or where one of `optimizer` and `steps` is given, that many real steps
    (3) are taken on a copy as training evidence. Further options: `verify=False` leaves the comparison out;
    `share_parameters=True` makes the result hold the model's own parameters; `apply_plan` uses a plan that was written
    before instead of making one; `provenance` says where model, weights and inputs came from, in the report's words.

    The result is an `nn.Module` with the same state-dict keys, inputs and outputs; under a training policy it holds
    fp32 parameters and switches between `.train()` and `.eval()`. The user's module is not changed. A name at its top
    that a converted module has itself (`graph`, `code`) ends in an underscore in op keys, plans and policies.

    Raises InputError, in one line, for anything that cannot be used.
    """
    _refuse_unknown("convert", options)
    request = Request(
        model, args, kwargs, policy, device, calibration, dynamic_shapes, loss, optimizer, steps, **options
    )
    report, module = run(replace(request, hand_back=True))
    if module is None:
        raise InputError(
            f"{type(model).__name__} has no weights (it is on the meta device): expected a model to convert; "
            "load its weights, or use audit, which plans without them"
        )
    return Conversion(module, report, report.plan)


def run(request: Request) -> tuple[Report, Converted | None]:
    """All stages; the module is None for a model without weights."""
    check_arguments(request.args, request.kwargs)
    if request.loss is not None and not callable(request.loss):
        raise InputError(
            f"loss is {kind_of(request.loss)}; expected a function of the model's output that gives a scalar"
        )
    with random_state_kept(), precision_settings_kept():
        return _run(request)


def _run(request: Request) -> tuple[Report, Converted | None]:
    model, args, kwargs = request.model, *usable((tuple(request.args), dict(request.kwargs or {})))
    policy = policies.load(request.policy)
    if request.hand_back:
        backends.check_policy(policy)
    hardware, device_from = device_of(request.device, policy)
    batches = batches_of(args, kwargs, request.calibration)
    check_model(model)
    if isinstance(model, nn.Module):
        for index, batch in enumerate(batches):
            which = f"calibration batch {index - 1}" if index else "example inputs"
            check_call(model, *batch, f"{type(model).__name__}, {which}")
    check_parameters(model)
    original = private_copy(model) if isinstance(model, nn.Module) and not request.share_parameters else model
    digest = started_digest(original)
    weights = has_weights(original)
    if isinstance(original, nn.Module) and not weights:
        original, args, kwargs = as_fake(original, args, kwargs)

    found = captures_of(original, (args, kwargs), policy, request.dynamic_shapes, request.loss)
    captures = found.modes
    weights_digest = digest()  # before anything runs: a forward pass in training mode writes to buffers
    suppressions = read_suppressions(captures[policy.mode].graph, model)
    committed = fitting_plan(request.apply_plan, policy)
    checked = request.check_plan
    if committed is None and checked is not None and not check(checked, captures[policy.mode].graph, policy, hardware):
        committed = checked
    how = (request.loss, request.optimizer, request.steps)
    lesson = lesson_of(original, captures, (args, kwargs), policy.mode, how, request.dynamic_shapes, weights)
    facts = analyse(captures[policy.mode], policy, hardware, batches if weights else (), lesson, request.loss)
    facts = replace(facts, suppressions=suppressions, functions=found.functions)
    made = _plans(captures, policy, hardware, committed, facts)
    signature = inspect.signature(original.forward) if isinstance(original, nn.Module) else None
    plans = {mode: each.plan for mode, each in made.items()}
    share = request.share_parameters
    converted = (
        rewrite(captures, plans, share_parameters=share, signature=signature, missing=found.missing)
        if weights
        else None
    )
    verification = None
    if request.verify and converted is not None:
        teaching = Teaching(request.loss, request.optimizer, request.steps or STEPS, facts)
        verification = compare(original, captures, made, converted, policy, hardware, batches, teaching, signature)
    said = dict(request.provenance or {})
    if not weights:
        said["weights"] = "no weights (meta device), so nothing was run"
    meta = provenance_of(original, policy, hardware, device_from, made[policy.mode].plan, facts, batches, said)
    meta = replace(meta, weights_digest=weights_digest)
    graph = captures[policy.mode].graph
    report = assemble(graph, made[policy.mode], verification, policy, meta, said, hardware.kernels)
    plan = made[policy.mode].plan
    spent = cost_of(graph, plan, policy, hardware, facts, layers(graph, plan, policy, hardware))
    report = replace(report, facts=facts, training=facts.training, quantised=facts.quantised, cost=spent)
    return report, converted


def usable(batch: Batch) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The batch with copies of tensors that were made in inference mode: those have no history and none can begin."""
    made: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_map_only(
        torch.Tensor, lambda value: value.clone() if value.is_inference() else value, (batch[0], dict(batch[1]))
    )
    return made


def _plans(
    captures: Mapping[Mode, Captured], policy: Policy, hardware: Hardware, committed: Plan | None, facts: Facts
) -> dict[Mode, Planned]:
    """A plan per captured mode: the policy's own first, since its findings have remedies for the other one too."""
    main = planned(captures[policy.mode].graph, policy, hardware, committed, facts)
    others = {
        mode: planned(each.graph, policy, hardware, committed, further=main.findings)
        for mode, each in captures.items()
        if mode != policy.mode
    }
    return {policy.mode: main, **others}


def _refuse_unknown(function: str, options: Mapping[str, Any]) -> None:
    known = [each.name for each in fields(Request)]
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.0)[0]
            raise InputError(f"{function} has no argument {name}; did you mean {near}?")


def check_arguments(args: Any, kwargs: Any) -> None:
    """A tensor is a sequence of its rows, and a dict of its keys: neither is what was meant."""
    if not isinstance(args, tuple | list):
        mend = "give them as kwargs=" if isinstance(args, Mapping) else "write (x,)"
        raise InputError(f"args is {kind_of(args)}; expected a tuple of the model's arguments: {mend}")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise InputError(f"kwargs is {kind_of(kwargs)}; expected a dict of arguments by name")


def device_of(name: str | None, policy: Policy) -> tuple[Hardware, str]:
    """The device to plan for, and who named it."""
    if name is not None and not isinstance(name, str):
        raise InputError(f'device is {kind_of(name)}; expected a name of `list devices`, such as "h100"')
    if name is not None:
        return resolved(device_named(name)), "given"
    if policy.device:
        return resolved(device_named(policy.device)), "policy"
    return resolved(device_named("local")), "default"


def batches_of(args: tuple[Any, ...], kwargs: dict[str, Any], calibration: Iterable[Any] | None) -> list[Batch]:
    """The example first, then the calibration batches, each as (args, kwargs)."""
    batches: list[Batch] = [(args, kwargs)]
    if calibration is not None and not isinstance(calibration, Iterable):
        raise InputError(f"calibration is {kind_of(calibration)}; expected an iterable of batches, such as a list")
    for index, batch in enumerate(() if calibration is None else calibration):
        if isinstance(batch, tuple) and len(batch) == 2 and isinstance(batch[0], tuple) and isinstance(batch[1], dict):
            batches.append(batch)
        elif isinstance(batch, (tuple, list)):
            batches.append((tuple(batch), {}))
        elif isinstance(batch, Mapping):
            batches.append(((), dict(batch)))
        elif isinstance(batch, torch.Tensor):
            batches.append(((batch,), {}))
        else:
            raise InputError(
                f"calibration batch {index} is {kind_of(batch)}; expected a tuple of arguments, a dict of "
                "keyword arguments, a tensor, or (args, kwargs)"
            )
    return [usable(batch) for batch in batches]
