"""What a process holds beside its models: gradient mode, autocast, functorch's levels, put back after an error; and
its random generators and settings of precision, put back always.

A captured graph enters and leaves the user's regions by nodes (`_enter_autocast` … `_exit_autocast`), and a failed
export may stop inside a transform of functorch. Whatever raises in between would leave the whole process in that
region. Never does anything where nothing was raised.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator

import torch
from torch.autograd import forward_ad

_DEVICES = ("cpu", "cuda")


@contextlib.contextmanager
def restored_on_error() -> Iterator[None]:
    """Run the body; if it raises, the process is as it was before."""
    grad, depth = torch.is_grad_enabled(), torch._C._functorch.get_dynamic_layer_stack_depth()
    forward, nesting = torch._C._is_fwd_grad_enabled(), _nesting()
    enabled = [(device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in _DEVICES]
    cached = torch.is_autocast_cache_enabled()
    try:
        yield
    except BaseException:
        if torch._C._functorch.get_dynamic_layer_stack_depth() > depth:
            torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)
        if forward_ad._current_level < 0:  # a captured jvp enters its level below Python's bookkeeping
            with contextlib.suppress(RuntimeError):
                torch._C._exit_dual_level(level=0)
        torch._C._set_fwd_grad_enabled(forward)
        torch.set_grad_enabled(grad)
        for device, on, low in enabled:
            torch.set_autocast_enabled(device, on)
            torch.set_autocast_dtype(device, low)
        torch.set_autocast_cache_enabled(cached)
        while _nesting() > nesting:
            torch.autocast_decrement_nesting()
        if nesting == 0:
            torch.clear_autocast_cache()
        raise


@contextlib.contextmanager
def random_state_kept() -> Iterator[None]:
    """Run the body; the random generators of torch, Python and NumPy are afterwards as they were, also after an error,
    and inference mode is off meanwhile: its tensors have no history and count no writes."""
    python, numpy = random.getstate(), sys.modules.get("numpy")
    before = numpy.random.get_state() if numpy is not None else None
    inference = torch.inference_mode(False) if torch.is_inference_mode_enabled() else contextlib.nullcontext()
    try:
        with torch.random.fork_rng(devices=[]), inference:
            yield
    finally:
        random.setstate(python)
        if numpy is not None:
            numpy.random.set_state(before)


@contextlib.contextmanager
def precision_settings_kept() -> Iterator[None]:
    """Run the body; settings of fp32 products are afterwards as they were. torch.export writes back what it read of a
    backend, which is what the generic setting made of it, and the backend would follow the generic one no more."""
    read, write = torch._C._get_fp32_precision_getter, torch._C._set_fp32_precision_setter
    generic = read("generic", "all")
    follow = [each for each in ("cuda", "mkldnn") if generic != "none" and read(each, "all") == generic]
    try:
        yield
    finally:
        for backend in follow:
            write(backend, "all", "none")


@contextlib.contextmanager
def old_settings_readable() -> Iterator[None]:
    """Run the body with settings of convolutions and recurrent ops that torch's older flags can express: torch.export
    reads those, and torch raises where the newer ones say something else. Put back afterwards."""
    read, write = torch._C._get_fp32_precision_getter, torch._C._set_fp32_precision_setter
    before = {op: read("cuda", op) for op in ("conv", "rnn")}
    changed = not _readable()
    for value in ("tf32", "ieee") if changed else ():
        for op in before:
            write("cuda", op, value)
        if _readable():
            break
    try:
        yield
    finally:
        for op, value in before.items() if changed else ():
            write("cuda", op, value)


def _readable() -> bool:
    try:
        return torch.backends.cudnn.allow_tf32 in (True, False)
    except RuntimeError:
        return False


def _nesting() -> int:
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()
