"""Training scripts, read as text.

Takes Python source; gives a `Script`: its tree, its imports by full name, its training loops with what they do in
order, and what the whole file does. Nothing of the user's is imported or run: a script is parsed and walked (`walk`),
its own calls are followed (`calls`), and what the text does not tell stays unknown. Rules ask of it only what it tells.

`conditions` says how `if`s can turn out, `values` what names stand for, `events` what happens, `known` which names of
torch matter, `files` which files there are to read.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from precision_audit.records import Finding, Suppression
from precision_audit.script import calls, classes
from precision_audit.script.events import Event, Loop, Trace
from precision_audit.script.names import canonical, imports
from precision_audit.script.values import Value
from precision_audit.script.walk import Walk

__all__ = ["Event", "Loop", "Script", "Value", "read"]


@dataclass(frozen=True)
class Script:
    """One file. `events` are those of the whole file, in order; `loops` the training loops, each as often as the file
    reaches it."""

    file: str
    text: str
    tree: ast.Module
    imports: dict[str, str]
    events: tuple[Event, ...]
    loops: tuple[Loop, ...]
    suppressions: tuple[Suppression, ...] = ()
    whole: bool = True  # whether every call was followed; a file whose calls lead on and on is followed for a while
    told: tuple[Finding, ...] = field(default=())  # what the other rules found, for those that run last

    def line(self, number: int) -> str:
        lines = self.text.splitlines()
        return lines[number - 1].strip() if 0 < number <= len(lines) else ""

    def dotted(self, node: ast.AST) -> str:
        """The full name of `torch.cuda.amp.autocast` or of an alias of it; "" of anything that was not imported."""
        if isinstance(node, ast.Name):
            return self.imports.get(node.id, "")
        if isinstance(node, ast.Attribute):
            owner = self.dotted(node.value)
            return canonical(f"{owner}.{node.attr}") if owner else ""
        return ""

    def calls(self) -> Iterator[tuple[ast.Call, str]]:
        """Every call of something imported, with its full name."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and (name := self.dotted(node.func)):
                yield node, name

    @property
    def places(self) -> int:
        """How many loops the file has, each counted once."""
        return len({loop.node for loop in self.loops})


def read(text: str, file: str = "<script>", suppressions: tuple[Suppression, ...] = ()) -> Script:
    """Parse and walk a script. SyntaxError where it is no Python."""
    tree = ast.parse(text, file)
    walk = Walk(tree)
    walk.own_defaults = "set_autocast" in text
    walk.block(tree.body)
    _uncalled(walk)
    trace = walk.trace
    loops, whole = tuple(_loops(trace)), walk.steps <= walk.most_steps
    return Script(file, text, tree, imports(tree), tuple(trace.events), loops, suppressions, whole)


def _uncalled(walk: Walk) -> None:
    """Walk the functions that no line of the file calls, as code outside it would."""
    for kind in (True, False):  # classes last: a function may make the instance
        for value in walk.defined:
            if (value.kind == "function") is kind and walk.steps < walk.most_steps:
                _walk_uncalled(walk, value)


def _walk_uncalled(walk: Walk, value: Value) -> None:
    begin = len(walk.trace.events)
    if value.kind == "function":
        if value.node not in walk.followed:
            walk.start_over()
            made = calls.follow(walk, value, None)
            if made.kind == "generator":
                calls.drawn(walk, made)
            walk.trace.roots.append((begin, len(walk.trace.events)))
        return
    assert isinstance(value.node, ast.ClassDef)
    methods = [each for each in value.node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    if all(each in walk.followed for each in methods):
        return
    walk.start_over()
    instance = value.attributes.get("an instance") or classes.instantiate(walk, value, None)
    for each in methods:
        if each not in walk.followed:
            begin = len(walk.trace.events)
            walk.start_over()
            items = (instance,) if not any("staticmethod" in ast.unparse(d) for d in each.decorator_list) else ()
            made = calls.follow(walk, Value("bound", each.name, each, items=items, scope=value.scope), None)
            if made.kind == "generator":
                calls.drawn(walk, made)
            walk.trace.roots.append((begin, len(walk.trace.events)))


def _loops(trace: Trace) -> Iterator[Loop]:
    """The innermost loop around each step that has a backward in it, the loops around a backward without a step, and
    the functions that train without a loop."""
    chosen: dict[int, None] = {}
    for event in trace.events:
        if event.kind in ("step", "foreign") and not event.rare:
            around = next((visit for visit in reversed(event.visits) if _learns(trace, visit)), None)
            if around is not None:
                chosen[around] = None
    for event in trace.events:
        if event.kind == "backward" and event.visits and not chosen.keys() & set(event.visits):
            chosen[event.visits[-1]] = None
    for visit in chosen:
        events = tuple(each for each in trace.events if visit in each.visits)
        yield Loop(trace.visited[visit], events, tuple(g for g in trace.entered[visit] if not isinstance(g[0], bool)))
    for begin, end in trace.roots:
        events = tuple(trace.events[begin:end])
        free = [each for each in events if not each.visits and not each.rare]
        if any(each.kind == "backward" for each in free) and any(each.kind == "step" for each in free):
            yield Loop(None, tuple(free))


def _learns(trace: Trace, visit: int) -> bool:
    return any(each.kind == "backward" for each in trace.events if visit in each.visits)
