"""What models take and return besides tensors, made known to pytree, and the key-value cache left out.

Takes a tree of arguments or outputs; registers the kinds of its leaves that hold tensors: dataclasses, dictionaries
that are no `dict` (a tokenizer's `BatchEncoding`), caches of transformers by that library's own rule. Registers nothing
that does not occur. Registrations last for the process; they change nothing for who does not ask pytree.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import UserDict
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree


def registered(tree: Any) -> bool:
    """Register what occurs in `tree`, also inside one another; true when there was something."""
    kinds = {type(leaf) for leaf in pytree.tree_leaves(tree)} - pytree.SUPPORTED_NODES.keys()
    done = [_register(kind) for kind in sorted(kinds, key=lambda kind: kind.__qualname__)]
    if any(done):
        registered(tree)
    return any(done)


@contextlib.contextmanager
def without_cache(model: nn.Module) -> Iterator[None]:
    """The model returns no key-value cache, unless a call asks for one: it is captured so, hence compared so."""
    found = [getattr(each, "config", None) for each in model.modules()]
    configs: list[Any] = [config for config in found if getattr(config, "use_cache", None) is True]
    for config in configs:
        config.use_cache = False
    try:
        yield
    finally:
        for config in configs:
            config.use_cache = True


def _register(kind: type) -> bool:
    if dataclasses.is_dataclass(kind):
        torch.export.register_dataclass(kind)
    elif issubclass(kind, UserDict):
        pytree.register_pytree_node(
            kind,
            lambda mapping: (list(mapping.values()), list(mapping)),
            lambda values, keys: kind(dict(zip(keys, values, strict=True))),
            serialized_type_name=f"{kind.__module__}.{kind.__qualname__}",
            flatten_with_keys_fn=lambda mapping: (
                [(pytree.MappingKey(k), v) for k, v in mapping.items()],
                list(mapping),
            ),
        )
    elif kind.__name__.endswith("Cache") and kind.__module__.startswith("transformers."):
        try:
            from transformers.exporters import exporter_dynamo
        except ImportError:  # an older transformers
            return False
        exporter_dynamo.register_pytree_node(kind)
    else:
        return False
    return True
