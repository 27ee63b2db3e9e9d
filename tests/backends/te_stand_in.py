"""TransformerEngine's real Python classes without its compiled module, CUDA or a driver: structure, never numbers.

`load()` imports `transformer_engine.pytorch` of the pinned release over a recorder that stands for the compiled
binding: attributes are made up on demand, every function raises when it is called. Names, signatures, parameters and
state dicts are the library's own; nothing can be computed. To be used in a process of its own: it patches what other
tests use.
"""

from __future__ import annotations

import ast
import contextlib
import enum
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

VERSION = "2.20.2"
# What the library imports at once and these tests have no use for; stubbed only where it is missing.
_IMPORTED = ("triton", "onnx", "onnxscript", "nvdlfw_inspect", "einops")


class _Anything(types.ModuleType):
    """A module or object whose attributes are more of the same, and which decorates a function into itself."""

    __path__: ClassVar[list[str]] = []
    __version__ = "99.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _Anything(f"{self.__name__}.{name}")
        setattr(self, name, made)
        return made

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        plain = len(args) == 1 and not kwargs and callable(args[0]) and not isinstance(args[0], _Anything)
        return args[0] if plain else self

    def __getitem__(self, key: object) -> Any:
        return self

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (object,)

    def __or__(self, other: object) -> Any:
        return self

    __ror__ = __or__


class _Enum(type):
    """A class whose members are made up as they are asked for."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = len([key for key in vars(cls) if not key.startswith("_")])
        setattr(cls, name, value)
        return value


class _Binding(types.ModuleType):
    """Stands for `transformer_engine_torch`: classes on demand, functions that raise."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made: Any
        if name[:1].isupper():
            made = _Enum(name, (), {})
        else:

            def made(*args: Any, **kwargs: Any) -> Any:
                raise RuntimeError(f"{name} is not there: the compiled binding is a stand-in")

        setattr(self, name, made)
        return made


def load() -> Any:
    """`transformer_engine.pytorch`."""
    import torch._inductor.standalone_compile  # before a stub of triton could tell it that there is one
    import torch.utils._triton

    torch.utils._triton.has_triton_package()
    os.environ["NVTE_PROJECT_BUILDING"] = "1"
    missing = frozenset(name for name in _IMPORTED if importlib.util.find_spec(name) is None)
    sys.meta_path.append(_Stubs(missing))
    from transformer_engine import common

    common.load_framework_extension = lambda framework: None
    binding = _Binding("transformer_engine_torch")
    sources = Path(common.__file__).parents[1] / "pytorch"
    binding.DType = _alike("DType", sources / "constants.py")
    attention = _alike("FusedAttnBackend", sources / "cpp_extensions" / "fused_attn.py", "NVTE_")
    binding.NVTE_Fused_Attn_Backend = attention
    sys.modules["transformer_engine_torch"] = binding
    return importlib.import_module("transformer_engine.pytorch")


@contextlib.contextmanager
def pretended_cuda(capability: tuple[int, int] = (9, 0)) -> Iterator[None]:
    """A device of that capability as far as Python-side checks go; no tensor can be put on it."""
    import torch

    _forget()
    properties = types.SimpleNamespace(major=capability[0], minor=capability[1], multi_processor_count=132)
    with (
        mock.patch.object(torch.cuda, "is_available", lambda: True),
        mock.patch.object(torch.cuda, "current_device", lambda: 0),
        mock.patch.object(torch.cuda, "get_device_properties", lambda *_: properties),
        mock.patch.object(torch.cuda, "get_device_capability", lambda *_: capability),
        mock.patch.object(torch.cuda, "is_current_stream_capturing", lambda: False),
        mock.patch.object(torch.cuda, "is_bf16_supported", lambda *_, **__: True),
    ):
        yield


def _forget() -> None:
    """The library asks each device once per process, and keeps the answers."""
    for name, module in list(sys.modules.items()):
        if not name.startswith("transformer_engine."):
            continue
        for key, each in list(vars(module).items()):
            if isinstance(each, functools._lru_cache_wrapper):
                each.cache_clear()
            elif key.startswith("_") and key.endswith("_SUPPORT"):
                setattr(module, key, None)


def _alike(name: str, source: Path, prefix: str = "") -> Any:
    """An enum that the library compares with its own on import: the same members, of made-up values."""
    tree = ast.parse(source.read_text(encoding="utf-8"))
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    assigned = [node.targets[0] for node in body if isinstance(node, ast.Assign)]
    names = [f"{prefix}{node.id}" for node in assigned if isinstance(node, ast.Name)]
    return enum.IntEnum(f"{prefix}{name}", names, start=0)


class _Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a module of a package that is not there, whatever it is called."""

    def __init__(self, packages: frozenset[str]) -> None:
        self._packages = packages

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        known = name.partition(".")[0] in self._packages
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if known else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Anything(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass
