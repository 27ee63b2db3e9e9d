"""PA416 bias dropped by a quantisation config

What it does: reports `quantize_` with torchao's `MXFP8TrainingOpConfig` over a model that may have linears with a bias,
and a `Float8BlockwiseLinear` that is made with one.
Why it is a hazard: up to torchao 0.18 both compute x·W transposed and leave the bias out, without a word: outputs are
off by it, and it gets no gradient. The state dict still holds it, so that nothing shows.
What to do: pass a `filter_fn` that takes only linears without a bias, build these linears with `bias=False`, or add the
bias behind the product; `Float8TrainingOpConfig` and `convert_to_float8_training` keep it.
References: pytorch/ao issue 4846 and PR 4847; torchao 0.18, prototype/blockwise_fp8_training/linear.py.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from precision_audit.records import Finding, Severity
from precision_audit.rules.scripts import ScriptExample, found_at
from precision_audit.script import Script

_CONFIG = "MXFP8TrainingOpConfig"
_BLOCKWISE = "Float8BlockwiseLinear"
_LINEAR = ("torch.nn.Linear", "torch.nn.modules.linear.Linear")


def lint(script: Script) -> Iterator[Finding]:
    calls = list(script.calls())
    linears = [_has_bias(call) for call, name in calls if name in _LINEAR]
    for call, name in calls:
        if not name.startswith("torchao."):
            continue
        last = name.split(".")[-1]
        if last == _BLOCKWISE and _has_bias(call):
            what = f"{_BLOCKWISE} with a bias → its forward ignores it"
            yield found_at(__name__, script, call, "warning", what, "bias=False, and add the bias behind the product")
        elif last == "quantize_" and not _filtered(call) and _made_of(script, calls, call, _CONFIG):
            yield from _over_linears(script, call, linears)


def _over_linears(script: Script, call: ast.Call, linears: list[bool]) -> Iterator[Finding]:
    """Of a model whose linears the file makes it is known whether one has a bias."""
    if linears and not any(linears):
        return
    severity: Severity = "warning" if linears else "note"
    which = "a linear of this file has a bias" if linears else "a linear with a bias, if the model has one"
    what = f"{_CONFIG} drops the bias silently (torchao up to 0.18): {which} → its outputs are off by it"
    keeps = "filter_fn=lambda m, _: isinstance(m, torch.nn.Linear) and m.bias is None"
    yield found_at(__name__, script, call, severity, what, keeps)


def _has_bias(call: ast.Call) -> bool:
    given = next((each.value for each in call.keywords if each.arg == "bias"), None)
    given = given if given is not None else call.args[2] if len(call.args) > 2 else None
    return not (isinstance(given, ast.Constant) and given.value in (False, None))


def _filtered(call: ast.Call) -> bool:
    return len(call.args) > 2 or any(each.arg in ("filter_fn", None) for each in call.keywords)


def _made_of(script: Script, calls: list[tuple[ast.Call, str]], call: ast.Call, config: str) -> bool:
    """Whether the call is handed that config, there or by a name that the file gives it."""
    made = {id(each) for each, name in calls if config in name.split(".") and name.startswith("torchao.")}
    given = [*call.args[1:], *(each.value for each in call.keywords if each.arg == "config")]
    names = {each.id for each in given if isinstance(each, ast.Name)}
    bound = [
        node.value
        for node in ast.walk(script.tree)
        if isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id in names for target in node.targets)
    ]
    return any(id(each) in made for each in (*given, *bound))


def bad() -> ScriptExample:
    return ScriptExample(_SCRIPT.format("nn.Linear(64, 64)", "quantize_(model, config)  # PA416"))


def good() -> ScriptExample:
    return ScriptExample(_SCRIPT.format("nn.Linear(64, 64, bias=False)", "quantize_(model, config)"))


_SCRIPT = """from torch import nn
from torchao.prototype.moe_training.config import MXFP8TrainingOpConfig, MXFP8TrainingRecipe
from torchao.quantization import quantize_

model = nn.Sequential({}, nn.ReLU())
config = MXFP8TrainingOpConfig.from_recipe(MXFP8TrainingRecipe.MXFP8_RCEIL)
{}
"""
