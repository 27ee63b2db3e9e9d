"""PA628 a tied weight becomes two

What it does: reports an output weight that is made as a copy of the embedding's (`nn.Parameter(embed.weight.clone())`,
`copy.deepcopy(embed.weight)`) or over its memory (`nn.Parameter(embed.weight)`, `head.weight.data =
embed.weight.data`), a loop over modules that gives each a new `nn.Parameter`, and a tied weight that gets one.
Why it is a hazard: a tie is one Parameter under two names. Copies start equal and drift apart from the first step, the
model has more parameters than its checkpoint, and a cast module by module splits what was tied. Two Parameters over one
memory have two optimizer states, and `.half()` or `.to()` gives each a memory of its own.
What to do: `head.weight = embed.weight`; to cast in a loop, `m.weight.data = m.weight.data.half()`, which keeps the
Parameter, or `model.half()`.
References: Press and Wolf, "Using the Output Embedding to Improve Language Models"; torch.nn.Module.to.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from precision_audit.records import Finding
from precision_audit.rules.scripts import ScriptExample, found_at
from precision_audit.script import Script

_EMBEDDING = re.compile(r"(?i)(emb|wte|tok|word)")
_COPIES = ("clone", "half", "bfloat16", "float", "to", "detach", "double", "contiguous", "type", "copy")
_MODULES = ("modules", "named_modules", "children", "named_children")


def lint(script: Script) -> Iterator[Finding]:
    tied = set(_ties(script))
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Attribute):
            yield from _copied(script, node, node.targets[0])
            yield from _parted(script, node, node.targets[0], tied)
        elif isinstance(node, ast.For) and _over_modules(node.iter):
            yield from _new_parameters(script, node)


def _copied(script: Script, node: ast.Assign, target: ast.Attribute) -> Iterator[Finding]:
    """An assignment to `a.weight` or `a.weight.data` of what is read from another module's weight."""
    shared = target.attr == "data" and isinstance(target.value, ast.Attribute)
    owner = target.value if shared else target
    assert isinstance(owner, ast.Attribute)
    source = _over_memory(node.value) if shared else _copy_of(script, node.value)
    if source is None and not shared:
        source, shared = _rewrapped(script, node.value), True
    if source is None or owner.attr != source.attr or not _tied(owner, source):
        return
    to, of = ast.unparse(owner), ast.unparse(source)
    if shared:
        what = f"{to} and {of} share memory but are two parameters → two optimizer states, parted by any cast"
    else:
        what = f"{to} is a copy of {of} → the two drift apart from the first step"
    yield found_at(__name__, script, node, "warning", what, f"{to} = {of}")


def _ties(script: Script) -> Iterator[str]:
    """The ends of the names that the file ties: `head.weight` and `embed.weight`."""
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute) and node.value.attr == "weight":
            for target in node.targets:
                if isinstance(target, ast.Attribute) and target.attr == "weight":
                    yield from (_end(each) for each in (target, node.value))


def _end(weight: ast.expr) -> str:
    return ".".join(ast.unparse(weight).split(".")[-2:])


def _parted(script: Script, node: ast.Assign, target: ast.Attribute, tied: set[str]) -> Iterator[Finding]:
    """One of two tied weights gets a new parameter, computed from itself."""
    source = _copy_of(script, node.value)
    name = ast.unparse(target)
    if source is None or ast.unparse(source) != name or "." not in _end(target) or _end(target) not in tied:
        return
    what = f"{name} is tied to another weight and gets a parameter of its own → the two part"
    yield found_at(__name__, script, node, "warning", what, f"{name}.data = {_data(node.value, name)}")


def _data(value: ast.expr, name: str) -> str:
    """`m.weight.data.half()` of `nn.Parameter(m.weight.half())`."""
    cast = ast.unparse(value.args[0]) if isinstance(value, ast.Call) else name
    return cast if ".data" in cast else cast.replace(name, f"{name}.data", 1)


def _copy_of(script: Script, value: ast.expr) -> ast.Attribute | None:
    """The attribute that nn.Parameter(….clone()) or copy.deepcopy(…) copies."""
    if not isinstance(value, ast.Call) or not value.args:
        return None
    name = script.dotted(value.func)
    if name == "copy.deepcopy":
        return _stripped(value.args[0], methods=())
    if name != "torch.nn.Parameter":
        return None
    inner = value.args[0]
    found = _stripped(inner, methods=_COPIES)
    return found if found is not None and isinstance(inner, ast.Call) else None


def _over_memory(value: ast.expr) -> ast.Attribute | None:
    if isinstance(value, ast.Attribute) and value.attr == "data" and isinstance(value.value, ast.Attribute):
        return value.value
    return None


def _rewrapped(script: Script, value: ast.expr) -> ast.Attribute | None:
    """The weight of `nn.Parameter(embed.weight)`: a second Parameter over the same memory."""
    if isinstance(value, ast.Call) and script.dotted(value.func) == "torch.nn.Parameter" and value.args:
        return _stripped(value.args[0], methods=())
    return None


def _stripped(value: ast.expr, methods: tuple[str, ...]) -> ast.Attribute | None:
    """`a.weight` of `a.weight.data.clone().half()`."""
    while True:
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in methods:
            value = value.func.value
        elif isinstance(value, ast.Attribute) and value.attr == "data":
            value = value.value
        else:
            return value if isinstance(value, ast.Attribute) else None


def _tied(one: ast.Attribute, other: ast.Attribute) -> bool:
    """Two weights of one model, of which one is an embedding's."""
    first, second = ast.unparse(one.value), ast.unparse(other.value)
    if first == second or first.partition(".")[0] != second.partition(".")[0]:
        return isinstance(one.value, ast.Name) and isinstance(other.value, ast.Name) and first != second and bool(
            _EMBEDDING.search(second) and re.search(r"(?i)head|out|dec|proj", first)
        )  # fmt: skip
    return bool(_EMBEDDING.search(first)) != bool(_EMBEDDING.search(second))


def _over_modules(node: ast.expr) -> bool:
    calls = (each for each in ast.walk(node) if isinstance(each, ast.Call))
    return any(isinstance(call.func, ast.Attribute) and call.func.attr in _MODULES for call in calls)


def _new_parameters(script: Script, loop: ast.For) -> Iterator[Finding]:
    targets = {each.id for each in ast.walk(loop.target) if isinstance(each, ast.Name)}
    for node in ast.walk(loop):
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Attribute):
            continue
        target, source = node.targets[0], _copy_of(script, node.value)
        own = isinstance(target.value, ast.Name) and target.value.id in targets
        if own and source is not None and ast.unparse(source) == ast.unparse(target):
            name = ast.unparse(target)
            what = "each module gets a new parameter → tied weights part, and an optimizer made earlier holds the old"
            yield found_at(__name__, script, node, "warning", what, f"{name}.data = {_data(node.value, name)}")


def bad() -> ScriptExample:
    return ScriptExample(_MODEL.format("nn.Parameter(self.embed.weight.clone())  # PA628"))


def good() -> ScriptExample:
    return ScriptExample(_MODEL.format("self.embed.weight"))


_MODEL = """from torch import nn

class LanguageModel(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.lm_head = nn.Linear(width, words, bias=False)
        self.lm_head.weight = {}
"""
