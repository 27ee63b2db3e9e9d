"""The nouns of precision-audit: what flows from one stage to the next.

Every record is a frozen dataclass with slots that holds tuples, strings and numbers only. None holds a tensor,
a module or an FX node, so that a record can be compared, hashed, written to a file and read again. The stages are
the verbs: see `pipeline.py`.

A *value* is one tensor of the graph, named by a string: the key of the op that makes it (`encoder.fc1/linear#0`), or
`key:i` for output i of an op with several outputs. Inputs of the model are ops of kind `input` whose key is the
argument's name; parameters and buffers are ops of kind `parameter`, `buffer` or `constant` whose key is their path in
the state dict. Keys of computed ops contain a slash, the others never do.
"""

from __future__ import annotations

from precision_audit.records.applied import Applied, Hooked, NotExpressed, Stored
from precision_audit.records.cost import Cost, Layer, Memory, ModuleCost, OpCost, Padding
from precision_audit.records.facts import NO_FACTS, Facts
from precision_audit.records.findings import Evidence, Finding, Suppression
from precision_audit.records.graph import CustomFunction, Graph, Op, Operand, Source, Tensor
from precision_audit.records.hardware import Certainty, Hardware, Rate, Unit
from precision_audit.records.measured import (
    Backward,
    Beside,
    Flip,
    Inner,
    Quantised,
    Range,
    Rerun,
    Scaled,
    Share,
    Tf32,
    Trap,
)
from precision_audit.records.plan import Cast, Decision, Fold, Plan, Predicted, Refusal, Swap
from precision_audit.records.policy import Policy, Predicate, Rule
from precision_audit.records.report import Lint, Meta, Report
from precision_audit.records.search import Bound, Outcome, Place, Point, Search, Trial
from precision_audit.records.training import Accumulated, LossScale, Optimizer, OptimizerState, Training, Update
from precision_audit.records.verification import Comparison, Step, Steps, Verification
from precision_audit.records.words import (
    SEVERITIES,
    Basis,
    InputError,
    Mode,
    Severity,
    Verdict,
    error_line,
    first_line,
    kind_of,
    shortened,
)

__all__ = [
    "NO_FACTS",
    "SEVERITIES",
    "Accumulated",
    "Applied",
    "Backward",
    "Basis",
    "Beside",
    "Bound",
    "Cast",
    "Certainty",
    "Comparison",
    "Cost",
    "CustomFunction",
    "Decision",
    "Evidence",
    "Facts",
    "Finding",
    "Flip",
    "Fold",
    "Graph",
    "Hardware",
    "Hooked",
    "Inner",
    "InputError",
    "Layer",
    "Lint",
    "LossScale",
    "Memory",
    "Meta",
    "Mode",
    "ModuleCost",
    "NotExpressed",
    "Op",
    "OpCost",
    "Operand",
    "Optimizer",
    "OptimizerState",
    "Outcome",
    "Padding",
    "Place",
    "Plan",
    "Point",
    "Policy",
    "Predicate",
    "Predicted",
    "Quantised",
    "Range",
    "Rate",
    "Refusal",
    "Report",
    "Rerun",
    "Rule",
    "Scaled",
    "Search",
    "Severity",
    "Share",
    "Source",
    "Step",
    "Steps",
    "Stored",
    "Suppression",
    "Swap",
    "Tensor",
    "Tf32",
    "Training",
    "Trap",
    "Trial",
    "Unit",
    "Update",
    "Verdict",
    "Verification",
    "error_line",
    "first_line",
    "kind_of",
    "shortened",
]
