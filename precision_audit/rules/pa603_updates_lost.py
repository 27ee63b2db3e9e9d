"""PA603 updates lost to rounding

What it does: takes real steps of the user's optimizer and compares every update with the spacing of the weight it is
added to, in the format that the weights have or would have after a cast of the module. Weight decay that is applied by
itself (AdamW) is compared, too.
Why it is a hazard: an update below half the spacing rounds away, in this step and in every later one. The loss looks
healthy and does not move. It is what fp32 master weights are for.
What to do: keep the parameters in fp32, as every conversion for training does; for a model whose parameters are low,
`precision_audit.MasterWeights(optimizer)`.
References: Micikevicius et al., Mixed Precision Training (2018), section 3.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from precision_audit.formats import Format
from precision_audit.records import Evidence, Finding, Severity, Training, Update
from precision_audit.rules import Context, Example, found
from precision_audit.rules.stored import least_half_step, stored

_MANY = 0.5  # of the updates of one weight
_ALL = 0.9  # of all updates: the model stands still
_STANDS = 0.99  # of the updates of one weight: it stands still


def check(context: Context) -> Iterator[Finding]:
    training, where = context.facts.training, stored(context)
    if training is None or training.optimizer is None or where is None or not training.updates:
        return
    name = where.format.name
    many = [each for each in training.updates if dict(each.lost)[name] > _MANY]
    still = [each for each in training.updates if each.decay and each.decay < least_half_step(where.format)]
    if not many and not still:
        return
    worst = max(many or still, key=lambda each: (dict(each.lost)[name], each.count))
    everything = _share(training.updates, name) >= _ALL
    stands = any(dict(each.lost)[name] >= _STANDS for each in many)
    severity: Severity = "warning" if everything or stands or (where.own and many) else "note"
    made = found(
        __name__,
        "error" if where.own and everything else severity,
        context.maker.get(worst.parameter),
        _message(training, many, still, where.format),
        _evidence(training, worst, name),
        remedy="fp32 parameters with casts in the graph, or MasterWeights(optimizer) over low ones",
        of="updates",
    )
    yield replace(made, source=training.optimizer.source, resolved=not where.own or training.optimizer.masters)


def _message(training: Training, many: Sequence[Update], still: Sequence[Update], format: Format) -> str:
    optimizer = training.optimizer
    assert optimizer is not None
    rate = dict(optimizer.options).get("lr")
    by = optimizer.name + (f", lr {rate:g}" if rate is not None else "")
    share = _share(training.updates, format.name)
    parts = [f"{share:.0%} of all updates ({by}; {len(many)} of {len(training.updates)} parameters)"] if many else []
    if still:
        parts.append(f"a weight decay of {still[0].decay:.1e} per step")
    return f"{' and '.join(parts)} → below half the spacing of {format.name} weights: lost"


def _evidence(training: Training, worst: Update, name: str) -> Evidence:
    lost, ratio = dict(worst.lost)[name], dict(worst.ratio)[name]
    text = (
        f"{training.steps} steps; {worst.parameter}: {lost:.0%} of its updates lost, the median is {ratio:.2g} of half "
        f"the spacing of its weights"
    )
    return Evidence("OBSERVED", text, (("lost", lost), ("ratio", ratio), ("decay", worst.decay)))


def _share(updates: Sequence[Update], name: str) -> float:
    count = sum(each.count for each in updates)
    return sum(dict(each.lost)[name] * each.count for each in updates) / count if count else 0.0


def bad() -> Example:
    import torch
    from torch import nn

    def make_optimizer(parameters: object) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=1e-6)  # type: ignore[arg-type]  # PA603

    model = nn.Sequential(nn.Linear(16, 4))
    loss = lambda output: output.pow(2).mean()  # noqa: E731
    return Example(model, (torch.randn(8, 16),), policy="bf16-training", loss=loss, optimizer=make_optimizer)


def good() -> Example:
    import torch
    from torch import nn

    def make_optimizer(parameters: object) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.5)  # type: ignore[arg-type]

    model = nn.Sequential(nn.Linear(16, 4))
    loss = lambda output: output.pow(2).sum()  # noqa: E731
    return Example(model, (torch.randn(8, 16),), policy="bf16-training", loss=loss, optimizer=make_optimizer)
