"""Policies: what is read, what is refused and in which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from precision_audit import ops, policy
from precision_audit.records import InputError, Predicate

HEADER = "name: mine\nmode: inference\nformats: {high: fp32, low: bf16}\n"
REST = "  - {name: rest, class: follow}\n"
ON = HEADER + "device: DEVICE\nrules:\n"


def _rules(*lines: str) -> str:
    return HEADER + "rules:\n" + "".join(f"  - {line}\n" for line in lines) + REST


def test_every_key_is_read() -> None:
    text = """
name: everything
description: all keys at once
mode: training
formats: {high: fp32, low: fp16}
device: h100
keep_io_types: no
swap: eligible
hazards: {PA203: error, PA301: off}
tolerances: {relative_l2: 1e-2, "relative_l2:logits": 0.5, gradient_relative_l2: 3.0e-1}
environment: {torch.backends.cuda.matmul.allow_tf32: true, CUBLAS_WORKSPACE_CONFIG: ":4096:8"}
rules:
  - {name: tiny, op: layer_norm, where: {eps: {max: 1e-7}}, class: keep-fp32}
  - name: linears
    op: [linear]
    kind: [KIND]
    module: ["a.*", b]
    module_type: Linear
    where: {k: {multiple_of: 16, min: 32, max: 4096}}
    class: fp8-eligible
    recipe: tensorwise
  - {name: pinned, module: c, class: "pin:bf16"}
  - {name: rest, class: follow}
"""
    row = ops.row("linear")
    assert row is not None
    made = policy.parse(text.replace("KIND", row.kind), "p.yaml")
    assert (made.name, made.mode, made.high, made.low, made.device) == (
        "everything",
        "training",
        "fp32",
        "fp16",
        "h100",
    )
    assert (made.keep_io_types, made.swap, made.casts, made.autocast) == (False, "eligible", "shared", "")
    assert dict(made.hazards) == {"PA203": "error", "PA301": "off"}
    assert dict(made.tolerances) == {"relative_l2": 0.01, "relative_l2:logits": 0.5, "gradient_relative_l2": 0.3}
    assert dict(made.environment) == {
        "torch.backends.cuda.matmul.allow_tf32": "true",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }
    tiny, linears, pinned, rest = made.rules
    assert tiny.where == (Predicate("eps", maximum=1e-7),) and tiny.origin == "p.yaml:13"
    assert (linears.op, linears.module, linears.module_type) == (("linear",), ("a.*", "b"), ("Linear",))
    assert linears.where == (Predicate("k", 16, 32, 4096),) and linears.origin == "p.yaml:14"
    assert (linears.backend, linears.recipe) == ("torchao", "tensorwise")
    assert (pinned.classification, pinned.backend, rest.classification) == ("pin:bf16", "", "follow")
    assert policy.load(made) is made


# text, line of the error, words that it must contain
BAD = [
    ("", 1, ["empty", "rules"]),
    ("# nothing but a comment\n", 1, ["empty"]),
    ("just words\n", 1, ["a mapping"]),
    ("name: x\nrules: [\n", 3, ["not valid YAML"]),
    ("name: x\n\tmode: y\n", 2, ["not valid YAML"]),
    ("name: x\nmode: training\nname: y\n", 3, ["name", "written twice", "line 1"]),
    (HEADER + "rules: !!python/object/apply:os.system [ls]\n", 4, ["rules", "not allowed"]),
    (HEADER + "rules: &a [*a]\n", 4, ["rules", "contains itself"]),
    ("[" * 3000 + "]" * 3000, 1, ["nested too deeply"]),
    (HEADER + "ruls: []\n", 4, ["unknown key 'ruls'", "did you mean rules?"]),
    (HEADER + "rules: []\n", 4, ["rules", "empty"]),
    (HEADER + "rules: {name: a}\n", 4, ["rules", "a list of rules"]),
    ("mode: inference\nrules:\n" + REST, 1, ["name is missing"]),
    ("name: x\nformats: {high: fp32, low: bf16}\nrules:\n" + REST, 1, ["mode is missing", "inference or training"]),
    ("name: x\nmode: inference\nrules:\n" + REST, 1, ["formats is missing", "high: fp32"]),
    ("name: x\nmode: inference\nformats: {high: fp32}\nrules:\n" + REST, 3, ["formats is missing"]),
    (HEADER.replace("inference", "inferrence") + "rules:\n" + REST, 2, ["mode", "did you mean inference?"]),
    (HEADER.replace("bf16", "bf61") + "rules:\n" + REST, 3, ["formats.low", "did you mean bf16?"]),
    (HEADER.replace("bf16", "fp32") + "rules:\n" + REST, 3, ["low fp32 is not smaller than high fp32"]),
    (HEADER.replace("bf16", "fp64") + "rules:\n" + REST, 3, ["not smaller"]),
    (HEADER + "keep_io_types: perhaps\nrules:\n" + REST, 4, ["keep_io_types", "true or false"]),
    (HEADER + "device: h1000\nrules:\n" + REST, 4, ["device", "did you mean h100?"]),
    (
        ON.replace("DEVICE", "a100") + "  - {name: l, op: linear, class: fp8-eligible}\n" + REST,
        6,
        [
            "rules[0].class",
            "fp8 rowwise needs compute capability 8.9 (Ada) or later; a100 (Ampere) is 8.0",
            "no recipe",
        ],
    ),
    (
        ON.replace("DEVICE", "h100") + "  - {name: l, op: linear, class: fp8-eligible, backend: transformer_engine,\n"
        "     recipe: NVFP4BlockScaling}\n" + REST,
        7,
        [
            "rules[0].recipe",
            "NVFP4BlockScaling needs compute capability 10.0 (Blackwell) or later; h100 (Hopper) is 9.0",
            "DelayedScaling, Float8CurrentScaling, Float8BlockScaling",
        ],
    ),
    (
        ON.replace("DEVICE", "rtx5090") + "  - {name: l, op: linear, class: fp8-eligible, recipe: rowwise}\n" + REST,
        6,
        ["pytorch issue 192707", "what torchao has on this one: tensorwise"],
    ),
    (HEADER + "casts: per_consumer\nrules:\n" + REST, 4, ["per_consumer without autocast"]),
    (HEADER + "swap: worthit\nrules:\n" + REST, 4, ["swap", "did you mean worth-it?"]),
    (HEADER + "hazards: {PA1: error}\nrules:\n" + REST, 4, ["hazards.PA1", "PA203"]),
    (HEADER + "hazards: {PA999: off}\nrules:\n" + REST, 4, ["no hazard rule PA999 (did you mean PA", "list rules"]),
    (HEADER + "hazards: {PA508: off}\nrules:\n" + REST, 4, ["no hazard rule PA508 (did you mean PA50"]),
    (HEADER + "hazards:\n  PA501: off\n  PA509: off\nrules:\n" + REST, 6, ["PA509 (did you mean PA50"]),
    (HEADER + "hazards: {PA101: fatal}\nrules:\n" + REST, 4, ["hazards.PA101", "error, warning, note, off"]),
    (HEADER + "tolerances: {relative_l3: 1}\nrules:\n" + REST, 4, ["did you mean relative_l2?"]),
    (HEADER + "tolerances: {relative_l2: small}\nrules:\n" + REST, 4, ["'small' is no number"]),
    (HEADER + "tolerances: {relative_l2: -1}\nrules:\n" + REST, 4, ["too small"]),
    (HEADER + "tolerances: {relative_l2: .nan}\nrules:\n" + REST, 4, ["no number"]),
    (
        HEADER + "environment: {torch.backends.cudnn.alow_tf32: true}\nrules:\n" + REST,
        4,
        ["did you mean", "allow_tf32"],
    ),
    (HEADER + "environment: {torch.backends.cudnn.allow_tf32: 3}\nrules:\n" + REST, 4, ["true, false"]),
    (_rules("{name: a, ops: linear, class: follow}"), 5, ["rules[0].ops", "did you mean op?"]),
    (_rules("{op: linear, class: follow}"), 5, ["rules[0]", "name is missing"]),
    (_rules("{name: a, op: linear}"), 5, ["rules[0]", "class is missing", "keep-<high>"]),
    (_rules("{name: a, op: linear, class: [follow]}"), 5, ["rules[0].class", "a list"]),
    (_rules("{name: a, op: {b: c}, class: follow}"), 5, ["rules[0].op", "a mapping"]),
    (_rules("{name: a, op: lineer, class: follow}"), 5, ["unknown op 'lineer'", "did you mean linear?"]),
    (_rules("{name: a, op: relu_, class: follow}"), 5, ["unknown op 'relu_'", "in-place"]),
    (_rules("{name: a, op: 'convv*', class: follow}"), 5, ["no op fits 'convv*'"]),
    (_rules("{name: a, kind: nonsense, class: follow}"), 5, ["unknown kind 'nonsense'"]),
    (_rules("{name: a, module: 'a[', class: follow}"), 5, ["bad glob 'a['", "never closed"]),
    (_rules("{name: a, module: 'a]', class: follow}"), 5, ["bad glob", "without '['"]),
    (_rules("{name: a, module: '', class: follow}"), 5, ["rules[0].module", "empty"]),
    (_rules("{name: a, module: [], class: follow}"), 5, ["rules[0].module", "empty"]),
    (_rules("{name: a, op: linear, class: follows}"), 5, ["rules[0].class", "follow"]),
    (_rules("{name: a, op: linear, class: safe-in-fp16}"), 5, ["does not fit formats low: bf16", "safe-in-bf16"]),
    (_rules("{name: a, op: linear, class: keep-bf16}"), 5, ["does not fit formats high: fp32", "keep-fp32"]),
    (_rules("{name: a, op: linear, class: 'pin:bf17'}"), 5, ["unknown format", "did you mean bf16?"]),
    (_rules("{name: a, op: linear, class: inherit}"), 5, ["inherit", "autocast"]),
    (_rules("{name: a, op: linear, class: follow, recipe: rowwise}"), 5, ["recipe beside class follow"]),
    (_rules("{name: a, op: linear, class: follow, backend: torchao}"), 5, ["backend beside class follow"]),
    (_rules("{name: a, op: linear, class: fp8-eligible, backend: torchoa}"), 5, ["did you mean torchao?"]),
    (_rules("{name: a, op: linear, class: fp8-eligible, recipe: rowise}"), 5, ["did you mean rowwise?"]),
    (_rules("{name: a, op: conv2d, class: fp8-eligible}"), 5, ["matches no linear"]),
    (HEADER + "device: unheard-of\nrules:\n" + REST, 4, ["unknown device", "h100, ", "local"]),
    (_rules("{name: a, op: topk, where: {ko: {min: 1}}, class: follow}"), 5, ["no argument", "k"]),
    (_rules("{name: a, module: b, class: fp8-eligible}"), 5, ["matches no linear", "op: linear"]),
    (_rules("{name: a, op: linear, class: follow, promote: true}"), 5, ["promote beside class follow"]),
    (_rules("{name: a, op: linear, where: {k: {min: 8, max: 4}}, class: follow}"), 5, ["min 8 is above max 4"]),
    (
        _rules("{name: a, op: linear, where: {place: {min: 101}}, class: follow}"),
        5,
        ["no place is min 101", "0 to 100"],
    ),
    (_rules("{name: a, op: linear, where: {place: {max: -1}}, class: follow}"), 5, ["no place is max -1"]),
    (_rules("{name: a, op: linear, where: {place: {equals: 200}}, class: follow}"), 5, ["no place is equals 200"]),
    (_rules("{name: a, op: 'conv*', where: {rank: {max: -1}}, class: follow}"), 5, ["no rank is max -1", "at least 0"]),
    (_rules("{name: a, op: linear, where: {k: {equals: 1.5}}, class: follow}"), 5, ["no k is equals 1.5", "whole"]),
    (_rules("{name: a, op: linear, where: {n: {equals: wide}}, class: follow}"), 5, ["no n is equals 'wide'"]),
    (_rules("{name: a, op: linear, where: {m: {min: 1.2, max: 1.8}}, class: follow}"), 5, ["no m is min 1.2, max 1.8"]),
    (
        _rules("{name: a, op: linear, where: {k: {multiple_of: 16, min: 1, max: 15}}, class: follow}"),
        5,
        ["no k is multiple_of 16, min 1, max 15", "a multiple of 16"],
    ),
    (_rules("{name: a, op: linear, where: {k: {multiple_of: 0}}, class: follow}"), 5, ["multiple_of", "at least 1"]),
    (_rules("{name: a, op: linear, where: {k: {multiple_of: 1.5}}, class: follow}"), 5, ["no whole number"]),
    (_rules("{name: a, op: linear, where: {k: {equals: 1, max: 2}}, class: follow}"), 5, ["equals beside a bound"]),
    (_rules("{name: a, op: linear, where: {k: {}}, class: follow}"), 5, ["where.k", "nothing given"]),
    (_rules("{name: a, op: linear, where: {k: 16}, class: follow}"), 5, ["where.k", "multiple_of"]),
    (_rules("{name: a, op: linear, where: {}, class: follow}"), 5, ["where", "nothing given"]),
    (_rules("{name: a, op: layer_norm, where: {epsilon: {max: 1}}, class: follow}"), 5, ["no argument", "eps"]),
    (_rules("{name: a, op: linear, class: follow}", "{name: a, op: mm, class: follow}"), 6, ["'a' is taken by line 5"]),
    (_rules("{name: a, class: follow}"), 5, ["'a' matches every op", "at the end"]),
    (_rules("{name: a, module: '*', op: ['*'], class: follow}"), 5, ["matches every op"]),
    (HEADER + "rules:\n  - {name: a, op: linear, class: follow}\n", 5, ["no rule matches every op", "catch-all"]),
    ("name: x\nextends: bf16-inference\nrules:\n" + REST, 4, ["'rest' matches every op", "extends"]),
    ("name: x\nextends: bf16-inferenze\n", 2, ["extends", "did you mean bf16-inference?"]),
    ("name: x\nextends: no/such/file.yaml\n", 2, ["extends", "no such file"]),
    ("name: x\nextends: fp8-training-hopper\n", 2, ["one level", "bf16-training"]),
    ("name: x\nextends: bf16-inference\nformats: {low: fp16}\n", None, ["bf16-inference.yaml:", "safe-in-fp16"]),
    (HEADER + "autocast: cpu\nrules:\n" + REST, 6, ["follow", "autocast", "inherit"]),
]


@pytest.mark.parametrize(("text", "line", "words"), BAD, ids=[str(i) for i in range(len(BAD))])
def test_each_mistake_is_one_line_that_names_place_and_remedy(text: str, line: int | None, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        policy.parse(text, "p.yaml")
    message = str(caught.value)
    assert "\n" not in message
    if line is not None:
        assert message.startswith(f"p.yaml:{line}:"), message
    for word in words:
        assert word in message
    listed = message.partition("expected one of ")[2].split(", ")
    assert len(listed) == len(set(listed)), "a name is listed twice"


@pytest.mark.parametrize(
    ("op", "where"),
    [
        ("linear", "place: {min: 100}"),
        ("linear", "place: {equals: 0}"),
        ("linear", "k: {multiple_of: 16, min: 1, max: 16}"),
        ("linear", "k: {max: 0}"),
        ("layer_norm", "eps: {min: 1.0e-9, max: 1.0e-8}"),  # an argument may be any number
        ("softmax", "dim: {max: -1}"),
        ("gelu", "approximate: {equals: tanh}"),
        ("linear", "k: {min: 0.5}"),
    ],
)
def test_the_ends_of_a_condition_are_possible(op: str, where: str) -> None:
    policy.parse(_rules(f"{{name: a, op: {op}, where: {{{where}}}, class: follow}}"))


def test_op_of_a_kind_that_the_rule_excludes_is_refused() -> None:
    linear, relu = ops.row("linear"), ops.row("relu")
    assert linear is not None and relu is not None and linear.kind != relu.kind
    with pytest.raises(InputError, match=r"p.yaml:5: rules\[0\]\.op.*linear is of kind"):
        policy.parse(_rules(f"{{name: a, op: linear, kind: {relu.kind}, class: follow}}"), "p.yaml")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bf16-inferense", ["unknown policy", "did you mean bf16-inference?"]),
        ("nowhere/mine.yaml", ["no such file"]),
        ("mine.yml", ["no such file", "bf16-inference"]),
    ],
)
def test_unknown_policies(name: str, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        policy.load(name)
    assert all(word in str(caught.value) for word in words)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_bytes(b"\xff\xfe\x00name")
    with pytest.raises(InputError, match="cannot be read"):
        policy.load(path)


def test_extends_puts_own_rules_first_and_merges_mappings_key_by_key(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(
        HEADER.replace("mine", "base")
        + "device: a100\ntolerances: {relative_l2: 0.5, flip_rate: 0.25}\nhazards: {PA101: note, PA102: off}\n"
        + "environment: {A_VARIABLE: one}\nrules:\n  - {name: b, op: mm, class: safe-in-bf16}\n"
        + REST
    )
    child = tmp_path / "child.yaml"
    child.write_text(
        "name: child\nextends: base.yaml\nmode: training\ntolerances: {relative_l2: 0.125}\n"
        "hazards: {PA102: error}\nrules:\n  - {name: c, op: mm, class: keep-fp32}\n"
    )
    made = policy.load(child)
    assert [rule.name for rule in made.rules] == ["c", "b", "rest"]
    assert made.rules[0].origin == f"{child}:7" and made.rules[1].origin == f"{tmp_path / 'base.yaml'}:9"
    assert (made.name, made.mode, made.device, made.low) == ("child", "training", "a100", "bf16")
    assert dict(made.tolerances) == {"relative_l2": 0.125, "flip_rate": 0.25}
    assert dict(made.hazards) == {"PA101": "note", "PA102": "error"}
    assert dict(made.environment) == {"A_VARIABLE": "one"}


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"a": "a.yaml"}, "cannot extend itself"),
        ({"a": "b.yaml", "b": "a.yaml"}, "circle: a.yaml -> b.yaml -> a.yaml"),
        ({"a": "b.yaml", "b": "c.yaml", "c": "b.yaml"}, "circle: a.yaml -> b.yaml -> c.yaml -> b.yaml"),
        ({"a": "b.yaml", "b": "c.yaml", "c": ""}, "one level"),
    ],
)
def test_extends_in_circles_or_chains_is_refused(tmp_path: Path, files: dict[str, str], words: str) -> None:
    for name, parent in files.items():
        extends = f"extends: {parent}\n" if parent else ""
        (tmp_path / f"{name}.yaml").write_text(f"name: {name}\n{extends}{HEADER.partition(chr(10))[2]}")
    with pytest.raises(InputError, match=words) as caught:
        policy.load(tmp_path / "a.yaml")
    assert "a.yaml:2: extends" in str(caught.value)


def test_a_device_that_lacks_a_parents_recipe_is_refused_where_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "parent.yaml").write_text(_rules("{name: l, op: linear, class: fp8-eligible}"))
    child = tmp_path / "child.yaml"
    for name, refused in (("a100", True), ("h100", False), ("local", False)):
        child.write_text(f"name: child\nextends: parent.yaml\ndevice: {name}\n")
        if not refused:
            assert policy.load(child).device == name
            continue
        with pytest.raises(InputError) as caught:
            policy.load(child)
        message = str(caught.value)
        assert (
            message.startswith(f"{child}:3: device: rule 'l': fp8 rowwise needs") and "a100 (Ampere) is 8.0" in message
        )


def test_the_digest_is_of_what_is_said_not_of_where() -> None:
    text = _rules("{name: a, op: linear, class: safe-in-bf16}")
    same = policy.parse("# a comment\n\n" + text, "elsewhere.yaml")
    assert policy.parse(text).digest == same.digest
    assert policy.parse(text.replace("op: linear", "op: mm")).digest != same.digest
    assert policy.parse(text + "tolerances: {relative_l2: 0.5}\n").digest != same.digest
