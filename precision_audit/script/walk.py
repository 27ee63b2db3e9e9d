"""Walk through a script's statements in the order in which Python would run them, without running any.

Takes a syntax tree; gives a `Trace`. Both arms of an `if` are walked, under the test and under its opposite; a loop's
body is walked once; a call of the file's own function is followed (see `calls`). What is bound in an arm is joined with
the other arm's behind it. Never imports, never evaluates the user's code, and gives up on a file whose calls lead on
and on (`_MOST_STEPS`): what is left out is left unsaid.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from precision_audit.script import deciding, elements
from precision_audit.script import expressions as ex
from precision_audit.script.conditions import Atom, Formula, Guard, joined, negated
from precision_audit.script.events import Event, Trace
from precision_audit.script.frames import Frame, Scope
from precision_audit.script.names import imports, reassigned
from precision_audit.script.values import Value, same

_MOST_STEPS = 40_000
_MOST_EVENTS = 4_000

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Walk:
    """The state of one walk. `evaluate` of `expressions` and `call` of `calls` work on it."""

    def __init__(self, tree: ast.Module) -> None:
        self.trace = Trace()
        self.imports = imports(tree)
        self.reassigned = reassigned(tree)
        self.scope = Scope()
        self.top = self.scope
        self.frames: list[Frame] = [Frame(0)]
        self.guards: list[Guard] = []
        self.contexts: list[Value] = []
        self.functions: list[str] = [""]
        self.following: list[ast.AST] = []  # functions being followed, innermost last
        self.followed: set[ast.AST] = set()
        self.journal: list[tuple[dict[str, Value], str, Value | None]] | None = None
        self.rare = 0
        self.steps = 0
        self.most_steps = _MOST_STEPS
        self.defined: list[Value] = []  # functions and classes, in the order of their definition
        self.visits = itertools.count(1)
        self.bare: ast.expr | None = None  # the expression that is the statement being walked: its value is dropped
        self.yielded: list[list[Value]] = []  # by the generators being walked, innermost last
        self.own_defaults = False  # the script sets autocast's default format itself

    def start_over(self) -> None:
        """Forget where the walk stands, before a function that nothing in the file calls."""
        self.frames, self.guards, self.contexts, self.functions = [Frame(0)], [], [], [""]
        self.scope, self.journal, self.rare = self.top, None, 0

    # -- events and bindings -------------------------------------------------------------------------------------------

    def emit(self, kind: str, node: ast.AST, subject: Value | None = None, **more: object) -> Event | None:
        """Note that something is done, unless this line cannot be reached."""
        guards = (*self.guards, *((left, False) for frame in self.frames for left in frame.left))
        if any(formula is (not wanted) for formula, wanted in guards) or len(self.trace.events) > _MOST_EVENTS:
            return None
        event = Event(
            kind,
            node,
            len(self.trace.events),
            subject,
            more.pop("scaler", None),  # type: ignore[arg-type]
            tuple(guard for guard in guards if not isinstance(guard[0], bool)),
            tuple(frame.visit for frame in self.frames if frame.visit),
            tuple(self.contexts),
            self.functions[-1],
            rare=self.rare > 0,
            **more,  # type: ignore[arg-type]
        )
        self.trace.events.append(event)
        return event

    def bind(self, names: dict[str, Value], name: str, value: Value) -> None:
        if self.journal is not None:
            self.journal.append((names, name, names.get(name)))
        names[name] = value

    def _undo(self, journal: list[tuple[dict[str, Value], str, Value | None]]) -> dict[tuple[int, str], Value]:
        """Take back what was bound since; gives what it was, by place."""
        made: dict[tuple[int, str], Value] = {}
        for names, name, _ in journal:
            if name in names:
                made[id(names), name] = names[name]
        for names, name, old in reversed(journal):
            if old is None:
                names.pop(name, None)
            else:
                names[name] = old
        return made

    # -- statements ----------------------------------------------------------------------------------------------------

    def block(self, statements: Iterable[ast.stmt]) -> None:
        for statement in statements:
            self.steps += 1
            if self.steps > _MOST_STEPS:
                return
            self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.If):
            self._if(node)
        elif isinstance(node, ast.For | ast.AsyncFor | ast.While):
            self._loop(node)
        elif isinstance(node, ast.With | ast.AsyncWith):
            self._with(node)
        elif isinstance(node, ast.Try | ast.TryStar):
            self._try(node)
        elif isinstance(node, ast.Match):
            self._match(node)
        elif isinstance(node, Function | ast.ClassDef):
            kind = "class" if isinstance(node, ast.ClassDef) else "function"
            self.defined.append(Value(kind, node.name, node, scope=self.scope))
            self.bind(self.scope.names, node.name, self.defined[-1])
        elif isinstance(node, ast.Return | ast.Raise | ast.Continue | ast.Break):
            self._leave(node)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            ex.assign(self, node)
        elif isinstance(node, ast.Expr):
            self.bare = node.value
            ex.evaluate(self, node.value)
        elif isinstance(node, ast.Assert):
            ex.evaluate(self, node.test)

    def _leave(self, node: ast.Return | ast.Raise | ast.Continue | ast.Break) -> None:
        of_loop = isinstance(node, ast.Continue | ast.Break)
        frame = next((each for each in reversed(self.frames) if (each.visit is not None) == of_loop), self.frames[0])
        if isinstance(node, ast.Return):
            value = ex.evaluate(self, node.value) if node.value is not None else Value("constant", constant=None)
            frame.returned.append(value)
        since = self.guards[frame.start :]
        for each in self.frames[self.frames.index(frame) :]:
            since = [*since, *((left, False) for left in each.left)]
        frame.left.append(joined("and", (f if wanted else negated(f) for f, wanted in since)))

    def _if(self, node: ast.If) -> None:
        condition = deciding.condition(self, node.test)
        self.arms(condition, [(True, node.body), (False, node.orelse)])

    def arms(self, condition: Formula, parts: Sequence[tuple[bool, list[ast.stmt]]]) -> None:
        """Walk what runs under a condition and under its opposite, and join what they bind."""
        if isinstance(condition, bool):
            for wanted, body in parts:
                if wanted is condition:
                    self.block(body)
            return
        outer, made = self.journal, []
        places: dict[tuple[int, str], dict[str, Value]] = {}
        for wanted, body in parts:
            self.journal = []
            self.guards.append((condition, wanted))
            self.block(body)
            self.guards.pop()
            places.update({(id(names), name): names for names, name, _ in self.journal})
            made.append(self._undo(self.journal))
        self.journal = outer
        then, otherwise = made
        for place in dict.fromkeys((*then, *otherwise)):
            names = places[place]
            old = names.get(place[1])
            one, other = then.get(place, old), otherwise.get(place, old)
            value = one if other is None else other if one is None else same(one, other, condition)
            if value is not None:
                self.bind(names, place[1], value)

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While) -> None:
        if isinstance(node, ast.While):
            ex.evaluate(self, node.test)
            self._body(node, node.body)
        else:
            iterated = ex.evaluate(self, node.iter)
            known = elements.each_of(iterated)
            for item in known or ():  # a loop over a list that is written out is unrolled: no batches
                ex.bind_target(self, node.target, item)
                self.frames.append(Frame(len(self.guards), 0))
                self.block(node.body)
                self.frames.pop()
            if known is None:
                self._body(node, node.body, iterated)
        self.block(node.orelse)

    def _body(self, node: ast.AST, body: list[ast.stmt], iterated: Value | None = None) -> None:
        with self.visit(node):
            if iterated is not None and isinstance(node, ast.For | ast.AsyncFor):
                ex.bind_target(self, node.target, elements.drawn(self, iterated, node.target))
            self.block(body)

    @contextmanager
    def visit(self, node: ast.AST) -> Iterator[None]:
        """What is walked meanwhile stands in the loop `node`."""
        visit = next(self.visits)
        self.trace.visited[visit] = node
        left = ((each, False) for outer in self.frames for each in outer.left)
        self.trace.entered[visit] = (*self.guards, *left)
        self.frames.append(Frame(len(self.guards), visit))
        yield
        self.frames.pop()

    def _with(self, node: ast.With | ast.AsyncWith) -> None:
        before = len(self.contexts)
        for item in node.items:
            value = ex.evaluate(self, item.context_expr)
            if item.optional_vars is not None:
                ex.bind_target(self, item.optional_vars, ex.entered(value))
            self.enter(value, item.context_expr)
        self.block(node.body)
        del self.contexts[before:]

    def enter(self, value: Value, node: ast.AST) -> None:
        """Begin a context; the caller ends it."""
        self.contexts.append(value)
        if value.kind == "autocast":
            self.emit("autocast", node, value)

    def _try(self, node: ast.Try | ast.TryStar) -> None:
        self.block(node.body)
        self.block(node.orelse)
        outer = self.journal
        for handler in node.handlers:
            self.journal = []
            with self.rarely():
                self.block(handler.body)
            self._undo(self.journal)
        self.journal = outer
        self.block(node.finalbody)

    def _match(self, node: ast.Match) -> None:
        ex.evaluate(self, node.subject)
        cases = [(Atom(f"case {case.pattern.lineno}: {ast.unparse(case.pattern)}"), case.body) for case in node.cases]
        for number, (atom, body) in enumerate(cases):
            earlier = [negated(each) for each, _ in cases[:number]]
            self.arms(joined("and", (*earlier, atom)), [(True, body), (False, [])])

    @contextmanager
    def rarely(self) -> Iterator[None]:
        """An exception handler: what leaves it does not leave what follows."""
        self.rare += 1
        self.frames.append(Frame(len(self.guards), 0))
        kept = [list(frame.left) for frame in self.frames]
        try:
            yield
        finally:
            for frame, left in zip(self.frames, kept, strict=True):
                frame.left[:] = left
            self.frames.pop()
            self.rare -= 1
