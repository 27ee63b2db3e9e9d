"""The file that `code.te_code` fills in: everything in it but the plan's own rows, which stand for `@name@`."""

TEMPLATE = '''"""TransformerEngine modules for a model, as the plan of policy @policy@ has them (@count@ modules).

Written by precision-audit; needs torch and TransformerEngine on a machine with CUDA, nothing else.

    model = convert(build_model().cuda())              # before the optimizer is made; parameters stay the same objects
    for batch, target in batches:
        optimizer.zero_grad(set_to_none=True)
        with autocast():                               # forward and loss; backward and step outside
            loss = loss_function(model(batch), target)
        loss.backward()
        optimizer.step()
    torch.save(original_state_dict(model), "weights.pt")    # with the keys of the unconverted model
    load_original(model, torch.load("weights.pt"))          # and back

Casts that the plan makes between functions of the model's own code are left to torch.autocast.
"""

import contextlib

import torch
import transformer_engine.pytorch as te
from torch import nn
from transformer_engine.common import recipe

@notes@
LOW = @low@

RECIPES = {
@recipes@}
RECIPE = RECIPES[@common@]

# path, class, arguments, {its parameter: the model's}, modules that it computes and that become nn.Identity, recipe
MODULES = [
@rows@]

_PROBES = {
    "MXFP8BlockScaling": te.is_mxfp8_available,
    "NVFP4BlockScaling": te.is_nvfp4_available,
    "Float8BlockScaling": te.is_fp8_block_scaling_available,
}


def check_device():
    """Raise unless this device has the recipes. Probed first: a te.autocast that fails stays switched on."""
    for each in RECIPES.values():
        available, reason = _PROBES.get(type(each).__name__, te.is_fp8_available)(return_reason=True)
        if not available:
            raise RuntimeError(f"{type(each).__name__}: {reason}")


def convert(model):
    """Put the modules into `model`, in place, over its own parameters; return it."""
    check_device()
    _use_own_names(model)
    for path, *_, gone, _ in MODULES:
        _check_hooks(model, (path, *gone))
    for path, kind, arguments, parameters, gone, name in MODULES:
        values = {own: model.get_parameter(key) for own, key in parameters.items()}
        training, weight = model.get_submodule(path).training, next(iter(values.values()))
        made = kind(**arguments, params_dtype=weight.dtype, device="meta")  # keywords only: the third is not the bias
        for own, value in values.items():
            setattr(made, own, value)
        for own, value in list(vars(made).items()):  # an empty tensor stands for no bias
            if isinstance(value, torch.Tensor) and value.is_meta:
                setattr(made, own, torch.empty_like(value, device=weight.device))
        if RECIPES[name] is not RECIPE:
            _within(made, RECIPES[name])
        for other in gone:
            _put(model, other, nn.Identity())
        _put(model, path, made.train(training))
    return model


@contextlib.contextmanager
def autocast():
    """What a forward pass runs in: outside te.autocast the modules compute in high precision."""
    with torch.autocast("cuda", dtype=LOW), te.autocast(enabled=True, recipe=RECIPE):
        yield


def original_state_dict(model):
    """The state dict with the keys of the model before `convert`, without TransformerEngine's `_extra_state`."""
    back = _keys()
    return {back.get(key, key): value for key, value in model.state_dict().items() if not _is_extra(key)}


def load_original(model, state):
    """Load a state dict with the keys of the model before `convert`, strictly but for `_extra_state`."""
    forth = {key: own for own, key in _keys().items()}
    found = model.load_state_dict({forth.get(key, key): value for key, value in state.items()}, strict=False)
    missing = [key for key in found.missing_keys if not _is_extra(key)]
    if missing or found.unexpected_keys:
        raise RuntimeError(f"missing {missing}, unexpected {found.unexpected_keys}")


def _keys():
    """Key after `convert` -> key before it, where they differ."""
    return {f"{path}.{own}": key for path, _, _, parameters, _, _ in MODULES for own, key in parameters.items()}


def _is_extra(key):
    return key.rpartition(".")[2] == "_extra_state"


def _use_own_names(model):
    """A name at the top that a converted module has itself (`graph`) ends in an underscore in the plan."""

    def own(path):
        first, dot, rest = path.partition(".")
        while first.endswith("_") and not hasattr(model, first):
            first = first[:-1]
        return first + dot + rest

    MODULES[:] = [
        (own(path), kind, arguments, {name: own(key) for name, key in parameters.items()}, [*map(own, gone)], name)
        for path, kind, arguments, parameters, gone, name in MODULES
    ]


def _check_hooks(model, paths):
    """A hook would be dropped with the module it is on, and the model would compute something else."""
    for path in paths:
        module = model.get_submodule(path)
        if any(getattr(module, name) for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks",
                                                  "_backward_pre_hooks")):
            raise RuntimeError(f"{path} has hooks, which would be dropped: remove them, or take it out of MODULES")


def _put(model, path, module):
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)


def _within(module, own):
    """A module whose recipe is not that of the others."""
    forward = module.forward

    def inside(*args, **kwargs):
        with te.autocast(enabled=True, recipe=own):
            return forward(*args, **kwargs)

    module.forward = inside
'''
