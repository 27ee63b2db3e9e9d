"""MODEL: what the user typed becomes an object.

Takes `model.py`, `model.py:attr`, `package.module:attr` or `file.pt2`; gives the path or module name and the
attribute, the imported module, and the model behind an attribute: a module, a class, a factory without arguments, an
`fx.GraphModule` or an `ExportedProgram`. Never guesses between candidates: it lists them.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from precision_audit.loader import script, user_code
from precision_audit.loader.user_code import UserModule
from precision_audit.records import InputError, kind_of
from precision_audit.saving import reexport

Model = nn.Module | torch.export.ExportedProgram

_MODEL_NAMES = (*script.BUILDERS, "model")
_FORMS = "expected model.py, model.py:attr, package.module:attr or file.pt2"


def split(spec: str) -> tuple[str, str]:
    """The file or module and the attribute; a path that exists is taken whole."""
    if not spec.strip():
        raise InputError(f"MODEL is empty; {_FORMS}")
    if Path(spec).exists() or ":" not in spec:
        return spec, ""
    target, _, attribute = spec.rpartition(":")
    if not target or not attribute:
        raise InputError(f"{spec}: nothing {'before' if not target else 'after'} the colon; {_FORMS}")
    return target, attribute


def import_target(target: str, attribute: str, beside: Iterable[str] = ()) -> UserModule:
    """Import the file or module; `beside` are the names wanted besides the attribute."""
    path = Path(target)
    if path.is_dir():
        files = sorted(entry.name for entry in path.iterdir() if entry.suffix in (".py", ".pt2"))
        more = ", ..." if len(files) > 5 else ""
        inside = f"; in it: {', '.join(files[:5])}{more}" if files else ""
        raise InputError(f"{target}: is a folder; give one file{inside}")
    if path.is_file():
        if path.suffix != ".py":
            raise InputError(f"{target}: is no Python file; {_FORMS}")
        return user_code.import_file(path, target, attribute, beside)
    if path.exists():
        raise InputError(f"{target}: is no ordinary file; {_FORMS}")
    if path.suffix in (".py", ".pt2") or "/" in target or not all(p.isidentifier() for p in target.split(".")):
        folder = path.parent if path.parent.is_dir() else Path()
        near = difflib.get_close_matches(path.name, [entry.name for entry in folder.iterdir()], 1)
        mend = f"did you mean {path.parent / near[0]}?" if near else _FORMS
        raise InputError(f"{target}: no such file; {mend}")
    return user_code.import_dotted(target)


def program(path: Path, attribute: str) -> torch.export.ExportedProgram:
    """The exported program of a `.pt2` file."""
    if attribute:
        raise InputError(f"{path}:{attribute}: a .pt2 file holds one program; give {path} alone")
    if not path.is_file():
        raise InputError(f"{path}: {'is a folder' if path.is_dir() else 'no such file'}; {_FORMS}")
    try:
        reexport.refuse_pickles(path)
        return torch.export.load(path)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{path}: cannot be read as an exported program ({user_code.first_line(error)}); "
            "write it with torch.export.save and the torch installed here"
        ) from error


def look_up(user: UserModule) -> str:
    """The name of the model in a file for which no attribute was given."""
    members = vars(user.module)
    for name in _MODEL_NAMES:
        value = members.get(name)
        if value is not None and (callable(value) or isinstance(value, Model)):
            return name
    own = [
        name
        for name, value in members.items()
        if inspect.isclass(value) and issubclass(value, nn.Module) and value.__module__ == user.module.__name__
    ]
    own = [name for name in own if members[name].__name__ == name]
    if len(own) == 1:
        return own[0]
    others = own or [name for name, value in members.items() if isinstance(value, Model)]
    if others:
        raise InputError(
            f"{user.name}: several candidates and no build_model, get_model or model: {', '.join(others)}; "
            f"choose one, such as {user.name}:{others[-1]}"
        )
    raise InputError(
        f"{user.name}: no model found; expected build_model, get_model, model or an nn.Module class in it, "
        f"or name one as {user.name}:attr"
    )


def attribute(user: UserModule, dotted: str) -> Any:
    """The attribute by its name, dots followed."""
    value: Any = user.module
    for part in dotted.split("."):
        if not hasattr(value, part):
            own = user.classes if value is user.module else ()
            names = [*own, *(name for name in dir(value) if not name.startswith("_") and name not in own)]
            near = difflib.get_close_matches(part, names, 1)
            usable = own or [name for name in names if isinstance(getattr(value, name, None), Model | type)]
            mend = f"did you mean {user.name}:{near[0]}?" if near else f"it has: {', '.join(usable[:8]) or 'no models'}"
            raise InputError(f"{user.name}:{dotted}: there is no {part}; {mend}")
        value = getattr(value, part)
    return value


def instance(value: Any, source: str) -> Model:
    """The model behind a module, a class, a factory or an exported program."""
    if not isinstance(value, Model) and callable(value):
        needed = _required(value)
        if needed:
            given = ", ".join(f"{name}=..." for name in needed)
            what = "constructor" if inspect.isclass(value) else "function"
            file, _, name = source.rpartition(":")
            raise InputError(
                f"{source}: the {what} needs arguments ({', '.join(needed)}); "
                f"add `def build_model(): return {name}({given})` to {file}"
            )
        value = value()
    if isinstance(value, torch.jit.ScriptModule):
        raise InputError(f"{source}: is a TorchScript module, which torch.export does not take; give the Python module")
    if isinstance(value, Model):
        return getattr(value, "_orig_mod", value) if not isinstance(value, fx.GraphModule) else value
    raise InputError(
        f"{source}: is {kind_of(value)}; expected an nn.Module, a class, a function that returns one, "
        "an fx.GraphModule or an ExportedProgram"
    )


def _required(function: Callable[..., Any]) -> list[str]:
    """Arguments of a class or function without a default; none where Python cannot tell."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.kind not in variadic and p.default is inspect.Parameter.empty]
