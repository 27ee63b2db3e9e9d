"""What makes a policy contradictory although every key of it is well formed.

Takes the tree of one file, or the merged policy; raises `InputError` naming file, line, key, what was expected and the
nearest valid name. Checks one file at a time (`check_file`: names, globs, contradictions inside one rule) and then the
whole (`check_whole`: classes that fit the formats, exactly one catch-all, at the end).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NoReturn

from precision_audit import ops, recipes
from precision_audit.formats import bytes_of
from precision_audit.policy import schema as policy_schema
from precision_audit.policy.match import bad_glob, glob, is_catch_all, is_glob
from precision_audit.policy.nodes import Node, nearest
from precision_audit.records import InputError, Policy, Rule

DEFAULT_BACKEND = "torchao"


def check_file(root: Node) -> None:
    """Names and contradictions of one file."""
    entries = root.entries()
    if "device" in entries:
        _known(entries["device"], policy_schema.device_names(), "device")
    for node in entries["formats"].entries().values() if "formats" in entries else ():
        _known(node, policy_schema.base_formats(), "format")
    for key, node in entries["environment"].entries().items() if "environment" in entries else ():
        allowed = policy_schema.ENVIRONMENT.get(key)
        if allowed and node.text().lower() not in allowed:
            node.fail(f"unknown value {node.text()!r}", "one of " + ", ".join(allowed))
    for code, node in entries["hazards"].entries().items() if "hazards" in entries else ():
        _check_hazard(code, node)
    if "rules" in entries:
        seen: dict[str, Node] = {}
        for rule in entries["rules"].items():
            _check_rule(rule)
            name = rule.entries()["name"]
            if name.text() in seen:
                name.fail(f"the name {name.text()!r} is taken by line {seen[name.text()].line}", "another name")
            seen[name.text()] = name


def check_catch_all(root: Node, rules: Iterable[Rule], extends: str) -> None:
    """A file with `extends` has no catch-all; one without has it at the end and nowhere else."""
    nodes = root.entries()["rules"].items() if "rules" in root.entries() else []
    for i, (rule, node) in enumerate(zip(rules, nodes, strict=True)):
        if not is_catch_all(rule):
            continue
        if extends:
            node.fail(
                f"rule {rule.name!r} matches every op, so no rule of {extends} could", "no catch-all beside extends"
            )
        if i != len(nodes) - 1:
            node.fail(
                f"rule {rule.name!r} matches every op, so the rules after it never match", "the catch-all at the end"
            )


def check_whole(policy: Policy, root: Node) -> None:
    """What holds only of the merged policy. `root` is the file the user named."""
    if not policy.rules or not is_catch_all(policy.rules[-1]):
        last = root.entries().get("rules", root).items()[-1]
        last.fail("no rule matches every op", "a catch-all at the end such as {name: rest, class: follow}")
    if bytes_of(policy.low) >= bytes_of(policy.high):
        node = root.entries().get("formats", root)
        node.fail(f"low {policy.low} is not smaller than high {policy.high}", "such as {high: fp32, low: bf16}")
    for rule in policy.rules:
        _check_class(rule, policy)
        _check_recipe(rule, policy)
    _check_recipes(policy, root)
    if policy.casts == "per_consumer" and not policy.autocast:
        root.entries().get("casts", root).fail(
            "per_consumer without autocast", "autocast: cuda or cpu, or casts: shared"
        )


def _check_rule(node: Node) -> None:
    entries = node.entries()
    for key in ("op", "module", "module_type"):
        for pattern in entries[key].items() if key in entries else ():
            if problem := bad_glob(pattern.text()):
                pattern.fail(f"bad glob {pattern.text()!r}: {problem}", "letters with *, ? or [abc]")
    for pattern in entries["op"].items() if "op" in entries else ():
        _check_op(pattern)
    for kind in entries["kind"].items() if "kind" in entries else ():
        _known(kind, ("*", *policy_schema.kind_names()), "kind")
    _check_kinds(entries)
    _check_swap(node)
    _check_promotion(node)
    if "where" in entries:
        for condition in entries["where"].entries().items():
            _check_condition(*condition, entries)


def _check_hazard(code: str, node: Node) -> None:
    from precision_audit import rules

    if code not in rules.codes():
        near = rules.nearest_code(code)
        node.fail(f"no hazard rule {code} (did you mean {near}, {rules.title(near)}?)", "a code of `list rules`")


def _check_op(node: Node) -> None:
    """A base name or `name.overload` must be in the op table; custom ops (`namespace::op`) and globs may be anything,
    but a glob that no known op fits is a typo."""
    text, known = node.text(), ops.OPS
    base = text.partition(".")[0]
    if "::" in text or base in known:
        return
    if is_glob(text):
        pattern = glob(text.partition(".")[0])
        if any(pattern.match(name) for name in known):
            return
        node.fail(f"no op fits {text!r}{nearest(text.strip('*'), known)}", "a glob over ops of the op table")
    inplace = " (in-place variants go by the name without the underscore)" if base.rstrip("_") in known else ""
    node.fail(f"unknown op {text!r}{nearest(base, known)}{inplace}", "an op of the op table, or namespace::op")


def _check_kinds(entries: Mapping[str, Node]) -> None:
    if "op" not in entries or "kind" not in entries:
        return
    kinds = entries["kind"].texts()
    for pattern in entries["op"].items():
        row = ops.row(pattern.text().partition(".")[0])
        if row is not None and "*" not in kinds and row.kind not in kinds:
            pattern.fail(
                f"op {pattern.text()} is of kind {row.kind}, which kind: {', '.join(kinds)} excludes",
                "one or the other",
            )


def _check_swap(node: Node) -> None:
    from precision_audit import backends

    entries = node.entries()
    eligible = entries["class"].text() == "fp8-eligible"
    for key in ("backend", "recipe", "recipe_options", "fuse"):
        if key in entries and not eligible:
            entries[key].fail(f"{key} beside class {entries['class'].text()}", "class: fp8-eligible, or no " + key)
    if not eligible:
        return
    patterns = entries["op"].texts() if "op" in entries else ()
    if not any(glob(pattern).match("linear") or glob(pattern).match("linear.default") for pattern in patterns):
        entries["class"].fail("fp8-eligible for a rule that matches no linear", "op: linear")
    known = backends.listed()
    name = entries["backend"].text() if "backend" in entries else DEFAULT_BACKEND
    if "backend" in entries:
        _known(entries["backend"], tuple(known), "backend")
    if "recipe" in entries:
        _known(entries["recipe"], tuple(known[name].RECIPES), f"recipe of {name}")
    if "recipe_options" in entries:
        _check_options(entries["recipe_options"], entries, name)


def _check_options(node: Node, entries: Mapping[str, Node], backend: str) -> None:
    """Fields of a recipe object. Its library ignores a name it does not know, so that a typo would change nothing."""
    from precision_audit import backends

    if "recipe" not in entries:
        node.fail("recipe_options without recipe, whose fields they are", "recipe: beside it")
    recipe = entries["recipe"].text()
    known = backends.options(backend, recipe)
    if not known:
        node.fail(f"recipe {recipe} of backend {backend} has no fields to set", "no recipe_options")
    given = {name: child.plain() for name, child in node.entries().items()}
    for name, child in node.entries().items():
        problem, expected = backends.option_problem(backend, recipe, name, given)
        if problem:
            child.fail(problem + (nearest(name, known) if name not in known else ""), expected)


def _check_promotion(node: Node) -> None:
    entries = node.entries()
    if "promote" in entries and entries["promote"].flag() and entries["class"].text() != "inherit":
        entries["promote"].fail(f"promote beside class {entries['class'].text()}", "class: inherit")


def _check_condition(key: str, node: Node, rule: Mapping[str, Node]) -> None:
    given = node.entries()
    if "equals" in given and len(given) > 1:
        node.fail("equals beside a bound", "equals alone")
    if "min" in given and "max" in given and given["min"].number() > given["max"].number():
        node.fail(
            f"min {given['min'].text()} is above max {given['max'].text()}, so nothing matches", "min at most max"
        )
    arguments = _arguments(rule)
    _check_possible(key, node, key in policy_schema.SIZES and key not in arguments)
    if arguments and key not in policy_schema.SIZES and key not in arguments:
        known = dict.fromkeys((*policy_schema.SIZES, *sorted(arguments)))
        node.fail(f"{key!r} is no argument of these ops{nearest(key, known)}", "one of " + ", ".join(known))


def _check_possible(key: str, node: Node, size: bool) -> None:
    """Bounds between which there is no number: a size is a whole one, a place a percentage; multiples leave gaps."""
    given = node.entries()
    last = 100 if key == "place" else math.inf
    low = max(0 if size else -math.inf, given["min"].number() if "min" in given else -math.inf)
    high = min(last if size else math.inf, given["max"].number() if "max" in given else math.inf)
    step = given["multiple_of"].number() if "multiple_of" in given else 1 if size else 0
    gap = step and math.isfinite(low) and math.ceil(low / step) * step > high
    odd = False
    if size and "equals" in given:
        value = given["equals"].plain()
        odd = isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= last
    if low > high or gap or odd:
        whole = f"whole number {'from 0 to 100' if last == 100 else 'of at least 0'}" if size else "number"
        multiple = f", here a multiple of {step}" if "multiple_of" in given else ""
        asked = ", ".join(f"{word} {child.plain()!r}" for word, child in given.items())
        node.fail(f"no {key} is {asked}, so nothing matches", f"bounds that a {whole}{multiple} can keep")


def _arguments(rule: Mapping[str, Node]) -> set[str]:
    """Arguments of the ops that the rule names; empty where a glob or a custom op leaves that open."""
    import torch

    names: set[str] = set()
    for pattern in rule["op"].texts() if "op" in rule else ():
        packet = (
            None if is_glob(pattern) or "::" in pattern else getattr(torch.ops.aten, pattern.partition(".")[0], None)
        )
        if packet is None:
            return set()
        names.update(a.name for o in packet.overloads() for a in getattr(packet, o)._schema.arguments)
    return names


_FP8 = ("fp8_e4m3fn", "fp8_e5m2")  # may be asked for, and are refused op by op with the reason (PA413, PA415)


def _check_class(rule: Rule, policy: Policy) -> None:
    given = rule.classification
    prefix, _, suffix = given.rpartition("-")
    role, wanted = {"safe-in": ("low", policy.low), "keep": ("high", policy.high)}.get(prefix, ("", suffix))
    if suffix != wanted:
        _fail(rule, f"does not fit formats {role}: {wanted}", f"{prefix}-{wanted}")
    known = policy_schema.base_formats()
    if given.startswith("pin:") and given[4:] not in (*known, *_FP8):
        _fail(rule, f"pins to an unknown format{nearest(given[4:], known)}", f"pin: and one of {', '.join(known)}")
    if policy.autocast and given in ("follow", "fp8-eligible"):
        expected = f"safe-in-{policy.low}, keep-{policy.high} or inherit"
        _fail(rule, "has no place in a policy that reproduces autocast", expected)
    if given == "inherit" and not policy.autocast:
        _fail(rule, "leaves the format to promotion, as only a policy with autocast: cuda or cpu does", "follow")


def _check_recipes(policy: Policy, root: Node) -> None:
    """A device and a recipe of one policy that cannot go together. Without `device` there is nothing to contradict; of
    a `--device` that lacks the recipe, PA404 speaks."""
    if policy.device in ("", "local"):
        return
    from precision_audit.hardware import device
    from precision_audit.hardware.recipes import chosen, existing, lacking

    hardware = device(policy.device)
    for rule in policy.rules:
        if rule.classification != "fp8-eligible":
            continue
        reason = lacking(chosen(rule.backend, rule.recipe, hardware), hardware)
        if reason:
            there = ", ".join(row.name for row in existing(hardware, rule.backend)) or "no recipe"
            expected = f"another device, or what {rule.backend} has on this one: {there}"
            _written(rule, root).fail(f"rule {rule.name!r}: {reason}", expected)


def _written(rule: Rule, root: Node) -> Node:
    """Where the user's own file says it: the rule's recipe or class, or the device it names for a parent's rule."""
    entries = root.entries()
    for node in entries["rules"].items() if "rules" in entries else ():
        if f"{node.file}:{node.line}" == rule.origin:
            return node.entries().get("recipe", node.entries()["class"])
    return entries.get("device", root)


def _check_recipe(rule: Rule, policy: Policy) -> None:
    """A recipe that stores quantised weights cannot train them."""
    known = {name: recipes.recipe(rule.backend, name) for name in recipes.of_backend(rule.backend)}
    asked = [known[rule.recipe]] if rule.recipe else list(known.values())
    if asked and not any(policy.mode in row.modes for row in asked):
        named = rule.recipe or rule.backend
        modes = " or ".join(asked[0].modes)
        expected = f"mode: {modes}, or backend: {DEFAULT_BACKEND}"
        raise InputError(
            f"{rule.origin}: rule {rule.name!r}: {named} quantises for {modes}, not {policy.mode}; expected {expected}"
        )


def _fail(rule: Rule, problem: str, expected: str) -> NoReturn:
    raise InputError(f"{rule.origin}: rule {rule.name!r}: class {rule.classification} {problem}; expected {expected}")


def _known(node: Node, names: Iterable[str], what: str) -> None:
    known = sorted(set(names))
    if node.text() not in known:
        node.fail(f"unknown {what} {node.text()!r}{nearest(node.text(), known)}", "one of " + ", ".join(known))
