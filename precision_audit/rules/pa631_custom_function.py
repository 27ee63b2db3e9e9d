"""PA631 custom function that autocast does not know

What it does: reports a `torch.autograd.Function` that multiplies matrices in a script with autocast, and whose
`forward` has no `torch.amp.custom_fwd`, or whose `backward` no `torch.amp.custom_bwd`.
Why it is a hazard: autocast casts inside `forward`, but not what `ctx.save_for_backward` keeps, and it is off in
`backward`: there an fp16 gradient meets an fp32 tensor and the product raises, or is computed in another format than
the forward's.
What to do: `@torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)` on forward and
`@torch.amp.custom_bwd(device_type="cuda")` on backward; leave `cast_inputs` out where the forward may run low.
References: PyTorch's automatic mixed precision examples, "Autocast and Custom Autograd Functions".
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from precision_audit.records import Finding
from precision_audit.rules.scripts import ScriptExample, found_at
from precision_audit.script import Script, known

_PRODUCTS = frozenset({"matmul", "mm", "bmm", "addmm", "baddbmm", "linear", "einsum", "conv1d", "conv2d", "conv3d",
                       "scaled_dot_product_attention", "mv", "addbmm"})  # fmt: skip


def lint(script: Script) -> Iterator[Finding]:
    if not any(name in known.AUTOCASTS and not _off(call) for call, name in script.calls()):
        return
    for node in ast.walk(script.tree):
        if isinstance(node, ast.ClassDef) and any(_is_function(script, base) for base in node.bases):
            yield from _of_class(script, node)


def _off(call: ast.Call) -> bool:
    return any(
        each.arg == "enabled" and isinstance(each.value, ast.Constant) and not each.value.value
        for each in call.keywords
    )


def _is_function(script: Script, base: ast.expr) -> bool:
    return script.dotted(base) in ("torch.autograd.Function", "torch.autograd.function.Function")


def _of_class(script: Script, node: ast.ClassDef) -> Iterator[Finding]:
    methods = {each.name: each for each in node.body if isinstance(each, ast.FunctionDef)}
    forward, backward = methods.get("forward"), methods.get("backward")
    if forward is None or backward is None or not _multiplies(forward) or "autocast" in ast.unparse(forward):
        return
    missing = [
        (each, word)
        for each, word in ((forward, "custom_fwd"), (backward, "custom_bwd"))
        if not any(word in ast.unparse(decorator) for decorator in each.decorator_list)
    ]
    for each, word in missing[:1]:
        inputs = ", cast_inputs=torch.float32" if word == "custom_fwd" else ""
        what = (
            f"{node.name} multiplies under autocast without {word} → its backward mixes formats, and raises or rounds"
        )
        fix = f'@torch.amp.{word}(device_type="cuda"{inputs})'
        fix += ' here, @torch.amp.custom_bwd(device_type="cuda") on backward' if len(missing) > 1 else " here"
        yield found_at(__name__, script, each, "warning", what, fix, function=each.name)


def _multiplies(node: ast.FunctionDef) -> bool:
    for each in ast.walk(node):
        if isinstance(each, ast.BinOp) and isinstance(each.op, ast.MatMult):
            return True
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr in _PRODUCTS:
            return True
    return False


def bad() -> ScriptExample:
    return ScriptExample(_SCRIPT.format("", "  # PA631", ""))


def good() -> ScriptExample:
    return ScriptExample(
        _SCRIPT.format(
            '    @torch.amp.custom_fwd(device_type="cuda")\n', "", '    @torch.amp.custom_bwd(device_type="cuda")\n'
        )
    )


_SCRIPT = """import torch

class Product(torch.autograd.Function):
    @staticmethod
{}    def forward(ctx, a, b):{}
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
{}    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        return grad @ b.t(), a.t() @ grad

def step(a, b):
    with torch.amp.autocast("cuda", dtype=torch.float16):
        return Product.apply(a, b)
"""
