"""Running the user's file: imported once, never trained by accident, every failure one line.

Takes a path to a Python file or a dotted module name; gives a `UserModule`. A file is parsed before anything in it
runs. A file that does work when it is imported (a training script) is refused with the classes found in it, or, when
one of its classes was asked for by name, only its imports, definitions and the assignments those need are run.

What the user's code prints goes to stderr, since stdout belongs to the report. Whatever it raises, `SystemExit`
included, becomes one `InputError` that names the user's file and line.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import linecache
import re
import sys
import tokenize
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from precision_audit.capture.sources import user_frame
from precision_audit.loader import script
from precision_audit.records import InputError, shortened


@dataclass(frozen=True)
class UserModule:
    """`name` is what the user typed; `skipped` says which statements of a training script were left out, and `classes`
    are the file's own, whether they were defined or left out."""

    name: str
    module: types.ModuleType
    skipped: str = ""
    classes: tuple[str, ...] = ()


def import_file(path: Path, shown: str, attribute: str, extras: Iterable[str] = ()) -> UserModule:
    """Import `path`. `attribute` is what the user asked for after the colon, "" if nothing; `extras` are the names
    that are wanted beside it where the file declares them."""
    text = _read(path, shown)
    try:
        tree = script.parse(text, str(path))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        reason = getattr(error, "msg", None) or str(error)
        raise InputError(
            f"{shown}:{line}: not valid Python: {reason}; mend that line, then run the audit again"
        ) from error
    work = script.work_at_import(tree)
    if work and not attribute and not script.builders(tree):
        raise InputError(script.refusal(tree, work, shown))
    classes, skipped = script.module_classes(tree), ""
    if work:
        beside = set(extras) & {*script.functions(tree), "example_inputs"}
        tree = script.definitions_only(tree, {attribute.partition(".")[0] or script.builders(tree)[0], *beside})
        skipped = (
            f"{shown} does work when it is imported (line {work.line}: {work.text}): only its definitions were run"
        )
    module = types.ModuleType(_module_name(path))
    module.__file__ = str(path.resolve())
    sys.modules[module.__name__] = module
    linecache.checkcache(str(path))  # of another file of this name, in another working directory
    with running(f"importing {shown}", path.parent), _arguments(path):
        exec(compile(tree, str(path), "exec"), module.__dict__)
    return UserModule(shown, module, skipped, classes)


def import_dotted(name: str) -> UserModule:
    """Import `package.module` with the current folder on the path, as `python -m` does."""
    with running(f"importing {name}", Path.cwd()):
        try:
            return UserModule(name, importlib.import_module(name))
        except ModuleNotFoundError as error:
            if error.name and (name == error.name or name.startswith(error.name + ".")):
                raise InputError(
                    f"{name}: no such file and no such module ({error.name} was not found); "
                    "expected model.py, model.py:attr, package.module:attr or file.pt2"
                ) from error
            raise


@contextlib.contextmanager
def running(what: str, folder: Path | None = None) -> Iterator[None]:
    """Run the user's code: its folder importable, stdout on stderr, exceptions as one InputError."""
    entry = str(folder.resolve()) if folder else None
    if entry:
        sys.path.insert(0, entry)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except InputError:
        raise
    except SystemExit as error:
        raise InputError(
            f"{where(error)}{what}: the file ended the process (exit code {error.code}); "
            'move that under `if __name__ == "__main__":`'
        ) from error
    except Exception as error:
        place = where(error)
        shown = what.removeprefix(f"{place.partition(':')[0]}: ") if place else what
        raise InputError(f"{place}{shown} failed: {first_line(error)}") from error
    finally:
        if entry and entry in sys.path:
            sys.path.remove(entry)
            sys.path.append(entry)  # imports inside forward still find their neighbours, and shadow nothing


@contextlib.contextmanager
def _arguments(path: Path) -> Iterator[None]:
    """The user's file sees its own name in `sys.argv`, not our options."""
    given, sys.argv = sys.argv, [str(path)]
    try:
        yield
    finally:
        sys.argv = given


def first_line(error: BaseException) -> str:
    """`ValueError: text`, on one line: an exception as a person needs to see it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else ""
    if len(lines) > 1 and text.endswith(":"):
        text = f"{text} {lines[1]}"
    return f"{type(error).__name__}: {shortened(text, 300)}" if text else type(error).__name__


def where(error: BaseException) -> str:
    """`file:line: ` of the user's deepest frame, "" when no frame is the user's."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_short(error.filename)}:{error.lineno}: "
    frame = user_frame(error)
    return f"{_short(frame.file)}:{frame.line}: " if frame else ""


def _short(file: str) -> str:
    path = Path(file)
    with contextlib.suppress(ValueError):
        return str(path.resolve().relative_to(Path.cwd()))
    return str(path)


def _read(path: Path, shown: str) -> str:
    try:
        with tokenize.open(path) as file:
            text = file.read()
    except (UnicodeDecodeError, SyntaxError) as error:
        raise InputError(
            f"{shown}: not a Python source file ({first_line(error)}); expected UTF-8 text, or a declared encoding"
        ) from error
    except OSError as error:
        raise InputError(f"{shown}: cannot be read ({error.strerror}); check the file's permissions") from error
    if not text.strip():
        raise InputError(
            f"{shown}: the file is empty; expected build_model, get_model, model or an nn.Module class in it"
        )
    return text


def _module_name(path: Path) -> str:
    """A name that no installed module has, the same on every run; numbered when another file holds it."""
    base = "user_" + re.sub(r"\W", "_", path.stem)
    name, number = base, 2
    while name in sys.modules and getattr(sys.modules[name], "__file__", None) != str(path.resolve()):
        name, number = f"{base}_{number}", number + 1
    return name
