"""PA604 optimizer state in a low format

What it does: takes the optimizer's steps over parameters in the format that they have or would have after a cast of
the module (torch keeps the state in the same), and rounds its eps and what it keeps of squared gradients to it.
Why it is a hazard: Adam divides by sqrt(v) + eps. In fp16 an eps of 1e-8 is zero and v, the mean of squared gradients,
vanishes with gradients of 2e-4: the first step divides by zero. And a mean that moves by 1 - beta2 = 0.001 of itself
cannot fall in bf16, where half the spacing is at least 0.002 of a number: v only ever grows.
What to do: fp32 parameters and state, as every conversion for training has; for a model in a low format
`precision_audit.MasterWeights(optimizer)`, or at the least an eps that the format holds, with a loss scale.
References: pytorch/pytorch issue 8860; Micikevicius et al., Mixed Precision Training (2018), section 3.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from precision_audit.analyse.histogram import shares
from precision_audit.formats import Format
from precision_audit.records import Evidence, Finding, Optimizer, OptimizerState, Severity
from precision_audit.rules import Context, Example, found
from precision_audit.rules.stored import Stored, least_half_step, stored

_SQUARES = (
    "exp_avg_sq",
    "square_avg",
    "sum",
    "max_exp_avg_sq",
    "exp_inf",
)  # torch.optim's names for what is divided by


def check(context: Context) -> Iterator[Finding]:
    training, where = context.facts.training, stored(context)
    optimizer = training.optimizer if training else None
    if optimizer is None or where is None:
        return
    squares = next((each for each in optimizer.states if each.name in _SQUARES), None)
    options = dict(optimizer.options)
    vanishes = _vanishes(options.get("eps", 0.0), where.format)
    if optimizer.spoiled or vanishes:
        yield _placed(_update(optimizer, squares, options.get("eps", 0.0), where), optimizer, where)
    if squares is not None and where.own and _stuck(options.get("beta2", 0.0), where.format):
        yield _placed(_mean(optimizer, squares, options["beta2"], where.format), optimizer, where)


def _update(optimizer: Optimizer, squares: OptimizerState | None, eps: float, where: Stored) -> Finding:
    """What comes of the update itself, tried over parameters in the format."""
    name = where.format.name
    spoiled, vanishes = optimizer.spoiled, _vanishes(eps, where.format)
    severity: Severity = "note" if not spoiled else "error" if where.own else "warning"
    parts = [f"{optimizer.name}'s eps of {eps:g} is zero in {name}"] if vanishes else [f"{optimizer.name} in {name}"]
    if squares is not None and vanishes:
        zero = shares(squares.range, where.format).underflow + squares.range.zeros / max(squares.range.count, 1)
        parts.append(f"and so are {zero:.0%} of {squares.name}")
    result = "the update divides by zero once a gradient is small"
    if spoiled:
        result = f"{spoiled:.1%} of the weights are not finite after step {optimizer.spoiled_in + 1}"
    return found(
        __name__,
        severity,
        None,
        f"{' '.join(parts)} → {result}",
        Evidence("OBSERVED", f"the same steps over {name} parameters", (("eps", eps), ("not finite", spoiled))),
        remedy="fp32 parameters and optimizer state, or MasterWeights(optimizer) over low ones",
        of="eps",
    )


def _mean(optimizer: Optimizer, squares: OptimizerState, beta2: float, format: Format) -> Finding:
    return found(
        __name__,
        "warning",
        None,
        f"{optimizer.name}'s {squares.name} moves by {1 - beta2:.1g} of itself → less than half the spacing of "
        f"{format.name}: it cannot fall",
        Evidence(
            "PROVED",
            f"beta2 = {beta2:g}, half the spacing is {least_half_step(format):.1e} or more",
            (("beta2", beta2),),
        ),
        remedy="fp32 optimizer state: MasterWeights(optimizer)",
        of="beta2",
    )


def _placed(made: Finding, optimizer: Optimizer, where: Stored) -> Finding:
    return replace(made, source=optimizer.source, resolved=not where.own or optimizer.masters)


def _vanishes(eps: float, format: Format) -> bool:
    return 0 < eps <= (format.min_subnormal or 0.0) / 2


def _stuck(beta2: float, format: Format) -> bool:
    return 0 < 1 - beta2 < least_half_step(format) if beta2 else False


def bad() -> Example:
    import torch
    from torch import nn

    def make_optimizer(parameters: object) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=1e-3)  # type: ignore[arg-type]  # PA604

    model = nn.Sequential(nn.Linear(16, 4))
    loss = lambda output: output.pow(2).mean()  # noqa: E731
    return Example(model, (torch.randn(8, 16),), policy="fp16-training", loss=loss, optimizer=make_optimizer)


def good() -> Example:
    import torch
    from torch import nn

    def make_optimizer(parameters: object) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=1e-3, eps=1e-4)  # type: ignore[arg-type]

    model = nn.Sequential(nn.Linear(16, 4))
    loss = lambda output: output.pow(2).mean()  # noqa: E731
    return Example(model, (torch.randn(8, 16),), policy="fp16-training", loss=loss, optimizer=make_optimizer)
