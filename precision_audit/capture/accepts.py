"""What can be captured at all, told before anything runs.

Takes whatever the caller hands in as a model; raises InputError with the mend where `torch.export` can only fail, and
would say so in words about its own insides. Never runs the model.
"""

from __future__ import annotations

import ast
import keyword
import unicodedata
import warnings
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from precision_audit.records import InputError, kind_of

# Where the modules that replace linears come from.
_SWAPPED = ("torchao.float8.", "transformer_engine.", "precision_audit.backends.")


def check_model(model: Any) -> None:
    """InputError unless `model` is a module, or an exported program, that can be captured."""
    if isinstance(model, torch.export.ExportedProgram):
        return
    if not isinstance(model, nn.Module):
        kind = f"the class {model.__name__}" if isinstance(model, type) else kind_of(model)
        mend = (
            "make an instance of it" if isinstance(model, type) and issubclass(model, nn.Module) else "wrap it in one"
        )
        raise InputError(f"model is {kind}; expected an nn.Module or an ExportedProgram: {mend}")
    _check_names(model)
    for path, module in model.named_modules():
        where = f"module {path}" if path else type(model).__name__
        if isinstance(module, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
            raise InputError(
                f"{where} is TorchScript, which torch.export cannot look into; "
                "give the nn.Module that it was scripted or traced from"
            )
        if type(module).__module__.startswith(_SWAPPED):
            raise InputError(
                f"{where} is {kind_of(module)}, which torch.export cannot look into: this model was swapped "
                "for fp8 before; give the one it was made from"
            )
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            at = f"{path}.{name}" if path else name
            if is_lazy(tensor):
                raise InputError(f"{at} of a lazy module has no shape yet; run the model once on example inputs")
            if tensor is not None and tensor.is_quantized:
                raise InputError(f"{at} is a quantized tensor; give the model before torch.ao.quantization")
            if hasattr(tensor, "__tensor_flatten__"):
                raise InputError(
                    f"{at} is of class {type(tensor).__name__}, a tensor made of others (quantised, sharded, nested), "
                    "which has no format of its own; give the model with the plain tensors that it was made from"
                )
        if _holds_packed_weights(module):
            raise InputError(f"{where} holds packed quantized weights; give the model before torch.ao.quantization")


def _check_names(model: nn.Module) -> None:
    """Names that generated code cannot spell."""
    named = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    for path in (path for path, _ in named):
        for part in path.split("."):
            why = _unspelled(part)
            if why:
                at = path if path.isprintable() else repr(path)[1:-1]
                raise InputError(f"{at}: {part!r} {why}, which generated code cannot use; rename that module")


def _unspelled(name: str) -> str:
    """Why code that torch.fx writes does not reach an attribute: that is `.name`, or `getattr(…, "name")` as it is."""
    if keyword.iskeyword(name):
        return "is a word of Python"
    if name.isidentifier():
        return "" if unicodedata.normalize("NFKC", name) == name else "is another word when Python reads it"
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # an escape that there is not
        try:
            same = ast.literal_eval(f'"{name}"') == name
        except (SyntaxError, ValueError):
            same = False
    return "" if same else "has quotes, backslashes or control characters"


def _holds_packed_weights(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.ao.nn.quantized")
