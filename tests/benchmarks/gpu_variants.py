"""The ways a model is run by the GPU benchmark: as it is, under autocast, in bf16, by torchao, by our plans.

`variants` lists them for a mode; each builds a fresh model and gives `Variant`: the call that is one step (forward; in
training with backward), the bytes the model holds, and what is predicted of it. A plan is made on the meta device,
which needs no run; the model that it is applied to has the weights.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

import precision_audit as pa
from precision_audit.capture import capture
from precision_audit.records import Mode, Report
from precision_audit.rewrite import rewrite
from tests.benchmarks.gpu_measuring import first_line, held_bytes
from tests.benchmarks.gpu_models import Built

RECIPES = ("tensorwise", "rowwise", "rowwise_with_gw_hp")
BF16, FP8 = {"training": "bf16-training", "inference": "bf16-inference"}, "fp8-training-hopper"


@dataclass
class Variant:
    module: nn.Module
    step: Callable[[nn.Module], object]
    output: Callable[[], Tensor]
    held: int
    predicted: Mapping[str, Any]


class Skipped(Exception):
    """A variant that this machine cannot run, and why."""


class Workload:
    """One model in one mode on one device."""

    def __init__(self, built: Built, mode: Mode, device: str, row: str) -> None:
        self.make, self.args = built
        self.mode, self.device, self.row = mode, device, row
        self.plans = cache(self._plan)

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        with torch.device(self.device):
            return self.make().train(self.mode == "training")

    def variants(self) -> Iterator[tuple[str, Callable[[], Variant]]]:
        """Names and builders, the references first."""
        yield "fp32", self._plain
        yield "autocast bf16", lambda: self._plain(autocast=True)
        yield "bf16 throughout", lambda: self._plain(torch.bfloat16)
        yield f"plan {BF16[self.mode]}, converted", lambda: self._converted(BF16[self.mode])
        yield f"plan {BF16[self.mode]}, applied", lambda: self._applied(BF16[self.mode])
        if self.mode == "inference":
            yield "torchao fp8 rowwise weights and inputs", self._quantised
        else:
            for recipe in RECIPES:
                yield f"torchao {recipe} + autocast", lambda recipe=recipe: self._torchao(recipe)
            yield f"plan {FP8}, converted", lambda: self._converted(FP8)
            yield f"plan {FP8}, applied + autocast", lambda: self._applied(FP8)
            yield "TransformerEngine linears", self._transformer_engine

    def _plan(self, policy: str) -> Report:
        with torch.device("meta"):
            model = self.make()
        shapes = tuple(torch.empty(x.shape, dtype=x.dtype, device="meta") for x in self.args)
        return pa.audit(model, shapes, policy=policy, device=self.row, verify=False)

    def _variant(
        self, module: nn.Module, predicted: Mapping[str, Any], args: tuple[Tensor, ...] = (), autocast: bool = False
    ) -> Variant:
        given = args or self.args

        def region() -> contextlib.AbstractContextManager[object]:
            return torch.autocast(self.device, torch.bfloat16) if autocast else contextlib.nullcontext()

        def output() -> Tensor:
            with torch.no_grad(), region():
                return module(*given)

        def step(run: nn.Module) -> None:
            if self.mode == "inference":
                with torch.no_grad(), region():
                    run(*given)
                return
            with region():
                loss = run(*given).float().square().mean()
            loss.backward()
            for parameter in module.parameters():
                parameter.grad = None

        return Variant(module, step, output, held_bytes(module), predicted)

    def _plain(self, low: torch.dtype | None = None, autocast: bool = False) -> Variant:
        try:
            predicted = {} if autocast else predictions(self.plans(BF16[self.mode]), "low" if low else "high")
        except Exception as error:  # the measurement stands without it
            predicted = {"failed": first_line(error)}
        if low is None:
            return self._variant(self.model(), predicted, autocast=autocast)
        return self._variant(self.model().to(low), predicted, tuple(x.to(low) for x in self.args))

    def _converted(self, policy: str) -> Variant:
        report = self.plans(policy)
        captured = capture(self.model(), self.args, mode=self.mode)
        module = rewrite({self.mode: captured}, {self.mode: report.plan}, share_parameters=True)
        return self._variant(module, predictions(report, "plan"))

    def _applied(self, policy: str) -> Variant:
        report, model = self.plans(policy), self.model()
        if self.mode == "training" and policy != FP8:
            raise Skipped("a training plan without swaps is torch.autocast on the user's model: see that row")
        pa.apply(model, report)
        return self._variant(model, predictions(report, "plan"), autocast=self.mode == "training")

    def _torchao(self, recipe: str) -> Variant:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        config = Float8LinearConfig.from_recipe_name(recipe)
        if self.device == "cpu" and recipe == "rowwise_with_gw_hp":
            raise Skipped("torchao's rowwise_with_gw_hp asks for CUDA's autocast only")
        if self.device == "cpu":
            config = dataclasses.replace(config, emulate=True)
        report, model = self.plans(FP8), self.model()
        convert_to_float8_training(model, config=config, module_filter_fn=pa.module_filter_fn(report))
        same = any(swap.recipe == recipe for swap in report.plan.swaps)
        return self._variant(model, predictions(report, "plan") if same else {}, autocast=True)

    def _quantised(self) -> Variant:
        if self.device == "cpu":
            raise Skipped("torchao's fp8 inference needs a GPU with fp8")
        from torchao.quantization import Float8DynamicActivationFloat8WeightConfig, PerRow, quantize_

        model = self.model().bfloat16()
        quantize_(model, Float8DynamicActivationFloat8WeightConfig(granularity=PerRow()))
        return self._variant(model, {}, tuple(x.bfloat16() for x in self.args))

    def _transformer_engine(self) -> Variant:
        if any(importlib.util.find_spec(name) is None for name in ("transformer_engine", "transformer_engine_torch")):
            raise Skipped("TransformerEngine is not installed")
        import transformer_engine.pytorch as te

        model = self.model()
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if type(child) is nn.Linear:
                    new = te.Linear(child.in_features, child.out_features, bias=child.bias is not None)
                    new.weight = child.weight
                    if child.bias is not None:
                        new.bias = child.bias
                    setattr(parent, name, new)
        found = self._variant(model, {}, autocast=True)
        plain = found.step

        def step(run: nn.Module) -> None:
            with te.fp8_autocast(enabled=True):
                plain(run)

        def output() -> Tensor:
            with te.fp8_autocast(enabled=True):
                return found.output()

        return dataclasses.replace(found, step=step, output=output)


def predictions(report: Report, which: str) -> dict[str, Any]:
    """What the report predicts of the model in its high format, in the low one throughout, or under the plan."""
    end = {"high": "_high", "low": "_low", "plan": ""}[which]
    cost = report.cost
    if cost is not None:
        memory = getattr(cost, f"memory{end}")
        return {
            "seconds": getattr(cost, f"seconds{end}"),
            "bytes": memory.total,
            "bytes_by": dataclasses.asdict(memory),
        }
    charged = report.plan.predicted
    if charged is None or which == "low":
        return {}
    return {"seconds": charged.seconds_high if which == "high" else charged.seconds}
