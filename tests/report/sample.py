"""The report of DESIGN's example: a small CNN for digits under fp8 training, written by hand."""

from __future__ import annotations

from dataclasses import replace

from precision_audit.records import (
    Cast,
    Comparison,
    Decision,
    Evidence,
    Finding,
    Graph,
    Meta,
    Op,
    Operand,
    Plan,
    Refusal,
    Report,
    Source,
    Suppression,
    Swap,
    Tensor,
    Verification,
)

FILE = "examples/01_mnist_cnn.py"
CONV = "bf16-training.yaml:9 convolutions"
FOLLOW = "a cast would cost more"


def _computed(key: str, op: str, line: int, weight: str = "") -> Op:
    module = key.rpartition("/")[0]
    operands = (Operand(weight, "weight"),) if weight else ()
    source = Source(FILE, line, "forward", f"x = self.{op}(x)")
    output = Tensor("fp32", ("B", 10), (64, 10), True)
    return Op(key, f"aten.{op}.default", op, "matmul", module, "", operands, (output,), source=source)


def _parameter(key: str, *shape: int) -> Op:
    return Op(key, "", "", "parameter", key.rpartition(".")[0], "", (), (Tensor("fp32", shape, shape, True),))


def graph() -> Graph:
    ops = (
        _parameter("conv1.weight", 32, 1, 3, 3),
        _parameter("fc1.weight", 128, 9216),
        _parameter("fc2.weight", 10, 128),
        Op("x", "", "", "input", "", "", (), (Tensor("fp32", ("B", 1, 28, 28), (64, 1, 28, 28)),)),
        _computed("conv1/conv2d#0", "conv2d", 22, "conv1.weight"),
        _computed("/relu#0", "relu", 23),
        _computed("conv2/conv2d#0", "conv2d", 24),
        _computed("/relu#1", "relu", 25),
        _computed("/max_pool2d#0", "max_pool2d", 26),
        _computed("dropout1/dropout#0", "dropout", 27),
        _computed("/flatten#0", "flatten", 28),
        _computed("fc1/linear#0", "linear", 31, "fc1.weight"),
        _computed("/relu#2", "relu", 32),
        _computed("dropout2/dropout#0", "dropout", 33),
        _computed("fc2/linear#0", "linear", 34, "fc2.weight"),
        replace(
            _computed("/log_softmax#0", "log_softmax", 35),
            attributes=(("dim", 1), ("floor", float("-inf")), ("sizes", (2, (3, "B")))),
        ),
    )
    return Graph(ops, ("/log_softmax#0",), "training", symbols=(("B", 64),))


def decisions() -> tuple[Decision, ...]:
    follow = (
        "/relu#0",
        "/relu#1",
        "/max_pool2d#0",
        "dropout1/dropout#0",
        "/flatten#0",
        "/relu#2",
        "dropout2/dropout#0",
    )
    found = {key: Decision(key, "follow", "bf16", FOLLOW) for key in follow}
    found["conv1/conv2d#0"] = Decision("conv1/conv2d#0", "safe-in-bf16", "bf16", CONV, "fp32")
    found["conv2/conv2d#0"] = Decision("conv2/conv2d#0", "safe-in-bf16", "bf16", CONV, "fp32")
    swapped = "K, N multiples of 16; swapped for Float8Linear"
    found["fc1/linear#0"] = Decision("fc1/linear#0", "fp8-eligible", "fp8 rowwise", swapped)
    refused = "fp8 refused: N=10 is not a multiple of 16"
    found["fc2/linear#0"] = Decision("fc2/linear#0", "safe-in-bf16", "bf16", refused)
    kept = "bf16-training.yaml:14 softmax-and-losses"
    found["/log_softmax#0"] = Decision("/log_softmax#0", "keep-fp32", "fp32", kept)
    return tuple(found[op.key] for op in graph().ops if op.key in found)


def findings() -> tuple[Finding, ...]:
    proved = Evidence("PROVED", "")
    return (
        Finding(
            "PA401",
            "note",
            "fc2/linear#0",
            "fc2",
            "fc2: stays bf16; pad 10 to 16 to make it eligible",
            proved,
            Source(FILE, 34, "forward", "x = self.fc2(x)"),
        ),
        Finding(
            "PA402",
            "warning",
            "fc1/linear#0",
            "fc1",
            "fc1: backward needs B % 16 == 0, last batch included",
            proved,
            Source(FILE, 31, "forward", "x = self.fc1(x)"),
            "DataLoader(drop_last=True), or recipe: rowwise_with_gw_hp",
        ),
    )


def plan() -> Plan:
    activations = (Cast("x", "bf16", ("conv1/conv2d#0",)), Cast("fc2/linear#0", "fp32", ("/log_softmax#0",)))
    state = (Cast("conv1.weight", "bf16", ("conv1/conv2d#0",)), Cast("fc2.weight", "bf16", ("fc2/linear#0",)))
    return Plan(
        policy="fp8-training-hopper",
        mode="training",
        high="fp32",
        low="bf16",
        formats=(("/log_softmax#0", "fp32"), ("conv1/conv2d#0", "bf16")),
        casts=activations + state,
        swaps=(Swap("fc1/linear#0", "fc1", "torchao", "rowwise", 9216, 128, "B", ("B % 16 == 0 in backward",)),),
        refusals=(Refusal("fc2/linear#0", "fc2", "torchao", "N=10 is not a multiple of 16"),),
    )


def verification() -> Verification:
    output = Comparison("output", 2.9e-3, 1e-2, 50.7, 0.99999, 0, 0, 0.0, 2.7e-3, 1e-2)
    bias = Comparison("conv2.bias", 2.0e-1, 1e-3, 14.0, 0.98, 0, 0, None, 9.3e-2, 3e-1)
    weight = Comparison("fc1.weight", 1.0e-1, 1e-3, 20.0, 0.99, 0, 0, None, 9.0e-3, 3e-1)
    return Verification(
        True, (output,), (weight, bias), "bitwise equal to itself", "bitwise on the example", "pass", emulated=("fp8",)
    )


def report() -> Report:
    meta = Meta(
        tool="precision-audit",
        versions=(("precision-audit", "0.1.0"), ("python", "3.11"), ("torch", "2.13.0"), ("torchao", "0.18.0")),
        model=f"{FILE}:build_model",
        policy="fp8-training-hopper",
        policy_digest="sha256:" + "1" * 64,
        device="h100",
        device_from="policy",
        weights="weights as build_model made them (no --checkpoint)",
        weights_digest="sha256:" + "2" * 64,
        inputs="1 batch from example_inputs",
        batches=1,
        parameters=1_199_882,
        command=f"precision-audit {FILE} --policy fp8-training-hopper",
        emulated=("fp8",),
    )
    return Report(
        schema=1,
        meta=meta,
        verdict="READY WITH CHANGES",
        summary="0 errors, 1 warning, 1 note   Float8Linear: 1 of 2 linears",
        graph=graph(),
        decisions=decisions(),
        findings=findings(),
        plan=plan(),
        verification=verification(),
        autocast_casts=10,
        next_steps=(f"precision-audit convert {FILE} --policy fp8-training-hopper -o out/",),
    )


def hazards() -> Report:
    """The same under fp16 inference, with what the hazard rules say: open, resolved, overridden, suppressed."""

    def told(rule: str, line: int, numbers: tuple[tuple[str, float], ...], message: str, **more: object) -> Finding:
        source = Source("net.py", line, "forward", f"line {line} as written")
        made = Finding(rule, "error", f"m/op#{line}", "m", message, Evidence("OBSERVED", "seen", numbers), source)
        return replace(made, **more)  # type: ignore[arg-type]

    beyond = (("amax", 176400.0), ("limit", 65504.0), ("batch", 2.0), ("share", 0.015625))
    layers = tuple(
        told(
            "PA102",
            52,
            (("amax", 70000.0 + i),),
            f"{70000 + i} inside",
            op=f"layers.{i}/op#0",
            module=f"layers.{i}",
            resolved=True,
            severity="warning",
        )
        for i in range(12)
    )
    found = (
        told("PA101", 12, beyond, "square: up to 1.764e+05 → infinite in fp16", remedy="scale before the square"),
        told(
            "PA103", 30, beyond, "exp: e^12 → infinite in fp16", severity="note", overridden="turned off by policy p:9"
        ),
        told("PA107", 41, (), "eps 1e-12 is zero in fp16", resolved=True, remedy="eps=1e-5"),
        *layers,
        told("PA203", 60, (), "ids", suppression=Suppression("net.py", 60, 60, ("PA203",), "below 2048")),
    )
    meta = replace(report().meta, policy="fp16-inference", batches=3, notes=("sensitivity was not measured: no float",))
    return replace(
        report(),
        meta=meta,
        verdict="NOT READY",
        summary="1 error, 0 warnings, 1 note (13 more resolved by the plan, 1 suppressed)   unresolved PA101",
        findings=found,
    )
