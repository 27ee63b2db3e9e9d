"""Which quantisation recipes a device has.

Takes a row of `recipes.RECIPES` and a `Hardware`; gives the one reason why the device lacks it, naming both, or "".
The rows say what the libraries' own checks say (capability tuples, not marketing) and, where a check passes and the
kernel fails all the same, the issue that reports it. Asks neither the machine it runs on nor the library: a plan for
another device is made without it.

A device whose table does not know a unit (`local`, a device of a test) is judged by its capability alone. One that has
no CUDA capability and no AMD architecture, a CPU or Apple's GPU, has no kernel for any recipe that asks for one.
"""

from __future__ import annotations

from precision_audit.hardware import DEVICES, unit
from precision_audit.records import Hardware
from precision_audit.recipes import DEFAULTS, RECIPES, Recipe, of_backend

# Generation by first capability that has it; newer ones go by the nearest below.
_GENERATIONS = {"7.0": "Volta", "7.5": "Turing", "8.0": "Ampere", "8.9": "Ada", "9.0": "Hopper", "10.0": "Blackwell"}


def lacking(recipe: Recipe, hardware: Hardware) -> str:
    """Why the device cannot run the recipe, or ""."""
    version = _version(hardware.capability)
    if hardware.capability.startswith("gfx"):
        return _lacking_on_amd(recipe, hardware)
    if (recipe.minimum or recipe.only) and not version:
        return f"{_named(recipe)} needs a GPU of {_needed(recipe)}; {_is(hardware)}"
    early = bool(recipe.minimum) and version < _version(recipe.minimum)
    if early or (recipe.only and hardware.capability not in recipe.only):
        return f"{_named(recipe)} needs {_needed(recipe)}; {_is(hardware)}"
    if recipe.below and version >= _version(recipe.below):
        since = f"is refused from compute capability {recipe.below} on"
        return f"{_named(recipe)} {since}: {recipe.beyond or recipe.source}; {_is(hardware)}"
    return _without_unit(recipe, hardware)


def chosen(backend: str, name: str, hardware: Hardware) -> Recipe:
    """The recipe of that name; where a policy's rule names none, the backend's default on the device."""
    version = _version(hardware.capability)
    usual = (each for since, each in DEFAULTS.get(backend, ()) if not since or version >= _version(since))
    return RECIPES[backend, name or next(usual, "") or of_backend(backend)[0]]


def conditions(recipe: Recipe, hardware: Hardware) -> tuple[str, ...]:
    """What must be known of the device's software, or of how it runs the recipe there, in words."""
    return tuple(text for capability, text in recipe.asks if capability in ("", hardware.capability))


def existing(hardware: Hardware, backend: str = "") -> tuple[Recipe, ...]:
    """The recipes that the device has, of all backends or of one, in the table's order."""
    return tuple(row for row in RECIPES.values() if row.backend == (backend or row.backend) and not lacking(row, hardware))


def devices(recipe: Recipe) -> tuple[str, ...]:
    """The devices that have the recipe, in the table's order."""
    return tuple(name for name, row in DEVICES.items() if name != "local" and not lacking(recipe, row))


def _lacking_on_amd(recipe: Recipe, hardware: Hardware) -> str:
    if recipe.rocm and hardware.capability not in recipe.rocm:
        return f"{_named(recipe)} runs on AMD's {', '.join(recipe.rocm)}; {_is(hardware)}"
    if not recipe.rocm and (recipe.minimum or recipe.only):
        return f"{_named(recipe)} needs CUDA and {_needed(recipe)}; {_is(hardware)}"
    return _without_unit(recipe, hardware)


def _without_unit(recipe: Recipe, hardware: Hardware) -> str:
    """Products in a format that nothing computes there; weights that are only stored in it need nothing."""
    if not recipe.peak or not recipe.activations or unit(hardware, recipe.peak) != "none":
        return ""
    return f"{_named(recipe)} needs units for {recipe.peak}, which {hardware.name} has not"


def _named(recipe: Recipe) -> str:
    """`fp8 rowwise`; names that say their format stand alone."""
    says = any(word in recipe.name.lower() for word in ("fp8", "float8", "fp4", "int8", "int4"))
    return recipe.name if says or not recipe.peak else f"{recipe.peak} {recipe.name}"


def _needed(recipe: Recipe) -> str:
    if recipe.only:
        return f"compute capability {' or '.join(each + _generation(each) for each in recipe.only)}"
    return f"compute capability {recipe.minimum}{_generation(recipe.minimum)} or later"


def _is(hardware: Hardware) -> str:
    """`h100 (Hopper) is 9.0`, `cpu-amx is a CPU`."""
    if hardware.kernels == "cpu":
        return f"{hardware.name} is a CPU"
    generation = f" ({hardware.architecture})" if hardware.architecture else _generation(hardware.capability)
    kind = hardware.capability or (f"{hardware.vendor}'s GPU" if hardware.vendor else "of no known capability")
    return f"{hardware.name}{generation} is {kind}"


def _generation(capability: str) -> str:
    """` (Hopper)` of 9.0, where it is the first of its generation."""
    return f" ({_GENERATIONS[capability]})" if capability in _GENERATIONS else ""


def _version(capability: str) -> tuple[int, ...]:
    """(9, 0) of "9.0"; empty where it is no CUDA capability."""
    parts = capability.split(".")
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else ()
