"""precision-audit: a linter, planner and converter for numerical precision in PyTorch.

    import precision_audit as pa

    report = pa.audit(model, args, policy="fp16-inference")
    result = pa.convert(model, args, policy="fp8-training-hopper")  # result.module, .graph, .report, .plan

Importing this package imports neither torch nor torchao nor TransformerEngine: what is named here is loaded when it is
first used, so that the command line answers `--help` at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from precision_audit import pictures, report
    from precision_audit.analyse.histogram import shares
    from precision_audit.applying import apply, module_filter_fn
    from precision_audit.backends.transformer_engine.code import te_code
    from precision_audit.linting import lint
    from precision_audit.master_weights import MasterWeights
    from precision_audit.pipeline import Conversion, audit, convert
    from precision_audit.policy import load as load_policy
    from precision_audit.records import Applied, InputError, Lint, Report
    from precision_audit.saving import load, save
    from precision_audit.searching import Found, search

_HOME = {
    "apply": ("applying", "apply"),
    "module_filter_fn": ("applying", "module_filter_fn"),
    "Applied": ("records", "Applied"),
    "audit": ("pipeline", "audit"),
    "convert": ("pipeline", "convert"),
    "Conversion": ("pipeline", "Conversion"),
    "Found": ("searching", "Found"),
    "lint": ("linting", "lint"),
    "Lint": ("records", "Lint"),
    "load_policy": ("policy", "load"),
    "report": ("report", ""),
    "pictures": ("pictures", ""),
    "InputError": ("records", "InputError"),
    "MasterWeights": ("master_weights", "MasterWeights"),
    "Report": ("records", "Report"),
    "load": ("saving", "load"),
    "save": ("saving", "save"),
    "search": ("searching", "search"),
    "shares": ("analyse.histogram", "shares"),
    "te_code": ("backends.transformer_engine.code", "te_code"),
}

__all__ = [
    "Applied",
    "Conversion",
    "Found",
    "InputError",
    "Lint",
    "MasterWeights",
    "Report",
    "apply",
    "audit",
    "convert",
    "lint",
    "load",
    "load_policy",
    "module_filter_fn",
    "pictures",
    "report",
    "save",
    "search",
    "shares",
    "te_code",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _HOME[name]
    found = importlib.import_module(f"{__name__}.{module}")
    return getattr(found, attribute) if attribute else found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
