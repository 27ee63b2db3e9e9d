"""The command line: options in, a report on stdout, an exit status out.

Everything that can be refused without the model is refused before it is loaded: options, configuration, policy,
device, the places of the results, a plan to check or apply. The report alone goes to stdout; progress (a bar on a
terminal only), timing and whatever the user's code prints go to stderr. Colours appear on a terminal only, and
never when `NO_COLOR` is set.

Exit status: 0 clean; 1 findings at or above `--fail-on`, a failed verification or a plan that no longer holds;
2 unusable input, in one line that names the cause and the mend (`--debug` adds the traceback); 130 interrupted.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from precision_audit.cli import checking, code, config, options, outputs, search, selection, terminal
from precision_audit.cli.config import Settings
from precision_audit.records import InputError, Plan, Policy, Report

if TYPE_CHECKING:
    from precision_audit.loader import Loaded
    from precision_audit.rewrite.converted import Converted


def run() -> None:
    """The `precision-audit` command."""
    sys.exit(main(sys.argv[1:]))


def main(argv: Sequence[str]) -> int:
    """Run one command and return its exit status; raises nothing."""
    argv = list(argv)
    debug = "--debug" in argv
    try:
        return _dispatch(argv)
    except InputError as error:
        return _failed(" ".join(str(error).split()), debug)
    except KeyboardInterrupt:
        print("precision-audit: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of stdout has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except OSError as error:
        if error.filename is None:
            return _internal(error, debug)
        return _failed(f"{str(error.filename)[:200]}: {error.strerror}; give another file", debug)
    except SystemExit as error:  # argparse after --help
        return error.code if isinstance(error.code, int) else 2
    except Exception as error:
        return _internal(error, debug)


def _internal(error: Exception, debug: bool) -> int:
    text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return _failed(f"internal error: {text}; please report this bug with the output of --debug", debug)


def _failed(text: str, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(f"precision-audit: {text}", file=sys.stderr)
    return 2


def _dispatch(argv: list[str]) -> int:
    command = argv[0] if argv else ""
    if command in options.LATER_COMMANDS:
        raise InputError(f"{command}: not available in this version; there are {', '.join(options.COMMANDS)}")
    command, rest = (command, argv[1:]) if command in options.COMMANDS else ("audit", argv)
    if "--version" in rest:
        from importlib.metadata import version

        print(f"precision-audit {version('precision-audit')}")
        return 0
    given = options.parse(command, rest)
    if command == "list":
        from precision_audit.cli import listing

        print(listing.render(given["what"], given.get("name") or ""))
        return 0
    if command == "rule":
        from precision_audit.rules import manual

        print(manual.page(given["code"]))
        return 0
    if command == "lint":
        from precision_audit.cli import lint

        return lint.run(given.pop("paths"), config.settings(given))
    return _work(command, given.pop("model"), config.settings(given), argv)


def _work(command: str, spec: str, settings: Settings, argv: list[str]) -> int:
    """Audit, convert or search: check, load, run, write, print."""
    from precision_audit import backends

    read = {"model": spec.partition(":")[0], "checkpoint": settings.checkpoint, "policy": settings.policy,
            "calibration data": settings.calibration_data, "plan to apply": settings.apply_plan,
            "plan to check": settings.check_plan}  # fmt: skip
    settings = _of_its_plan(settings)
    written = {"--write-plan": settings.write_plan, "--write-code": settings.write_code}
    places = outputs.check(settings.output, command, written, read, settings.pictures)
    code.check_name(settings.write_code)
    policy, plans = _before(settings, command)
    if command == "convert":
        backends.check_policy(policy)
    started = time.perf_counter()
    with (
        terminal.progress(settings.quiet, 3) as stage,
        terminal.without_warnings(settings.debug),
        contextlib.redirect_stdout(sys.stderr),  # stdout is the report's alone, whatever the model prints
    ):
        stage("loading")
        from precision_audit import loader

        loaded = loader.load(
            spec,
            input_texts=settings.input,
            checkpoint=settings.checkpoint,
            calibration_data=settings.calibration_data,
        )
        loaded_at = time.perf_counter()
        stage("capture, plan, rewrite, verify")
        module: Converted | None
        if command == "search":
            report, module = search.run(loaded, settings, argv, _options(settings), places.model is not None)
        else:
            report, module = _pipeline(loaded, policy, settings, plans, argv)
        if module is None and (command == "convert" or settings.show_graph):
            raise InputError(f"{loaded.source} has no weights (meta device): {command} it with --checkpoint")
        stage("report")
    report = selection.selected(report, policy, settings, loaded.provenance["made_up"], _options(settings))
    for message in loaded.messages:
        terminal.say(message)
    report, problems = checking.checked(report, plans, policy, settings)
    report = outputs.after_writing(report, places.model if module is not None else None)
    _write(module, report, loaded, settings, places)
    if not settings.quiet:
        terminal.say(f"loaded in {loaded_at - started:.1f} s, {command} in {time.perf_counter() - loaded_at:.1f} s")
    _graph(module, loaded, policy, settings)
    print(render(report, settings.output_format, settings.verbose, terminal.color()), end="", flush=True)
    return status(report, problems, settings)


def status(report: Report, problems: Sequence[str], settings: Settings) -> int:
    """0 or 1: `--fail-on never` is about findings, `--exit-zero` about everything."""
    if settings.exit_zero:
        return 0
    found = selection.fails(report.findings, settings)
    failed = report.verification is not None and not report.verification.passed
    return 1 if found or failed or problems else 0


def render(report: Report, form: str, verbose: bool = False, color: bool = False) -> str:
    """The report in one of the formats of `--output-format`."""
    from precision_audit import report as reports

    return reports.render(report, form, verbose=verbose, color=color)


def _before(settings: Settings, command: str) -> tuple[Policy, dict[str, Plan | None]]:
    """Policy, device and plans, refused before the model is loaded."""
    from precision_audit import hardware
    from precision_audit import policy as policies

    policy = search.policies(settings)[0] if command == "search" else policies.load(settings.policy)
    code.check(settings.write_code, policy)
    if settings.device is not None:
        hardware.device(settings.device)
    plans = {"apply": _plan(settings.apply_plan), "check": _plan(settings.check_plan)}
    applied = plans["apply"]
    if applied is not None and applied.mode != policy.mode:
        raise InputError(
            f"--apply-plan {settings.apply_plan}: is for {applied.mode}, policy {policy.name} is for {policy.mode}; "
            f"add --policy {applied.policy}"
        )
    return policy, plans


def _of_its_plan(settings: Settings) -> Settings:
    """Where a plan is applied or checked and no policy was named: under the shipped policy that it was made for."""
    from precision_audit import policy as policies

    given = settings.apply_plan or settings.check_plan
    if not given or "policy" in settings.origins:
        return settings
    try:
        made = _plan(given)
    except InputError:  # said where the plan is needed
        return settings
    return replace(settings, policy=made.policy) if made and made.policy in policies.shipped() else settings


def _plan(path: str | None) -> Plan | None:
    from precision_audit.plan import file as plan_file

    return plan_file.read(Path(path)) if path else None


def _pipeline(
    loaded: Loaded, policy: Policy, settings: Settings, plans: Mapping[str, Plan | None], argv: list[str]
) -> tuple[Report, Converted | None]:
    from precision_audit import pipeline

    command = shlex.join(["precision-audit", *argv])
    request = pipeline.Request(
        loaded.model,
        loaded.args,
        loaded.kwargs,
        policy=policy,
        device=settings.device,
        calibration=loaded.calibration,
        dynamic_shapes=loaded.dynamic_shapes,
        loss=loaded.loss,
        optimizer=loaded.optimizer if policy.mode == "training" or settings.steps else None,
        steps=settings.steps,
        apply_plan=plans["apply"],
        check_plan=plans["check"],
        hand_back=argv[0] == "convert",
        provenance={**loaded.provenance, "command": command, "options": _options(settings)},
    )
    return pipeline.run(request)


def _options(settings: Settings) -> str:
    """The options that the next command needs to speak of the same model, inputs and policy."""
    words = ["--policy", str(settings.policy)]
    for name in ("device", "checkpoint", "calibration_data"):
        value = getattr(settings, name)
        words += [f"--{name.replace('_', '-')}", str(value)] if value else []
    for text in settings.input:
        words += ["--input", text]
    if plan := settings.apply_plan or settings.check_plan:
        words += ["--apply-plan", plan]
    return shlex.join(words)


def _write(
    module: Converted | None, report: Report, loaded: Loaded, settings: Settings, places: outputs.Outputs
) -> None:
    """Every file of this run, each in one go; the model first, which can still be refused (swaps in a .pt2)."""
    from precision_audit.saving import atomic

    if places.model is not None and module is not None:
        from precision_audit import saving

        saving.save(module, report.plan, places.model, loaded.args, loaded.kwargs, model=loaded.source)
        terminal.say(f"wrote {places.model}")
    for path, form in places.reports:
        text = render(report, form, settings.verbose)
        atomic.write_file(path, lambda partial, text=text: partial.write_text(text, encoding="utf-8"))  # type: ignore[misc]
        terminal.say(f"wrote {path}")
    if settings.write_plan:
        from precision_audit.plan import file as plan_file

        atomic.write_file(Path(settings.write_plan), lambda partial: plan_file.write(report.plan, partial))
        terminal.say(f"wrote {settings.write_plan}")
    if settings.write_code:
        code.write(report.plan, Path(settings.write_code))
    if places.pictures is not None:
        from precision_audit.pictures import of_report

        drawn, why = of_report.draw(report, places.pictures)
        for line in [f"wrote {path}" for path in drawn] or [why]:
            terminal.say(line)


def _graph(module: Converted | None, loaded: Loaded, policy: Policy, settings: Settings) -> None:
    """The FX graph of `--show-graph`; beside a machine-readable report it goes to stderr."""
    if settings.show_graph is None or module is None:
        return
    graph = module.graph
    if settings.show_graph == "before":
        from torch import nn

        from precision_audit.capture import capture, private_copy

        model = private_copy(loaded.model) if isinstance(loaded.model, nn.Module) else loaded.model
        shapes, kept = loaded.dynamic_shapes, module.functions
        graph = capture(
            model, loaded.args, loaded.kwargs, mode=policy.mode, dynamic_shapes=shapes, kept=kept
        ).root.graph
    with contextlib.redirect_stdout(sys.stderr) if settings.output_format == "json" else contextlib.nullcontext():
        graph.print_tabular()
        print()
