"""What a policy file may say: every key, the values it takes and one sentence about it, as JSON Schema.

Takes nothing but the op, format, device and recipe tables; gives `schema()`, with which editors complete a policy
file, and the fragments by which `policy_nodes.conform` checks one. Stating the keys once keeps the two in step.
What a schema cannot say (a suffix that must equal the formats, a catch-all at the end) is in `policy_checks`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

# The sizes that a `where` condition may name, beside an op's own arguments.
SIZES: Mapping[str, str] = {
    "k": "length of the sums of a GEMM or convolution: in_features; in-channels per group times kernel",
    "n": "outputs of a GEMM or convolution: out_features, out-channels",
    "m": "rows of a GEMM: product of the leading dimensions; batch times positions of a convolution",
    "numel": "elements of the op's first output",
    "rank": "dimensions of the op's first output",
    "depth": "how many values the op sums into one, at the example's sizes",
    "place": "where among the model's ops of its name it stands, in percent: 0 the first, 100 the last",
}

TOLERANCES: Mapping[str, str] = {
    "relative_l2": "largest relative L2 error of any output",
    "gradient_relative_l2": "largest relative L2 error of any parameter's gradient, in training",
    "flip_rate": "largest share of rows whose largest element is another one",
}

# Modes of a process that change numbers without a cast. Values as torch spells them.
ENVIRONMENT: Mapping[str, tuple[str, ...]] = {
    "torch.backends.cuda.matmul.allow_tf32": ("true", "false"),
    "torch.backends.cudnn.allow_tf32": ("true", "false"),
    "torch.backends.cuda.matmul.allow_fp16_accumulation": ("true", "false"),
    "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction": ("true", "false"),
    "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction": ("true", "false"),
    "torch.backends.fp32_precision": ("none", "ieee", "tf32", "bf16"),
    "torch.backends.cuda.matmul.fp32_precision": ("none", "ieee", "tf32"),
    "torch.backends.cudnn.conv.fp32_precision": ("none", "ieee", "tf32"),
    "torch.backends.cudnn.rnn.fp32_precision": ("none", "ieee", "tf32"),
    "torch.backends.mkldnn.matmul.fp32_precision": ("none", "ieee", "tf32", "bf16"),
    "torch.backends.mkldnn.conv.fp32_precision": ("none", "ieee", "tf32", "bf16"),
}
_VARIABLE = r"[A-Z][A-Z0-9_]+"  # anything else in `environment` is a variable such as CUBLAS_WORKSPACE_CONFIG

CLASS = r"^(fp8-eligible|follow|inherit|safe-in-[a-z0-9_]+|keep-[a-z0-9_]+|pin:[a-z0-9_]+)$"
SEVERITIES = ("error", "warning", "note", "off")


def schema() -> dict[str, Any]:
    """The JSON Schema of a policy file, with the names of the tables filled in."""
    import copy

    made = copy.deepcopy(_FILE)
    rule = made["properties"]["rules"]["items"]["properties"]
    made["properties"]["device"]["enum"] = list(device_names())
    for format_key in ("high", "low"):
        made["properties"]["formats"]["properties"][format_key]["enum"] = list(base_formats())
    made["properties"]["hazards"]["propertyNames"]["enum"] = list(rule_codes())
    rule["op"] = _one_or_more(
        {"anyOf": [{"enum": list(op_names())}, {"type": "string", "pattern": r"[*?\[.:]"}]}, rule["op"]["description"]
    )
    rule["kind"] = _one_or_more({"enum": list(kind_names())}, rule["kind"]["description"])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "precision-audit policy",
        **made,
    }


def fragment() -> dict[str, Any]:
    """The part that `conform` checks; names of tables are checked afterwards, with the nearest one suggested."""
    return _FILE


def op_names() -> tuple[str, ...]:
    from precision_audit import ops

    return tuple(sorted(ops.OPS))


def kind_names() -> tuple[str, ...]:
    from precision_audit import ops

    return tuple(sorted({row.kind for row in ops.OPS.values()}))


def base_formats() -> tuple[str, ...]:
    """Formats that a whole op can run in: the ones torch computes with. fp8 needs a swap, not a cast."""
    return ("fp64", "fp32", "bf16", "fp16")


def rule_codes() -> tuple[str, ...]:
    from precision_audit import rules

    return rules.codes()


def device_names() -> tuple[str, ...]:
    from precision_audit import hardware

    return tuple(sorted(hardware.DEVICES))


def _text(description: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", "description": description, **more}


def _one_or_more(item: dict[str, Any], description: str) -> dict[str, Any]:
    return {
        "description": description,
        "anyOf": [item, {"type": "array", "items": item, "minItems": 1, "description": description}],
    }


def _mapping(description: str, values: dict[str, Any], pattern: str, keys: Iterable[str]) -> dict[str, Any]:
    """A mapping whose keys fit `pattern`; `keys` are the ones to suggest."""
    return {
        "type": "object",
        "description": description,
        "propertyNames": {"pattern": f"^({pattern})$", "examples": list(keys)},
        "additionalProperties": values,
    }


def _number(description: str, **more: Any) -> dict[str, Any]:
    return {"type": "number", "description": description, **more}


_SCALAR: dict[str, Any] = {"type": ["string", "number", "boolean"]}

_CONDITION: dict[str, Any] = {
    "type": "object",
    "description": "one or more of multiple_of, min, max, or equals alone",
    "minProperties": 1,
    "additionalProperties": False,
    "properties": {
        "multiple_of": {"type": "integer", "minimum": 1, "description": "a whole number of at least 1"},
        "min": _number("the smallest value that matches, a number"),
        "max": _number("the largest value that matches, a number"),
        "equals": {
            "description": "the one value that matches",
            "anyOf": [_SCALAR, {"type": "array", "items": _SCALAR, "description": "a list of plain values"}],
        },
    },
}

_RULE: dict[str, Any] = {
    "type": "object",
    "description": "a rule such as {name: gemms, op: [linear, matmul], class: safe-in-bf16}",
    "additionalProperties": False,
    "required": ["name", "class"],
    "properties": {
        "name": _text("a short name, shown in reasons"),
        "op": _one_or_more(
            _text("an op of the op table or a glob"), "aten base names, name.overload, or globs (conv*)"
        ),
        "kind": _one_or_more(_text("a kind of the op table"), "kinds of the op table, see `list ops`"),
        "module": _one_or_more(_text("a module path or a glob"), "globs over the whole module path; * crosses dots"),
        "module_type": _one_or_more(_text("a class name or a glob"), "class names (LayerNorm) or full paths, or globs"),
        "where": {
            "type": "object",
            "description": "conditions on sizes (" + ", ".join(SIZES) + ") or on the op's own arguments (eps, dim)",
            "minProperties": 1,
            "additionalProperties": _CONDITION,
        },
        "class": _text("one of fp8-eligible, safe-in-<low>, follow, keep-<high>, pin:<format>, inherit", pattern=CLASS),
        "backend": _text(
            "what builds the module of an fp8-eligible linear: torchao (default), torchao_quantize, transformer_engine"
        ),
        "recipe": _text(
            "recipe of the backend, by its library's name: rowwise, float8dq-row, MXFP8BlockScaling; else the device's"
        ),
        "recipe_options": {
            "type": "object",
            "description": "fields of the recipe, such as {amax_history_len: 16}",
            "minProperties": 1,
            "additionalProperties": _SCALAR,
        },
        "fuse": _text("what a swap may compute around its linear: mlp, norm or none", enum=["mlp", "norm", "none"]),
        "promote": {"type": "boolean", "description": "true: widen all float inputs to the widest (amp policies)"},
    },
}

_FILE: dict[str, Any] = {
    "type": "object",
    "description": "a mapping with name, mode, formats and rules",
    "additionalProperties": False,
    "required": ["name"],
    "properties": {
        "name": _text("a name for the policy"),
        "description": _text("one sentence on what the policy is for"),
        "extends": _text("a shipped policy or the path of a file; its rules come after this file's"),
        "formats": {
            "type": "object",
            "description": "a mapping such as {high: fp32, low: bf16}",
            "additionalProperties": False,
            "properties": {
                "high": _text("the format of everything that must be accurate"),
                "low": _text("the format that saves time and memory"),
            },
        },
        "mode": _text("training or inference", enum=["training", "inference"]),
        "device": _text("a device of the hardware table, or local"),
        "keep_io_types": {"type": "boolean", "description": "true or false: inputs and outputs keep their formats"},
        "swap": _text("eligible (by shape alone) or worth-it (also predicted faster)", enum=["eligible", "worth-it"]),
        "casts": _text("shared or per_consumer (as torch.autocast casts)", enum=["shared", "per_consumer"]),
        "autocast": _text("cuda or cpu: the device whose torch.autocast is reproduced", enum=["cuda", "cpu"]),
        "rules": {
            "type": "array",
            "description": "a list of rules, the first that matches an op wins",
            "minItems": 1,
            "items": _RULE,
        },
        "hazards": _mapping(
            "severity of a hazard rule, or off: {PA203: error, PA301: off}",
            # YAML 1.1 readers turn a bare `off` into false before a schema sees it
            {"enum": [*SEVERITIES, False], "description": "error, warning, note or off"},
            r"PA\d{3}",
            {"a rule code such as PA203": ""},
        ),
        "tolerances": _mapping(
            "limits of the verification; of one output or parameter as `relative_l2:logits`",
            _number("a number, at least 0", minimum=0),
            "(" + "|".join(TOLERANCES) + ")(:.+)?",
            TOLERANCES,
        ),
        "environment": _mapping(
            "modes of the process that change numbers without a cast",
            _SCALAR,
            "|".join(name.replace(".", r"\.") for name in ENVIRONMENT) + "|" + _VARIABLE,
            [*ENVIRONMENT, "a variable in capitals"],
        ),
    },
}
