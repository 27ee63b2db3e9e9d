"""Is this file a model or a training script? Answered from its syntax tree, before a line of it runs.

Takes the text of a Python file; gives its tree, the first statement that does work at import, the `nn.Module` classes
in it, and a tree reduced to what one class needs. Never runs, imports or changes anything.

Work at import is a statement other than an import, a definition, an assignment, a harmless set-up call (`print`,
`torch.manual_seed`, `sys.path.insert`, …) or an `if __name__ == "__main__"` block, in a file that declares none of the
names of the loader's table; or, whatever the file declares, top-level code that trains (reaches `.backward()` or an
optimizer's `.step()`, also through the file's own functions).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

DECLARED = ("build_model", "get_model", "model", "example_inputs")
BUILDERS = ("build_model", "get_model")

_TRAINING_CALLS = frozenset({"backward", "step"})
# Calls that prepare a process and finish at once, by the beginning of their dotted name.
_HARMLESS = (
    "print",
    "sys.path.",
    "sys.setrecursionlimit",
    "os.environ.",
    "warnings.",
    "logging.",
    "logger.",
    "random.seed",
    "np.random.seed",
    "numpy.random.seed",
    "torch.manual_seed",
    "torch.cuda.manual_seed",
    "torch.random.",
    "torch.set_",
    "torch.backends.",
    "torch.use_deterministic_algorithms",
    "torch.serialization.",
    "torch.autograd.set_detect_anomaly",
    "matplotlib.use",
)


@dataclass(frozen=True, slots=True)
class Statement:
    line: int
    text: str


def parse(text: str, file: str) -> ast.Module:
    return ast.parse(text, filename=file)


def work_at_import(tree: ast.Module) -> Statement | None:
    """The first statement that makes this file a script, None for a file that may be imported."""
    statements = list(_run_at_import(tree.body))
    trains = next((node for node in statements if _trains(node, functions(tree))), None)
    if trains is None and names_bound(tree) & set(DECLARED):
        return None
    found = trains or next((node for node in statements if not _is_assignment(node)), None)
    if found is None:
        return None
    text = ast.unparse(found).splitlines()[0]
    return Statement(found.lineno, text if len(text) <= 60 else text[:57] + "...")


def module_classes(tree: ast.Module) -> tuple[str, ...]:
    """Names of the classes that derive from `nn.Module`, as far as the text tells, in order."""
    found: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            bases = [ast.unparse(base) for base in node.bases]
            if any(base in found or base.endswith("Module") for base in bases):
                found.append(node.name)
    return tuple(found)


def builders(tree: ast.Module) -> tuple[str, ...]:
    """Functions of the file that make a model, in the loader's order."""
    return tuple(name for name in BUILDERS if name in functions(tree))


def functions(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    """Functions defined at the file's top level."""
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def refusal(tree: ast.Module, work: Statement, shown: str) -> str:
    """What to tell a person who gave a training script as MODEL."""
    names = module_classes(tree)
    reason = f"{shown}: does work when it is imported (line {work.line}: {work.text}), so it was not run"
    if not names:
        return (
            f"{reason}; no nn.Module class was found in it: put that under "
            '`if __name__ == "__main__":` and add a build_model() function'
        )
    listed = ", ".join(names)
    label = "class" if len(names) == 1 else "classes"
    return f"{reason}; {label} in it: {listed}; try: precision-audit {_quoted(shown)}:{names[-1]}"


def definitions_only(tree: ast.Module, wanted: Iterable[str]) -> ast.Module:
    """The imports of a script and what the `wanted` names are made of, in their order; loops never."""
    imported = {name for node in tree.body if _is_import(node) for name in _bound(node)}
    keep = {i for i, node in enumerate(tree.body) if _is_import(node) or _is_set_up(node, imported)}
    binders: dict[str, list[int]] = {}
    for index, node in enumerate(tree.body):
        for name in _bound(node):
            binders.setdefault(name, []).append(index)
    for index, node in enumerate(tree.body):
        name = _called_on(node)  # `parser.add_argument(...)` goes wherever `parser` goes
        if name and not _trains(node, functions(tree)):
            binders.setdefault(name, []).append(index)
    pending, done = set(wanted), set[str]()
    while pending:
        name = pending.pop()
        done.add(name)
        for index in binders.get(name, ()):
            node = tree.body[index]
            if not isinstance(node, ast.For | ast.AsyncFor | ast.While):
                keep.add(index)
                pending |= _names(node) - done
    return ast.Module(body=[tree.body[index] for index in sorted(keep)], type_ignores=[])


def names_bound(tree: ast.Module) -> frozenset[str]:
    """Every name that the file's top level binds."""
    return frozenset(name for node in tree.body for name in _bound(node))


def _run_at_import(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run at import and are not harmless; looks into `if` and `try`."""
    for node in body:
        if isinstance(node, ast.If) and not _is_guard(node):
            yield from _run_at_import([*node.body, *node.orelse])
        elif isinstance(node, ast.Try):
            handlers = [statement for handler in node.handlers for statement in handler.body]
            yield from _run_at_import([*node.body, *handlers, *node.orelse, *node.finalbody])
        elif not _is_harmless(node):
            yield node


def _is_harmless(node: ast.stmt) -> bool:
    if isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return True
    if isinstance(node, ast.Pass | ast.Delete | ast.Assert | ast.Raise | ast.Global):
        return True
    if isinstance(node, ast.Expr):
        if isinstance(node.value, ast.Constant):
            return True
        return isinstance(node.value, ast.Call) and ast.unparse(node.value.func).startswith(_HARMLESS)
    return _is_guard(node)


def _is_guard(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def _is_assignment(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign)


def _trains(node: ast.AST, local: dict[str, ast.FunctionDef], seen: frozenset[str] = frozenset()) -> bool:
    """Whether running `node` reaches a backward pass or an optimizer's step, through `local` functions too."""
    for call in (part for part in ast.walk(node) if isinstance(part, ast.Call)):
        if isinstance(call.func, ast.Attribute) and call.func.attr in _TRAINING_CALLS:
            return True
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        if name in local and name not in seen and _trains(local[name], local, seen | {name}):
            return True
    return False


def _bound(node: ast.stmt) -> set[str]:
    """Names that one top-level statement binds, those of nested blocks included."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    if _is_guard(node):
        return set()
    bound = {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    for block in ("body", "orelse", "handlers", "finalbody"):
        for child in getattr(node, block, []):
            bound |= _bound(child) if isinstance(child, ast.stmt) else {n for s in child.body for n in _bound(s)}
    return bound


def _is_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def _is_set_up(node: ast.stmt, imported: set[str]) -> bool:
    """A call that prepares the process (`sys.path.insert`, `torch.set_default_dtype`) and needs imports only."""
    return (
        isinstance(node, ast.Expr)
        and not isinstance(node.value, ast.Constant)
        and (_is_harmless(node) and _names(node) <= imported)
    )


def _called_on(node: ast.stmt) -> str:
    """The name whose method a statement calls, "" for any other statement."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
        owner = node.value.func.value
        return owner.id if isinstance(owner, ast.Name) else ""
    return ""


def _names(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _quoted(path: str) -> str:
    return f"'{path}'" if " " in path else path
