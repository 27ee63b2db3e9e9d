"""precision-audit: a linter, planner and converter for numerical precision in PyTorch.

    import precision_audit as pa

    report = pa.audit(model, args, policy="fp16-inference")
    result = pa.convert(model, args, policy="fp8-training-hopper")  # result.module, .graph, .report, .plan

Importing this package imports neither torchao nor TransformerEngine.
"""

from precision_audit.pipeline import Conversion, audit, convert
from precision_audit.policy import load as load_policy
from precision_audit.records import InputError, Report

__all__ = ["Conversion", "InputError", "Report", "audit", "convert", "load_policy"]
