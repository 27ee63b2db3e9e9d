"""The options of the command line, one row each; `pyproject.toml` takes the same names.

Takes nothing; gives the table, and a parser for one command made from it. An option of later work has `later` set: it
is known, so that typing it says "not available in this version" instead of "unknown", and it is never accepted
silently.
"""

from __future__ import annotations

import argparse
import difflib
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from precision_audit.records import InputError

Kind = Literal["text", "list", "flag", "number"]


@dataclass(frozen=True, slots=True)
class Option:
    key: str  # long name without dashes: `fail-on`
    help: str
    metavar: str = ""
    short: str = ""
    kind: Kind = "text"
    choices: tuple[str, ...] = ()
    later: tuple[str, ...] = ()  # choices that are not available yet; ("*",) when the whole option is not
    in_file: bool = True  # may stand in pyproject.toml
    path: bool = False  # in a file, relative to that file's folder
    command: str = ""  # the only command that has it


COMMANDS = {
    "audit": "audit MODEL and report (the default: `precision-audit MODEL` is the same)",
    "convert": "convert MODEL and write the result to OUT, a .pt2 file or a folder",
    "search": "find the fastest plan for MODEL that keeps to an error budget, and prove it",
    "lint": "read training scripts or folders of them as text, run nothing, and report what breaks mixed precision",
    "list": "show the rules, policies, devices, recipes, formats or ops that there are",
    "rule": "print the manual of one rule, such as PA101, with its examples",
}
LATER_COMMANDS = ("diff",)

OPTIONS = (
    Option("policy", "which format where: a shipped name (`list policies`) or a YAML file", "NAME|FILE"),
    Option("device", "what the plan is made for (`list devices`); else the policy's, else local", "NAME"),
    Option("input", "an input of forward, made up from its shape, or the size of a named dimension; repeatable",
           "[NAME=]SHAPE:FORMAT[:LOW..HIGH] | DIM=SIZE", kind="list"),
    Option("checkpoint", "weights, strictly: every tensor of the model and none beside", "W.safetensors", path=True),
    Option("calibration-data", "further inputs: arrays named as forward's arguments, samples along the first axis",
           "FILE.npz|.safetensors", path=True),
    Option("budget", "what the found plan must keep to, measured: relative_l2, sqnr (dB), argmax_flip, metric, "
           "metric_drop, metric_rise or a function of both outputs (relative_l2=1e-2); repeatable",
           "NAME=NUMBER | MOD:FN=NUMBER", kind="list", command="search"),
    Option("metric", "function of the model that returns your own number; else the model file's metric", "MOD:FN",
           command="search"),
    Option("output-format", "what goes to stdout (full)",
           choices=("full", "concise", "json", "markdown", "html", "sarif", "github"),
           later=("html", "sarif", "github")),
    Option("output", "also write the report there, format by suffix (.txt .json .md), repeatable; for convert also OUT",
           "FILE", short="o", kind="list", path=True),
    Option("steps", "training steps to take as evidence under a policy of mode training (3)", "N", kind="number"),
    Option("pictures", "draw there what training does to the numbers, or what a search found (needs matplotlib)",
           "FOLDER", path=True),
    Option("show-graph", "print the FX graph as captured, or as converted", choices=("before", "after")),
    Option("select", "report only findings whose rule begins so, repeatable", "PA4", kind="list"),
    Option("ignore", "leave out findings whose rule begins so, repeatable", "PA4", kind="list"),
    Option("fail-on", "lowest severity of a finding that makes the exit status 1 (error)",
           choices=("error", "warning", "never")),
    Option("exit-zero", "exit with 0 whatever was found; 2 stays for what cannot be used", kind="flag"),
    Option("min-basis", "weakest evidence that counts; findings with weaker evidence are left out (assumed)",
           choices=("proved", "observed", "assumed")),
    Option("baseline", "report only what is new since this report", "FILE", later=("*",)),
    Option("write-plan", "write the plan, to be reviewed and committed", "FILE", path=True),
    Option("write-code", "write Python that performs the plan's TransformerEngine swaps on your own model", "FILE.py",
           path=True),
    Option("check-plan", "check a written plan against model and policy; status 1 if it fails", "FILE", path=True),
    Option("apply-plan", "use a written plan instead of making one", "FILE", path=True),
    Option("verbose", "list every op and every finding", short="v", kind="flag"),
    Option("quiet", "no progress and no timing on stderr", short="q", kind="flag"),
    Option("debug", "show the traceback of an error", kind="flag", in_file=False),
    Option("config", "read [tool.precision-audit] there instead of looking for pyproject.toml", "FILE", in_file=False),
    Option("isolated", "read no configuration file", kind="flag", in_file=False),
)  # fmt: skip

# What reading a script has a use for.
LINT_KEYS = ("output-format", "output", "select", "ignore", "fail-on", "exit-zero", "min-basis", "verbose", "quiet",
             "debug", "config", "isolated")  # fmt: skip

_DIGITS = 9  # of a number
_NUMBER = re.compile(rf"0*[1-9][0-9]{{0,{_DIGITS - 1}}}")
_PREFIX = re.compile(r"PA[0-9]*")

BY_KEY = {option.key: option for option in OPTIONS}

_EPILOG = (
    "MODEL is model.py, model.py:attr, package.module:attr or file.pt2. Auditing executes the model's Python file: "
    "audit only code that you would run. A report goes to stdout, everything else to stderr. "
    "Exit status: 0 clean, 1 findings at or above --fail-on or a failed check, 2 unusable input."
)


_LINT_EPILOG = (
    "A script is read as text: neither it nor anything it imports is run, and torch is not needed. "
    "Exit status: 0 clean, 1 findings at or above --fail-on, 2 unusable input."
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see: {self.prog} --help")


def parse(command: str, argv: Sequence[str]) -> dict[str, Any]:
    """What was typed after the command, by option key; only what was typed. `model` or `what` is the positional."""
    _refuse_unknown(argv, LINT_KEYS if command == "lint" else tuple(BY_KEY))
    _refuse_foreign(command, argv)
    given = vars(_parser(command).parse_args(list(argv)))
    given = {key.replace("_", "-"): value for key, value in given.items()}
    for key, value in given.items():
        check(key, value, f"--{key}")
    return given


def check(key: str, value: Any, where: str) -> None:
    """Refuse what belongs to later work, values that are empty (a shell's variable that is not set), and rule prefixes
    that can match nothing."""
    option = BY_KEY.get(key)
    if option is None:
        return
    for text in value if isinstance(value, list | tuple) else [value]:
        if isinstance(text, str) and (not text.strip() or "\0" in text):
            what = "has a NUL character" if text.strip() else "is empty"
            expected = " or ".join(option.choices) or option.metavar
            raise InputError(f"{where} {text!r}: {what}; expected {expected}, or leave the option out")
    if "*" in option.later or value in option.later:
        what = where if "*" in option.later else f"{where} {value}"
        left = [choice for choice in option.choices if choice not in option.later and "*" not in option.later]
        raise InputError(f"{what}: not available in this version{'; use ' + ', '.join(left) if left else ''}")
    if option.kind == "number" and not _NUMBER.fullmatch(str(value)):
        said = f"a whole number above zero, of at most {_DIGITS} digits"
        raise InputError(f"{where} {textwrap.shorten(str(value), 40)}: expected {said}")
    if key in ("select", "ignore"):
        for prefix in (part for text in value for part in text.split(",")):
            if not _PREFIX.fullmatch(prefix):
                raise InputError(f"{where} {prefix}: no rule begins so; expected PA and digits, such as PA4 or PA402")


def _parser(command: str) -> _Parser:
    title = "precision-audit" if command == "audit" else f"precision-audit {command}"
    lines = [f"  {name:8} {text}" for name, text in COMMANDS.items()]
    description = COMMANDS[command] + ("\n\ncommands:\n" + "\n".join(lines) if command == "audit" else "")
    parser = _Parser(
        prog=title,
        description=description,
        epilog=_LINT_EPILOG if command == "lint" else _EPILOG,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if command in ("list", "rule"):
        if command == "list":
            parser.add_argument("what", choices=("rules", "policies", "devices", "recipes", "formats", "ops"))
            parser.add_argument("name", metavar="NAME", nargs="?", help="of a device: everything that is known of it")
        else:
            parser.add_argument("code", metavar="CODE")
        parser.add_argument("--debug", action="store_true", help=BY_KEY["debug"].help)
        return parser
    if command == "lint":
        parser.add_argument("paths", metavar="SCRIPT|FOLDER", nargs="+")
    else:
        parser.add_argument("model", metavar="MODEL")
    for option in OPTIONS if command != "lint" else map(BY_KEY.__getitem__, LINT_KEYS):
        if option.command not in ("", command):
            continue
        flags = [f"-{option.short}"] if option.short else []
        later = " (not available in this version)" if "*" in option.later else ""
        extra: dict[str, Any] = {"help": option.help + later, "dest": option.key.replace("-", "_")}
        if option.kind == "flag":
            extra["action"] = "store_true"
        else:
            extra |= {"action": "append"} if option.kind == "list" else {}
            extra |= {"choices": option.choices} if option.choices else {"metavar": option.metavar}
        parser.add_argument(*flags, f"--{option.key}", **extra)
    if command == "audit":
        parser.add_argument("--version", action="store_true", help="print the version")
    return parser


def _refuse_unknown(argv: Sequence[str], keys: Sequence[str]) -> None:
    """argparse would take the value of a mistyped option for MODEL: name the option first."""
    known = [f"--{key}" for key in keys] + ["--help", "--version"]
    for word in argv:
        if word == "--":
            return
        name = word.partition("=")[0]
        if word.startswith("--") and name not in known:
            if name[2:] in BY_KEY:
                raise InputError(f"{name}: is no option of lint, which runs no model; see: precision-audit lint --help")
            near = difflib.get_close_matches(name, known, 1)
            raise InputError(f"unknown option {name}; {f'did you mean {near[0]}?' if near else 'see --help'}")


def _refuse_foreign(command: str, argv: Sequence[str]) -> None:
    """An option that one command alone has."""
    for word in argv[: argv.index("--")] if "--" in argv else argv:
        option = BY_KEY.get(word.removeprefix("--").partition("=")[0]) if word.startswith("--") else None
        if option is not None and option.command not in ("", command) and command not in ("list", "rule", "lint"):
            raise InputError(f"--{option.key}: is an option of {option.command}; use precision-audit {option.command}")
