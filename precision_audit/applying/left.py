"""What of a plan a user's own model does not express, in words: which ops, where they are written, what to do.

Takes plan, graph and the choice that was made; gives `NotExpressed` records, one per module and kind of difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from torch import nn

from precision_audit import ops
from precision_audit.records import Graph, Op, Plan, Source
from precision_audit.records.applied import NotExpressed

if TYPE_CHECKING:
    from precision_audit.applying.choosing import Choice


def left_of_inference(choice: Choice, graph: Graph | None, plan: Plan, said: str) -> Iterator[NotExpressed]:
    """Ops outside the islands that run in another format than planned. `said`: why a better choice was given up."""
    if graph is None:
        return
    planned = dict(plan.formats)
    differing = [
        op
        for op in graph.ops
        if op.key in choice.runs
        and planned.get(op.key)
        and choice.runs[op.key] not in (planned[op.key], choice.planned[op.key])
    ]
    for (wanted, runs), modules in _alike(differing, choice.planned, choice.runs):
        module, group = next(iter(modules.items()))
        why = choice.reasons.get(module) or choice.reasons.get("", "")
        where = f"{module}.forward" if module else "the model's forward"
        more = f" (and likewise in {len(modules) - 1} more)" if len(modules) > 1 else ""
        reason = f"written in {where}{more}, where its operands arrive in {runs}" + (f"; {why}" if why else "")
        if said:
            reason += f"; with more hooks the model raised {said}"
        yield NotExpressed(
            tuple(op.key for each in modules.values() for op in each),
            wanted,
            runs,
            _sources(group),
            reason,
            f"cast the operands there to {wanted}, or take the converted module (convert), which does",
        )


def left_of_training(model: nn.Module, plan: Plan, graph: Graph | None) -> tuple[list[NotExpressed], tuple[str, ...]]:
    """All formats but those of swaps: autocast's to choose. Those it chooses otherwise than the plan come apart."""
    device = plan.autocast_device or next((p.device.type for p in model.parameters()), "cuda")
    device = device if device in ("cpu", "cuda") else "cuda"
    region = f'torch.autocast("{device}", dtype=torch.{_TORCH.get(plan.low, plan.low)})'
    records = {op.key: op for op in graph.ops} if graph else {}
    swapped = {swap.op for swap in plan.swaps}
    found: dict[str, list[str]] = {"low": [], "as planned": [], "fp32": []}
    for key, chosen in plan.formats:
        if "/" in key and key not in swapped and plan.high != plan.low:
            policy = _policy(key, records.get(key), device)
            if chosen == plan.high and policy == "low":
                found["low"].append(key)
            elif chosen == plan.low:
                found["fp32" if policy.startswith("fp32") and not plan.autocast_device else "as planned"].append(key)
    left = [
        NotExpressed(
            tuple(keys), planned, runs, _sources([records[key] for key in keys if key in records]), reason, remedy
        )
        for keys, planned, runs, reason, remedy in (
            (
                found["as planned"], plan.low, "",
                f"parameters stay in {plan.high} for the optimizer, and hooks would cast them anew in every step",
                f"run forward and loss under {region}",
            ),
            (
                found["low"], plan.high, f"{plan.low} under autocast",
                "torch.autocast lowers every op of this kind",
                f'inside the region write with torch.autocast("{device}", enabled=False): around these lines, their '
                "inputs as .float()",
            ),
            (
                found["fp32"], plan.low, f"{plan.high} under autocast",
                "torch.autocast keeps every op of this kind in fp32: slower than planned, no less exact",
                "take the converted module (convert) where its time matters",
            ),
        )
        if keys
    ]  # fmt: skip
    half = sorted({swap.recipe for swap in plan.swaps if swap.recipe.endswith("_gw_hp")}) if device == "cpu" else []
    on_cpu = [f"torchao's {name} asks for CUDA's autocast only: on a CPU run it without the region" for name in half]
    return left, (
        *on_cpu,
        f"train under {region}; parameters, optimizer and state dict stay as they are",
    )


_TORCH = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def _policy(key: str, op: Op | None, device: str) -> str:
    """torch.autocast's policy for an op."""
    name = op.op if op else key.rpartition("/")[2].partition("#")[0]
    row = ops.row(name)
    overload = op.target.rpartition(".")[2] if op else "default"
    return row.autocast("cuda" if device == "cuda" else "cpu", overload) if row else ""


def _alike(
    found: list[Op], planned: Mapping[str, str], runs: Mapping[str, str]
) -> Iterator[tuple[tuple[str, str], dict[str, list[Op]]]]:
    """Ops by planned and present format and by module; modules of one type that differ in the same lines together."""
    by_module: dict[tuple[str, str, str], list[Op]] = {}
    for op in found:
        by_module.setdefault((op.module, planned[op.key], runs[op.key]), []).append(op)
    layers: dict[tuple[object, ...], dict[str, list[Op]]] = {}
    for (module, wanted, has), group in by_module.items():
        sort = (wanted, has, group[0].module_type, tuple(op.op for op in group), _sources(group))
        layers.setdefault(sort, {})[module] = group
    for (to, runs_in, *_), modules in layers.items():
        yield (str(to), str(runs_in)), modules


def _sources(group: list[Op]) -> tuple[Source, ...]:
    return tuple(dict.fromkeys(op.source for op in group if op.source is not None))
