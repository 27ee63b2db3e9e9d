"""Write the Python file that performs a plan's TransformerEngine swaps on the user's own model.

Takes a `Plan`; gives text that needs torch and TransformerEngine, not this package: `convert(model)` puts the modules
in (parameters by identity), `autocast()` is what a forward pass runs in, and state dicts go to and from the original's
keys. The model keeps its own Python code, so a fused module can only take the place of modules: norm, activation and
second linear become `nn.Identity`. Where the activation is a function in the user's forward, the file says so and uses
`te.LayerNormLinear` and `te.Linear` for that MLP. What the plan has beyond swaps (casts between functions) is left to
`torch.autocast`, and the file says that too. Never runs anything.

Paths of modules, the policy's name and a plan file's words are anybody's text: they go in as literals, escaped in the
docstring and on one line in comments. What has to stand as code itself (classes, arguments, fields) must be known.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from precision_audit.applying.given import Given, plan_of
from precision_audit.backends.transformer_engine.options import ENUM_FIELDS, OPTIONS, problem
from precision_audit.backends.transformer_engine.patterns import gated
from precision_audit.backends.transformer_engine.template import TEMPLATE
from precision_audit.records import InputError, Plan, Swap

NAME = "transformer_engine"
_DTYPES = {"bf16": "torch.bfloat16", "fp16": "torch.float16", "fp32": "torch.float32"}

# Arguments of the constructors that a swap has beside its sizes.
_NORM = ("bias", "eps", "normalization")
_KINDS = {"te.Linear": ("bias",), "te.LayerNormLinear": _NORM, "te.LayerNormMLP": (*_NORM, "activation")}


@dataclass(frozen=True, slots=True)
class _Row:
    """One module of the written file. `gone` are the modules that become `nn.Identity`."""

    path: str
    kind: str
    arguments: tuple[tuple[str, object], ...]
    parameters: tuple[tuple[str, str], ...]
    gone: tuple[str, ...]
    recipe: str


def te_code(plan: Given) -> str:
    """The file's text, for a Plan, a Report, a Conversion or a plan file. InputError for one without such swaps."""
    plan = plan_of(plan)
    swaps = [swap for swap in plan.swaps if swap.backend == NAME]
    if not swaps:
        raise InputError(
            f"the plan of policy {plan.policy} swaps nothing by backend {NAME}; expected a plan made under a policy "
            "such as fp8-training-hopper-te"
        )
    for swap in swaps:
        _check(swap)
    recipes, names = _recipes(swaps)
    rows, notes = _rows(plan, swaps, names)
    common = Counter(row.recipe for row in rows).most_common(1)[0][0]
    fields = {
        "policy": _one_line(plan.policy).replace("\\", "\\\\").replace('"', '\\"'),
        "count": str(len(rows)),
        "notes": "".join(f"# {_one_line(note)}\n" for note in [*notes, *_advice(plan, swaps)]),
        "low": _DTYPES[plan.low],
        "recipes": "".join(f"    {name!r}: {text},\n" for name, text in recipes.items()),
        "common": repr(common),
        "rows": "".join(_spelled(row) for row in rows),
    }
    return re.sub(r"@(\w+)@", lambda found: fields[found[1]], TEMPLATE)


def _check(swap: Swap) -> None:
    """InputError for what a plan file says and TransformerEngine does not know."""
    wanted, given = _KINDS.get(swap.kind, ()), dict(swap.options)
    sizes = [size for size in (swap.k, swap.n) if not isinstance(size, int)]
    fields = dict(swap.recipe_options) if swap.recipe in OPTIONS else {}
    faults = [
        f"no class {swap.kind!r}; expected one of {', '.join(_KINDS)}" if not wanted else "",
        f"no recipe {swap.recipe!r}; expected one of {', '.join(OPTIONS)}" if swap.recipe not in OPTIONS else "",
        *(problem(swap.recipe, name, fields)[0] for name in fields),
        f"size {sizes[0]!r} is no whole number" if sizes else "",
        f"options are {', '.join(map(repr, given)) or 'none'}; expected {', '.join(wanted)}"
        if wanted and set(given) != set(wanted)
        else "",
        *(f"{name} cannot be {value!r}" for name, value in given.items() if not _is_plain(value)),
        "it covers no second linear" if swap.kind == "te.LayerNormMLP" and len(swap.linears) != 2 else "",
        "it covers no norm" if swap.kind == "te.LayerNormLinear" and not swap.covers else "",
    ]
    fault = next(filter(None, faults), "")
    if fault:
        raise InputError(f"the plan's swap at {swap.module}: {fault}; write the plan again with --write-plan")


def _is_plain(value: object) -> bool:
    return isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value))


def _one_line(text: str) -> str:
    """With what would end a line, or not be seen in it, escaped."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def _recipes(swaps: list[Swap]) -> tuple[dict[str, str], dict[tuple[str, object], str]]:
    """Constructor calls by name, and the name that each swap's recipe has."""
    calls: dict[str, str] = {}
    names: dict[tuple[str, object], str] = {}
    for swap in swaps:
        key = (swap.recipe, swap.recipe_options)
        if key in names:
            continue
        given = ", ".join(f"{name}={_value(name, value)}" for name, value in swap.recipe_options)
        name = swap.recipe if swap.recipe not in calls else f"{swap.recipe} {len(calls) + 1}"
        names[key], calls[name] = name, f"recipe.{swap.recipe}({given})"
    return calls, names


def _value(name: str, value: object) -> str:
    return f"recipe.Format.{value}" if name in ENUM_FIELDS else repr(value)


def _rows(plan: Plan, swaps: list[Swap], names: dict[tuple[str, object], str]) -> tuple[list[_Row], list[str]]:
    """The modules in the plan's order; a module that is called twice once."""
    calls = Counter(key.rpartition("/")[0] for key, _ in plan.formats if "#" in key)
    rows: dict[str, _Row] = {}
    notes: list[str] = []
    for swap in swaps:
        for each in _expressible(swap, calls, notes):
            gone = [key.rpartition("/")[0] for key in each.covers]
            recipe = names[swap.recipe, swap.recipe_options]
            row = _Row(each.module, each.kind[3:], _arguments(each), _parameters(each), tuple(gone), recipe)
            rows.setdefault(each.module, row)
    return list(rows.values()), notes


def _expressible(swap: Swap, calls: Counter[str], notes: list[str]) -> Iterator[Swap]:
    """The swap, or the smaller ones that a model's own forward leaves room for."""
    between = [key for key in swap.covers if key not in swap.linears][1:]  # after the norm
    modules = [key.rpartition("/")[0] for key in between]
    one_module = len(between) == 1 and modules[0] != "" and calls[modules[0]] == 1
    if swap.kind != "te.LayerNormMLP" or one_module:
        yield swap
        return
    second = next(key for key in swap.covers if key in swap.linears)
    notes.append(
        f"{swap.module}: the plan has one te.LayerNormMLP here; its activation is no module of its own, so that the "
        f"model's forward calls it: te.LayerNormLinear, and te.Linear at {second.rpartition('/')[0]}"
    )
    own = dict(swap.parameters)
    options = tuple(each for each in swap.options if each[0] != "activation")
    first = {name.replace("fc1_", ""): key for name, key in own.items() if not name.startswith("fc2_")}
    yield replace(
        swap, kind="te.LayerNormLinear", covers=swap.covers[:1], parameters=tuple(first.items()), options=options
    )
    rows = int(swap.n) // (2 if gated(str(dict(swap.options)["activation"])) else 1)
    bias = (("bias", dict(swap.options)["bias"]),)
    module = second.rpartition("/")[0]
    yield replace(
        swap, op=second, module=module, kind="te.Linear", covers=(), parameters=(), options=bias, k=rows, n=swap.k
    )


def _arguments(swap: Swap) -> tuple[tuple[str, object], ...]:
    options = dict(swap.options)
    if swap.kind != "te.LayerNormMLP":
        return (("in_features", swap.k), ("out_features", swap.n), *swap.options)
    halves = 2 if gated(str(options["activation"])) else 1
    return (("hidden_size", swap.k), ("ffn_hidden_size", int(swap.n) // halves), *swap.options)


def _parameters(swap: Swap) -> tuple[tuple[str, str], ...]:
    if swap.parameters:
        return swap.parameters
    names = ("weight", "bias") if dict(swap.options)["bias"] else ("weight",)
    return tuple((name, f"{swap.module}.{name}") for name in names)


def _spelled(row: _Row) -> str:
    arguments = ", ".join(f"{name}={value!r}" for name, value in row.arguments)
    parameters = ", ".join(f"{own!r}: {key!r}" for own, key in row.parameters)
    return (
        f"    ({row.path!r}, te.{row.kind}, dict({arguments}),\n"
        f"     {{{parameters}}}, {list(row.gone)!r}, {row.recipe!r}),\n"
    )


def _advice(plan: Plan, swaps: list[Swap]) -> Iterator[str]:
    """What a plan cannot make true by itself."""
    for condition in sorted({text for swap in swaps for text in swap.constraints}):
        yield f"must hold: {condition}"
    called = Counter(swap.module for swap in swaps)
    delayed = any(swap.recipe == "DelayedScaling" for swap in swaps)
    for module in sorted(name for name, count in called.items() if count > 1 and delayed):
        yield f"{module} is called more than once: delayed scaling does not support that within one autocast"
    if delayed:
        yield "DelayedScaling raises under torch.compile; its history is in `_extra_state`, a pickle on loading"
    if plan.mode == "training":
        yield "recompute activations with te.checkpoint, not torch.utils.checkpoint: maxima would be counted twice"
        yield "memory goes up: each weight also has a quantised copy or two; te.quantized_model_init stores these only"
        yield "under FSDP2 check the format of the weights after wrapping: quantised storage can be undone by it"
