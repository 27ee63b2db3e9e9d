"""PA629 deprecated names of mixed precision

What it does: reports the use of `torch.cuda.amp.autocast`, `GradScaler`, `custom_fwd` and `custom_bwd`, of their
siblings in `torch.cpu.amp`, and of `apex.amp`, with the line that replaces it.
Why it is a hazard: each use warns, the names will be removed, and their arguments stand in another order: the first of
`torch.cuda.amp.autocast` is `enabled`, that of `torch.amp.autocast` the device. apex.amp is no longer maintained.
What to do: the replacement that the finding spells out.
References: torch.amp; PyTorch 2.4's release notes, deprecation of torch.cuda.amp; NVIDIA/apex, "Deprecated: use
torch.amp".
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from precision_audit.records import Finding
from precision_audit.rules.scripts import ScriptExample, found_at
from precision_audit.script import Script

_OLD = re.compile(r"^torch\.(cuda|cpu)\.amp\.(?:\w+\.)?(autocast|GradScaler|custom_fwd|custom_bwd)$")
_APEX = re.compile(r"^apex\.amp\.(initialize|scale_loss|master_params)$")
# Arguments by place of the old names; the new ones take a device first, so that all of these become keywords.
_PLACES = {
    "autocast": ("enabled", "dtype", "cache_enabled"),
    "GradScaler": ("init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled"),
}
_INSTEAD = {
    "initialize": 'leave {0} and {1} as they are; torch.amp.autocast("cuda", dtype=torch.float16) around the forward, '
    'scaler = torch.amp.GradScaler("cuda") around backward and step',
    "scale_loss": "scaler.scale({0}).backward(), scaler.step({1}), scaler.update()",
    "master_params": "the model's parameters(), after scaler.unscale_({0})",
}
_GIVEN = {"initialize": ("model", "optimizer"), "scale_loss": ("loss", "optimizer"), "master_params": ("optimizer",)}


def lint(script: Script) -> Iterator[Finding]:
    called = {id(call.func): call for call, _ in script.calls()}
    for node in _used(script):
        name = script.dotted(node)
        old, apex = _OLD.match(name), _APEX.match(name)
        if old:
            fix = _replacement(old[1], old[2], called.get(id(node)))
            yield found_at(__name__, script, node, "note", f"{name} is deprecated → a FutureWarning at each use", fix)
        elif apex:
            what = f"{name}: apex.amp is deprecated and no longer maintained"
            fix = _INSTEAD[apex[1]].format(*_given(apex[1], called.get(id(node))))
            yield found_at(__name__, script, node, "note", what, fix)


def _given(name: str, call: ast.Call | None) -> list[str]:
    """What the script hands to a function of apex, in the script's words."""
    written = [ast.unparse(each) for each in call.args] if call is not None else []
    named = {each.arg: ast.unparse(each.value) for each in call.keywords} if call is not None else {}
    return [written[i] if i < len(written) else named.get(word, word) for i, word in enumerate(_GIVEN[name])]


def _used(script: Script) -> Iterator[ast.expr]:
    """What is called, put on a function, given another name or bound by `partial`: a comparison uses nothing."""
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Call):
            yield node.func
            yield from node.args[:1] if script.dotted(node.func) == "functools.partial" else ()
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from node.decorator_list
        elif isinstance(node, ast.Assign):
            yield node.value


def _replacement(device: str, name: str, call: ast.Call | None) -> str:
    """The call as torch.amp takes it."""
    if name in ("custom_fwd", "custom_bwd"):
        given = [f"cast_inputs={ast.unparse(each.value)}" for each in (call.keywords if call else []) if each.arg]
        return f"torch.amp.{name}({', '.join([f'device_type={device!r}', *given])})".replace("'", '"')
    arguments = [f'"{device}"']
    if call is not None:
        arguments += [f"{key}={ast.unparse(value)}" for key, value in zip(_PLACES[name], call.args, strict=False)]
        arguments += [f"{each.arg}={ast.unparse(each.value)}" if each.arg else f"**{ast.unparse(each.value)}"
                      for each in call.keywords]  # fmt: skip
    return f"torch.amp.{name}({', '.join(arguments)})"


def bad() -> ScriptExample:
    return ScriptExample("from torch.cuda.amp import GradScaler\n\nscaler = GradScaler(2.0**10)  # PA629\n")


def good() -> ScriptExample:
    return ScriptExample('import torch\n\nscaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)\n')
