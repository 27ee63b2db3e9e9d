"""Where a report's numbers come from: digests and versions.

Takes a state dict, the text of a policy, calibration batches; gives `sha256:…` strings that are equal on every machine
for equal content. Never reads a clock, a host name or a path.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from precision_audit import backends, recipes
from precision_audit.records import Plan


def weights_digest(state: Mapping[str, Tensor]) -> str:
    """The digest of the digests of all tensors, sorted by name: each over name, format, shape and bytes (of a tensor
    without data, on meta: not the bytes)."""

    def one(name: str) -> bytes:
        digest, value = hashlib.sha256(), state[name]
        if isinstance(value, Tensor):
            _add(digest, name, value)
        else:  # what a module's get_extra_state gave: its name, since its text may name an address
            digest.update(f"{name} {type(value).__name__}\n".encode())
        return digest.digest()

    with ThreadPoolExecutor(max_workers=8) as pool:  # hashing releases the interpreter's lock
        return f"sha256:{hashlib.sha256(b''.join(pool.map(one, sorted(state)))).hexdigest()}"


def started_digest(model: nn.Module | torch.export.ExportedProgram) -> Callable[[], str]:
    """`weights_digest` of a model's state, begun in another thread: call the result for the digest. Hashing takes as
    long as reading all weights, and the interpreter is free meanwhile."""
    state = model.state_dict() if isinstance(model, nn.Module) else model.state_dict
    pool = ThreadPoolExecutor(max_workers=1)
    future = pool.submit(weights_digest, dict(state))
    pool.shutdown(wait=False)
    return future.result


def text_digest(text: str) -> str:
    """Line ends do not count, so that one policy file is one policy on every system."""
    return f"sha256:{hashlib.sha256(text.replace(chr(13) + chr(10), chr(10)).encode()).hexdigest()}"


def batches_digest(batches: Iterable[tuple[tuple[Any, ...], Mapping[str, Any]]]) -> str:
    """Over the tensors and the plain values of every batch, in order; "" where there is no batch."""
    digest, count = hashlib.sha256(), 0
    for args, kwargs in batches:
        for path, leaf in pytree.tree_flatten_with_path((tuple(args), dict(sorted(kwargs.items()))))[0]:
            name = f"{count}{pytree.keystr(path)}"
            if isinstance(leaf, Tensor):
                _add(digest, name, leaf)
            elif leaf is None or isinstance(leaf, bool | int | float | complex | str):
                digest.update(f"{name}={leaf!r}\n".encode())
        count += 1
    return f"sha256:{digest.hexdigest()}" if count else ""


def versions() -> tuple[tuple[str, str], ...]:
    """This package, Python, and what computes; an optional library that is absent is not listed. Imports none."""
    found = [
        ("precision-audit", _installed("precision-audit") or "not installed"),
        ("python", platform.python_version()),
    ]
    found.append(("torch", str(torch.__version__)))
    for name in ("torchao", "transformer-engine"):
        if version := _installed(name):
            found.append((name, version))
    return tuple(found)


def emulated(plan: Plan, device: str = "cpu") -> tuple[str, ...]:
    """Formats whose arithmetic is imitated where the verification runs: a CPU has kernels for int8, and multiplies
    weights that are only stored in fewer bits."""
    rows = {recipes.RECIPES.get((swap.backend, swap.recipe)): swap for swap in plan.swaps}
    imitated = (
        recipes.arithmetic(swap.backend, swap.recipe)
        for row, swap in rows.items()
        if row is None or (row.activations and row.scheme != "int8")
    )
    return tuple(sorted(set(imitated))) if device == "cpu" else ()


def stand_in_notes(plan: Plan) -> tuple[str, ...]:
    """What a reader must know of swaps that stand-ins computed: whose numbers were not run, what is left out."""
    swaps = backends.stand_ins(plan)
    if not swaps:
        return ()
    kinds = ", ".join(sorted({swap.kind for swap in swaps}))
    said = [f"{kinds}: emulated by this tool's own quantisers; no kernel of the library was run"]
    left_out = {swap.recipe: backends.unseen(swap) for swap in swaps}
    said += [f"{recipe}: {text}" for recipe, text in sorted(left_out.items()) if text]
    return tuple(said)


def _add(digest: Any, name: str, tensor: Tensor) -> None:
    digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
    if tensor.is_meta or tensor.numel() == 0 or type(tensor).__name__ == "FakeTensor":
        return
    for part in _parts(tensor.detach().cpu()):
        digest.update(part.resolve_conj().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def _parts(tensor: Tensor) -> tuple[Tensor, ...]:
    """The dense tensors that hold what a sparse, nested or quantized one says; any other tensor itself."""
    if tensor.layout == torch.sparse_coo:
        summed = tensor.coalesce()
        return summed.indices(), summed.values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    if tensor.is_nested:
        return tuple(tensor.unbind())
    return (tensor.int_repr() if tensor.is_quantized else tensor,)


def _installed(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
