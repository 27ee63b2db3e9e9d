"""The shipped policies: found, well formed, and those that reproduce torch.autocast complete.

Which ops they keep high, run low or leave to the plan is stated here op by op, from what the ops do to numbers.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import jsonschema
import pytest
import torch
import yaml
from torch import nn

import precision_audit as pa
from precision_audit import ops, policy
from precision_audit.decide import decide
from precision_audit.policy.match import Matcher
from precision_audit.quantise import quantised
from precision_audit.records import Graph, Hardware, Op, Operand, Policy, Tensor
from tests.backends.graphs import entering, graph, state
from tests.torch_schemas import ALL_OVERLOADS, SOME_VERSIONS

EXPECTED = {  # name: mode, high, low, autocast, device
    "fp32": ("training", "fp32", "bf16", "", ""),
    "bf16-inference": ("inference", "fp32", "bf16", "", ""),
    "bf16-inference-stream-high": ("inference", "fp32", "bf16", "", ""),
    "fp16-inference": ("inference", "fp32", "fp16", "", ""),
    "bf16-everywhere": ("inference", "fp32", "bf16", "", ""),
    "fp16-everywhere": ("inference", "fp32", "fp16", "", ""),
    "bf16-training": ("training", "fp32", "bf16", "", ""),
    "fp16-training": ("training", "fp32", "fp16", "", ""),
    "fp8-training-hopper": ("training", "fp32", "bf16", "", "h100"),
    "fp8-training-hopper-fast": ("training", "fp32", "bf16", "", "h100"),
    "fp8-inference-hopper": ("inference", "fp32", "bf16", "", "h100"),
    "fp8-inference-hopper-fast": ("inference", "fp32", "bf16", "", "h100"),
    "mxfp8-inference-blackwell": ("inference", "fp32", "bf16", "", "b200"),
    "nvfp4-inference-blackwell": ("inference", "fp32", "bf16", "", "b200"),
    "fp8-training-hopper-te": ("training", "fp32", "bf16", "", "h100"),
    "mxfp8-training-blackwell": ("training", "fp32", "bf16", "", "b200"),
    "nvfp4-training-blackwell": ("training", "fp32", "bf16", "", "b200"),
    "search-bf16": ("inference", "fp32", "bf16", "", ""),
    "search-fp16": ("inference", "fp32", "fp16", "", ""),
    "search-bf16-training": ("training", "fp32", "bf16", "", ""),
    "search-fp16-training": ("training", "fp32", "fp16", "", ""),
    "amp-cuda-bf16": ("training", "fp32", "bf16", "cuda", ""),
    "amp-cuda-fp16": ("training", "fp32", "fp16", "cuda", ""),
    "amp-cpu-bf16": ("training", "fp32", "bf16", "cpu", ""),
    "amp-cpu-fp16": ("training", "fp32", "fp16", "cpu", ""),
}


def test_shipped_lists_all() -> None:
    assert set(policy.shipped()) == set(EXPECTED)
    assert list(policy.shipped()) == sorted(policy.shipped())


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_shipped_policy_loads_and_fits_the_schema(name: str) -> None:
    made = policy.load(name)
    assert made.name == name
    assert (made.mode, made.high, made.low, made.autocast, made.device) == EXPECTED[name]
    assert made.casts == ("per_consumer" if made.autocast else "shared")
    assert made.description and all(rule.shipped for rule in made.rules)
    own = (name, name.removesuffix("-training"))  # a search's policy for training has the rules of the other one
    assert re.fullmatch(rf"({'|'.join(own)})\.yaml:\d+", made.rules[0].origin)
    text = (policy.folder() / f"{name}.yaml").read_text()
    jsonschema.validate(yaml.safe_load(text), policy.schema())


@pytest.mark.parametrize("name", ["fp8-training-hopper", "fp8-inference-hopper"])
def test_fast_is_the_same_policy_but_for_what_is_worth_it(name: str) -> None:
    plain, fast = policy.load(name), policy.load(f"{name}-fast")
    assert (plain.swap, fast.swap) == ("eligible", "worth-it")
    assert [(r.name, r.classification, r.module, r.where, r.backend, r.recipe) for r in plain.rules] == [
        (r.name, r.classification, r.module, r.where, r.backend, r.recipe) for r in fast.rules
    ]
    assert plain.tolerances == fast.tolerances


@pytest.mark.parametrize(
    ("name", "recipe"), [("mxfp8-inference-blackwell", "mxfp8_e4m3"), ("nvfp4-inference-blackwell", "nvfp4")]
)
def test_what_blackwell_multiplies_is_emulated_here(name: str, recipe: str) -> None:
    """The converted model on a CPU is a product of what the quantisers see, head and router left alone."""
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.router, self.lm_head = nn.Linear(64, 32), nn.Linear(64, 32), nn.Linear(64, 32)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return self.fc(x), self.router(x), self.lm_head(x)

    model, x = Net(), torch.randn(8, 64)
    made = pa.convert(model, (x,), policy=name)
    assert [swap.module for swap in made.plan.swaps] == ["fc"]
    assert made.report.verdict == "READY" and made.report.meta.device == "b200"
    low, weight = x.bfloat16(), model.fc.weight.detach().bfloat16()
    seen = quantised(low, recipe).double() @ quantised(weight, recipe, "weight").double().T
    expected = seen + model.fc.bias.detach().double()
    found, router, _ = made.module(x)
    assert (found.double() - expected).norm() < 1e-2 * expected.norm()  # bf16 rounds the sum and the bias
    assert (router - model.router(x)).norm() < 1e-2 * router.norm()


def test_the_schema_is_one_and_refuses_what_load_refuses() -> None:
    schema = policy.schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    assert "scaled_dot_product_attention" in str(schema)
    for text in (
        "name: a\nruls: []\n",
        "name: a\nrules: [{name: b, op: linear}]\n",
        "name: a\nrules: [{name: b, op: lineer, class: follow}]\n",
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(yaml.safe_load(text), schema)


def test_the_wheel_carries_the_policies_where_they_are_looked_for() -> None:
    project = Path(policy.__file__).parents[2] / "pyproject.toml"
    if not project.is_file():
        pytest.skip("installed from a wheel")
    build = tomllib.loads(project.read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert build["force-include"] == {"policies": "precision_audit/shipped_policies"}
    assert policy.folder() in (project.parent / "policies", Path(policy.__file__).parents[1] / "shipped_policies")


@pytest.mark.parametrize(("name", "key"), [("amp-cuda-bf16", "AutocastCUDA"), ("amp-cpu-bf16", "AutocastCPU")])
def test_amp_policies_name_exactly_what_torch_registers(name: str, key: str) -> None:
    registered = {
        entry.removeprefix("aten::").partition(".")[0] + "." + (entry.partition(".")[2] or "default")
        for entry in torch._C._dispatch_get_registrations_for_dispatch_key(key)
        if entry.startswith("aten::")
    }
    named = set(_overloads(policy.load(name)))
    cudnn = {"_cudnn_rnn.default"}  # registered in builds with cuDNN only
    assert named - cudnn == registered - cudnn


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_amp_policies_differ_by_format_only(device: str) -> None:
    def told(low: str) -> list[tuple[str, ...]]:
        rules = policy.load(f"amp-{device}-{low}").rules
        return [(rule.name, rule.classification.replace(low, "low"), *rule.op, str(rule.promote)) for rule in rules]

    assert told("bf16") == told("fp16")


def _overloads(made: Policy) -> list[str]:
    """`name.overload` of every op a policy names; a bare name stands for its one overload without an `out`."""
    names: list[str] = []
    for rule in made.rules:
        for pattern in rule.op:
            base, _, overload = pattern.partition(".")
            if base in SOME_VERSIONS - ALL_OVERLOADS.keys():
                continue
            packet = getattr(torch.ops.aten, base)
            if overload:
                names.append(pattern)
                continue
            plain = [o for o in packet.overloads() if not any(a.is_out for a in getattr(packet, o)._schema.arguments)]
            assert len(plain) == 1, f"{pattern} is ambiguous"
            names.append(f"{base}.{plain[0]}")
    return names


# --- what they say of ops -------------------------------------------------------------------------------------------

GPU = Hardware("there", "", "9.0", (("fp32", 1.0), ("bf16", 2.0), ("fp8", 4.0)), 1.0, 0.0, "", "cuda")
LOW = ("conv2d", "conv_transpose2d", "_convolution", "linear", "matmul", "bmm", "addmm", "baddbmm", "einsum", "mv",
       "scaled_dot_product_attention")  # fmt: skip
HIGH = ("exp", "log", "log1p", "pow", "sqrt", "rsqrt", "reciprocal", "log_softmax", "cross_entropy_loss", "mse_loss",
        "nll_loss", "binary_cross_entropy", "logsumexp", "cumsum", "cumprod", "var", "std", "var_mean", "cos", "sin",
        "arange", "linspace", "linalg_inv", "linalg_svd", "cholesky", "fft_fft", "affine_grid_generator",
        "grid_sampler", "_upsample_bilinear2d_aa", "linalg_vector_norm", "cdist", "prod", "outer", "erfinv",
        "polar",
        "floor", "round", "index_add", "scatter_add", "randn_like", "normal", "bernoulli")  # fmt: skip
FREE = ("relu", "gelu", "silu", "sigmoid", "tanh", "add", "mul", "div", "where", "cat", "view", "transpose", "dropout",
        "embedding", "max_pool2d", "adaptive_avg_pool2d", "batch_norm", "gather", "masked_fill",
        "upsample_nearest2d")  # fmt: skip
BASES = ("bf16-inference", "fp16-inference", "bf16-training", "fp16-training")


@pytest.mark.parametrize("name", BASES)
def test_shipped_lists_of_low_and_high_are_disjoint_and_complete(name: str) -> None:
    made = policy.load(name)
    classes = _classes(name)
    allowed = {f"safe-in-{made.low}", "keep-fp32", "follow"}
    assert set(classes.values()) == allowed  # complete: each op of the table has one of them, and only one
    for group, classification in ((LOW, f"safe-in-{made.low}"), (HIGH, "keep-fp32"), (FREE, "follow")):
        assert {op: classes[op] for op in group} == dict.fromkeys(group, classification)
    losses = [op for op, row in ops.OPS.items() if row.kind == "loss"]
    assert losses and {classes[op] for op in losses} == {"keep-fp32"}
    multiplying = {op for op in classes if classes[op] == f"safe-in-{made.low}"}
    assert {ops.OPS[op].kind for op in multiplying} == {"matmul", "conv", "attention"}


@pytest.mark.parametrize("op", ["softmax", "layer_norm", "rms_norm", "group_norm"])
def test_training_keeps_high_what_inference_lets_follow(op: str) -> None:
    assert {_classes(name)[op] for name in BASES[:2]} == {"follow"}
    assert {_classes(name)[op] for name in BASES[2:]} == {"keep-fp32"}


@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize(
    ("attributes", "kept"),
    [
        ({"dim": (-1,), "keepdim": True}, True),
        ({"dim": (1,), "keepdim": True}, True),
        ({"dim": (2, 3), "keepdim": False}, False),
        ({"dim": (2, 3), "keepdim": True}, False),  # squeeze-and-excitation
        ({"dim": (-2, -1), "keepdim": True}, False),
    ],
)
def test_a_mean_that_is_a_statistic_stays_high_and_pooling_follows(
    name: str, attributes: dict[str, object], kept: bool
) -> None:
    mean = _op("mean", "reduction", "dim", **attributes)
    decision = decide(graph(entering((4, 64), (4, 64)), mean), policy.load(name), GPU, {}).decisions[0]
    assert decision.classification == ("keep-fp32" if kept else "follow")


@pytest.mark.parametrize("name", BASES)
def test_position_times_frequency_stays_high_and_other_products_do_not(name: str) -> None:
    low = policy.load(name).low
    for inner, classification in ((1, "keep-fp32"), (64, f"safe-in-{low}")):
        operands = (Operand("a", "self"), Operand("b", "other"))
        product = Op("r/matmul#0", "aten.matmul.default", "matmul", "matmul", "r", "R", operands,
                     (Tensor("fp32", (2, 32, 16), (2, 32, 16)),))  # fmt: skip
        whole = graph(state("a", (2, 32, inner)), state("b", (2, inner, 16)), product)
        assert decide(whole, policy.load(name), GPU, {}).decisions[0].classification == classification


@pytest.mark.parametrize(("eps", "kept"), [(1e-8, True), (1e-5, False), (1, False)])
def test_fp16_keeps_an_eps_that_would_vanish(eps: float, kept: bool) -> None:
    for name in ("fp16-inference", "fp16-training"):
        add = _op("add", "pointwise_arith", "Tensor", other=eps)
        decision = decide(graph(entering((4, 64), (4, 64)), add), policy.load(name), GPU, {}).decisions[0]
        assert decision.classification == ("keep-fp32" if kept else "follow")


@cache
def _classes(policy_name: str) -> Mapping[str, str]:
    """The class that a policy gives to each op of the table, of which nothing but the name is known."""
    output = (Tensor("fp32", (4, 4), (4, 4)),)
    lonely = [
        Op(f"m/{name}#0", f"aten.{name}.default", name, row.kind, "m", "M", (), output) for name, row in ops.OPS.items()
    ]
    matcher = Matcher(policy.load(policy_name), Graph(tuple(lonely), (), "inference"))
    return {op.op: matcher.first(op).rule.classification for op in lonely}


def _op(name: str, kind: str, overload: str, **attributes: object) -> Op:
    reads, output = (Operand("x", "self"),), (Tensor("fp32", (4, 64), (4, 64)),)
    target = f"aten.{name}.{overload}"
    return Op(f"block/{name}#0", target, name, kind, "block", "a.Block", reads, output, tuple(attributes.items()))


class Patches(nn.Module):
    """The start of a vision transformer: a class token before the patches, rotated attention, a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.mix = RotaryAttention()
        self.norm = nn.LayerNorm(8)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        patches = self.patch(image).flatten(2).transpose(1, 2)
        stream = torch.cat((self.token.expand(image.shape[0], -1, -1), patches), 1)
        made: torch.Tensor = self.norm(stream + self.mix(stream))
        return made


class RotaryAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        turned = torch.cat((-q[..., 4:], q[..., :4]), -1)
        return nn.functional.scaled_dot_product_attention(turned, k, v)


def test_a_high_stream_is_high_from_where_it_starts() -> None:
    """A class token rounded to bf16 stays rounded to the last layer: that cost a ViT 7 % of its accuracy."""
    conversion = pa.convert(Patches(), (torch.randn(2, 3, 8, 8),), policy="bf16-inference-stream-high", verify=False)
    formats = dict(conversion.plan.formats)
    assert formats["/cat#0"] == "fp32"
    assert formats["mix/cat#0"] == "bf16"
    assert not any(cast.value == "token" for cast in conversion.plan.casts)
    assert not any(fold.value == "token" for fold in conversion.plan.folds)
