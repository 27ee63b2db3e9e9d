"""What training evidence says, for every report: a table of the four kinds of tensors, remarks, the loop to write.

Takes a `Report` with `training`; gives rows and lines. Works out shares from the ranges that were counted, measures
nothing. What formats would do is said of numbers of the captured format: nothing was scaled and nothing ran low.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from precision_audit.analyse.histogram import shares
from precision_audit.analyse.training.loss_scale import bands, scaled, vanishing
from precision_audit.formats import FORMATS, Format
from precision_audit.records import Range, Report, Training
from precision_audit.report import phrases

KINDS = (
    ("weights", "weights"),
    ("weight gradients", "weight_gradients"),
    ("activations", "activations"),
    ("activation gradients", "activation_gradients"),
)
_FORMATS = ("fp16", "bf16", "fp8_e5m2", "fp8_e4m3fn")
_HALVES = ("bf16", "fp16")
_MOST = 0.5  # of a parameter's updates, from which on it wants a master
_TENSOR_HEADER = ("gradient of", "kind", "amax", "median")


def title(report: Report) -> str:
    """`training: 3 steps in fp32, Adam (lr 0.001), loss 2.31 to 2.28`."""
    training = report.training
    assert training is not None
    by = "no optimizer given"
    if training.optimizer is not None:
        rate = dict(training.optimizer.options).get("lr")
        by = training.optimizer.name + (f" (lr {rate:g})" if rate is not None else "")
    losses = f"loss {training.losses[0]:.4g}" + (f" to {training.losses[-1]:.4g}" if training.steps > 1 else "")
    twin = ", of the model widened to it" if phrases.own_format(report.graph) in _HALVES else ""
    return f"training: {phrases.count(training.steps, 'step')} in fp32{twin}, {by}, {losses}"


def header(report: Report) -> tuple[str, ...]:
    """Columns of `rows`: a format each, fp16 also under the recommended scale, fp8 with a scale per tensor."""
    return ("zero, infinite in", "tensors", *(name for name, _, _ in _columns(report)))


def rows(report: Report) -> list[tuple[str, ...]]:
    """One row per kind: the shares of non-zero elements that become zero and infinite; in fp8 each tensor has the scale
    of its own that swapped linears give it, as a power of two."""
    training = report.training
    assert training is not None
    found = []
    for label, name in KINDS:
        ranges: tuple[Range, ...] = getattr(training, name)
        gradients = name.endswith("gradients")
        cells = [
            _lost(ranges, format, scale) if gradients or scale in (0.0, 1.0) else "-"
            for _, format, scale in _columns(report)
        ]
        found.append((label, str(len(ranges)), *cells))
    return found


def tensor_header(report: Report) -> tuple[str, ...]:
    """Columns of `tensor_rows`."""
    return (*_TENSOR_HEADER, *(name for name, _, _ in _columns(report)))


def tensor_rows(report: Report) -> list[tuple[str, ...]]:
    """One row per gradient, those of weights first, in the order of the graph."""
    training = report.training
    assert training is not None
    found = []
    for kind, ranges in (("weight", training.weight_gradients), ("activation", training.activation_gradients)):
        for each in ranges:
            cells = [_lost((each,), format, scale) for _, format, scale in _columns(report)]
            found.append((each.value, kind, phrases.figure(each.amax), _median(each), *cells))
    return found


def update_rows(report: Report) -> list[tuple[str, ...]]:
    """One row per parameter, a header first: the share of its updates that weights in each low format would lose, the
    median update over half the spacing there, and whether it wants a master in the format that counts here."""
    training = report.training
    assert training is not None
    if not training.updates:
        return []
    counts = phrases.own_format(report.graph) or report.plan.low
    found = [
        (
            "update of",
            *(f"lost in {name}" for name in _HALVES),
            *(f"of half a step in {name}" for name in _HALVES),
            "master",
        )
    ]
    for each in training.updates:
        lost, ratio = dict(each.lost), dict(each.ratio)
        need = "needed" if lost.get(counts, 0.0) > _MOST else "-"
        shown = [*(_percent(lost[name]) for name in _HALVES), *(phrases.figure(ratio[name]) for name in _HALVES)]
        found.append((each.parameter, *shown, need))
    return found


def remarks(report: Report) -> Iterator[str]:
    """Bands, loss scale, master weights and optimizer state, a line each."""
    training = report.training
    assert training is not None
    if report.plan.low == "fp16":
        yield _bands(training)
    yield _scale(training, report.plan.low)
    yield from _hopeless(training)
    yield from _updates(report, training)
    yield from _memory(training)


def loop(report: Report) -> tuple[str, ...]:
    """The training loop with the scaler, where fp16 is what trains: today's names of torch.amp. A converted module has
    its casts in its graph; under an amp policy the loop is that of torch.autocast; half parameters need masters."""
    scale = report.training.scale if report.training else None
    half = phrases.own_format(report.graph) == "fp16"
    low = half or any(format == "fp16" for key, format in report.plan.formats if "/" in key)
    if scale is None or scale.format != "fp16" or not low or phrases.own_format(report.graph) == "bf16":
        return ()
    plain = "cpu" if report.meta.device.startswith("cpu") or report.meta.device == "local" else "cuda"
    device = report.plan.autocast_device or plain
    start = _power(scale.recommended, "2.0**")
    if half:
        return _loop_of_masters(start)
    model = "model" if report.plan.autocast_device else "converted"
    forward = [f"        loss = criterion({model}(inputs), targets)"]
    if model == "converted":
        forward.insert(0, f'        # the model as it is: inside torch.amp.autocast("{device}", dtype=torch.float16)')
    if report.plan.autocast_device:
        region = f'        with torch.amp.autocast("{device}", dtype=torch.float16):'
        forward = [region, *(f"    {line}" for line in forward)]
    return (
        f"loop for fp16{'' if report.plan.autocast_device else ', converted = pa.convert(model, …).module'}:",
        f'    scaler = torch.amp.GradScaler("{device}", init_scale={start})',
        "    for inputs, targets in batches:",
        "        optimizer.zero_grad(set_to_none=True)",
        *forward,
        "        scaler.scale(loss).backward()",
        "        scaler.unscale_(optimizer)  # before clipping, penalties and logs of gradients",
        f"        torch.nn.utils.clip_grad_norm_({model}.parameters(), max_norm)",
        "        scaler.step(optimizer)  # skips a step with infinite gradients",
        "        scaler.update()",
    )


def _loop_of_masters(start: str) -> tuple[str, ...]:
    return (
        "loop for fp16 parameters:",
        f'    optimizer = pa.MasterWeights(optimizer, loss_scale="dynamic", init_scale={start})',
        "    for inputs, targets in batches:",
        "        optimizer.zero_grad()",
        "        loss = criterion(model(inputs).float(), targets)",
        "        optimizer.scale(loss).backward()",
        "        optimizer.unscale_()  # only to clip",
        "        torch.nn.utils.clip_grad_norm_(optimizer.master_params(), max_norm)",
        "        optimizer.step()  # in fp32, skipped where a gradient is infinite",
    )


def _columns(report: Report) -> Iterator[tuple[str, str, float]]:
    """Title, format and scale of each column; 0 stands for a scale per tensor."""
    scale = report.training.scale if report.training else None
    for name in _FORMATS:
        yield (f"{name.removesuffix('fn')} scaled", name, 0.0) if name.startswith("fp8") else (name, name, 1.0)
        if scale is not None and scale.format == name and scale.recommended != 1:
            yield f"{name} x {_power(scale.recommended)}", name, scale.recommended


def _lost(ranges: Sequence[Range], format: str, scale: float) -> str:
    """`12 % zero, 3 % inf`; `fits` where nothing is lost."""
    row = FORMATS[format]
    given, ranges = ranges, [scaled(each, scale or _own_scale(each, row)) for each in ranges if each.amax]
    zero = vanishing(ranges, row)
    seen = sum(number for each in ranges for _, number in each.histogram)
    beyond = sum(shares(each, row).overflow * each.count for each in ranges) / seen if seen else 0.0
    parts = [f"{_percent(zero)} zero"] if zero else []
    parts += [f"{_percent(beyond)} inf"] if beyond else []
    empty = "not finite" if any(each.nan or each.infinite for each in given) else "all zero"
    return ", ".join(parts) or ("fits" if seen else empty)


def _own_scale(each: Range, format: Format) -> float:
    """The largest power of two that leaves the tensor finite."""
    return 2.0 ** math.floor(math.log2(format.max_finite / each.amax))


def _percent(value: float) -> str:
    return "0 %" if not value else "< 0.1 %" if value < 1e-3 else f"{100 * value:.1f} %"


def _median(each: Range) -> str:
    total, seen = sum(number for _, number in each.histogram), 0
    for exponent, number in each.histogram:
        seen += number
        if 2 * seen >= total:
            return f"2^{exponent}"
    return "0"


def _bands(training: Training) -> str:
    found = bands((*training.weight_gradients, *training.activation_gradients), FORMATS["fp16"])
    return (
        f"gradients in fp16: {_percent(found.dropped)} below 2^-27 (do not matter), {_percent(found.lost)} from there "
        f"to 2^-24 (lost, and matter), {_percent(found.held)} above"
    )


def _scale(training: Training, low: str) -> str:
    scale = training.scale
    if scale is None:
        return "loss scale: every gradient is zero, so nothing can be said"
    if scale.sufficient <= 1 and low == "bf16":
        smallest = FORMATS[low].min_subnormal or 0.0
        return (
            f"loss scale: none needed, bf16 has the range of fp32 (down to {smallest:.1g}): "
            f"{_percent(scale.vanish)} of the gradients vanish"
        )
    if not scale.fits:
        return (
            f"loss scale: none fits; {scale.sufficient_for} needs {_power(scale.needed or scale.sufficient)}, "
            f"{scale.safe_for} allows {_power(scale.safe)} (margin {scale.margin:g})"
        )
    need = f"{_power(scale.sufficient)} suffices ({scale.sufficient_for})" if scale.sufficient > 1 else "not needed"
    return (
        f"loss scale: {need}; {_power(scale.recommended)} recommended ({_percent(scale.vanish)} of the gradients "
        f"vanish without, {_percent(scale.vanish_scaled)} with it); {_power(scale.safe)} the largest safe "
        f"({scale.safe_for}, margin {scale.margin:g})"
    )


def _hopeless(training: Training) -> Iterator[str]:
    """Weights whose gradients vanish whatever the scale."""
    scale = training.scale
    if scale is None:
        return
    gradients = [each for each in training.weight_gradients if each.amax]
    gone = [each.value for each in gradients if vanishing([each], FORMATS[scale.format], scale.safe) > 0.99]
    if gone:
        yield f"not representable in {scale.format} even at the largest safe scale: {phrases.names(gone, 80)}"


def _updates(report: Report, training: Training) -> Iterator[str]:
    if not training.updates:
        return
    own = phrases.own_format(report.graph)
    name = own or report.plan.low
    if name not in _HALVES:
        return
    count = sum(each.count for each in training.updates)
    lost = sum(dict(each.lost)[name] * each.count for each in training.updates) / count if count else 0.0
    many = sum(dict(each.lost)[name] > _MOST for each in training.updates)
    need = "needed" if many else "not needed by these steps"
    kept = "" if own else ", which this plan keeps"
    yield (
        f"master weights in fp32{kept}: {need}; {name} weights would lose {_percent(lost)} of the updates "
        f"({many} of {len(training.updates)} parameters more than half)"
    )


def _memory(training: Training) -> Iterator[str]:
    optimizer = training.optimizer
    if optimizer is None or not optimizer.states:
        return
    elements = sum(each.count for each in training.weights)
    state = sum(each.bytes for each in optimizer.states)
    names = ", ".join(each.name for each in optimizer.states)
    whole = state + 2 * 4 * elements  # fp32 weights and gradients
    if not whole or not elements:
        return
    yield (
        f"optimizer state: {names} in fp32, {phrases.size(state)}, {state / whole:.0%} of weights, gradients and "
        f"state; in bf16 it would save {state / 2 / whole:.0%} of them"
    )


def _power(scale: float, base: str = "2^") -> str:
    return f"{base}{math.frexp(scale)[1] - 1}"
