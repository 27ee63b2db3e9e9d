"""Whose linear may be swapped: every refusal says why, every swap with a peculiarity carries a note."""

from __future__ import annotations

from typing import Any

import pytest

from precision_audit.backends.torchao_float8 import RECIPES, offer
from precision_audit.hardware import device
from precision_audit.records import Graph, Op, Refusal, Swap
from tests.backends.graphs import entering, graph, linear, other, sized, state

H100 = device("h100")

X = entering((16, 64), (16, 64))
W, B = state("fc.weight", (48, 64)), state("fc.bias", (48,))
MHA = "torch.nn.modules.activation.MultiheadAttention"


def _case(*ops: Op, **changes: Any) -> tuple[Op, Graph]:
    op = next(each for each in ops if each.op == "linear")
    return op, graph(*ops, **changes)


REFUSED = {
    "not a linear": (
        (other("/relu#0", "x"), graph(X, other("/relu#0", "x"))),
        "relu is not a linear",
    ),
    "subclass": (
        _case(X, W, B, linear(module_type="model.Scaled")),
        "fc is model.Scaled, not exactly nn.Linear: a swap would drop what the class adds",
    ),
    "attention, in_proj": (
        _case(
            X,
            state("attn.in_proj_weight", (192, 64)),
            linear("attn", "attn.in_proj_weight", "", module_type=MHA),
        ),
        "functional linear: MultiheadAttention reads attn.in_proj_weight itself",
    ),
    "attention, out_proj": (
        _case(
            X,
            state("attn.out_proj.weight", (64, 64)),
            state("attn.out_proj.bias", (64,)),
            linear("attn", "attn.out_proj.weight", "attn.out_proj.bias", module_type=MHA),
        ),
        "functional linear: MultiheadAttention reads attn.out_proj.weight itself",
    ),
    "F.linear in the model's own forward": (
        _case(X, state("w", (48, 64)), linear("", "w", "", module_type="model.Net")),
        "functional linear: Net reads w itself",
    ),
    "weight norm (hook)": (
        _case(
            X,
            state("fc.weight_v", (48, 64)),
            state("fc.weight_g", (48, 1)),
            B,
            other("fc/_weight_norm#0", "fc.weight_v", "fc.weight_g", outputs=W.outputs),
            linear(weight="fc/_weight_norm#0"),
        ),
        "its weight is computed by fc/_weight_norm#0",
    ),
    "parametrized": (
        _case(
            X,
            state("fc.parametrizations.weight.original", (48, 64)),
            B,
            other("fc.parametrizations.weight.0/div#0", "fc.parametrizations.weight.original", outputs=W.outputs),
            linear(
                weight="fc.parametrizations.weight.0/div#0",
                module_type="torch.nn.utils.parametrize.ParametrizedLinear",
            ),
        ),
        "its weight is computed by fc.parametrizations.weight.0/div#0",
    ),
    "weight is an activation": (
        _case(X, other("/mm#0", "x"), B, linear(weight="/mm#0")),
        "its weight is computed by /mm#0",
    ),
    "weight of one dimension": (
        _case(X, state("fc.weight", (64,)), linear(bias="")),
        "its weight is of shape [64], not [N, K]",
    ),
    "no inputs": (_case(X, state("fc.weight", (48, 0)), B, linear()), "K=0, N=48: a weight without elements"),
    "no outputs": (_case(X, state("fc.weight", (0, 64)), B, linear()), "K=64, N=0: a weight without elements"),
    "weight is a buffer": (
        _case(X, state("fc.weight", (48, 64), kind="buffer"), B, linear()),
        "its weight fc.weight is a buffer, not a parameter",
    ),
    "a hook's own linear": (
        _case(X, W, B, state("lora_A", (16, 64)), linear(weight="lora_A", bias="")),
        "its weight is lora_A, not the module's own fc.weight",
    ),
    "another's bias": (
        _case(X, W, B, state("shift", (48,)), linear(bias="shift")),
        "its bias is shift, not the module's own fc.bias",
    ),
    "own bias left out": (
        _case(X, W, B, linear(bias="")),
        "it does not read the module's own fc.bias",
    ),
    "the model itself": (
        _case(X, state("weight", (48, 64)), state("bias", (48,)), linear("", "weight", "bias")),
        "there is no path to swap at",
    ),
    "fp64": (sized(format="fp64"), "its input is fp64; fp32, bf16 or fp16 is needed"),
    "complex": (sized(format="complex64"), "its input is complex64"),
    "already fp8": (
        _case(X, state("fc.weight", (48, 64), "fp8_e4m3"), B, linear()),
        "its weight is already fp8_e4m3",
    ),
    "the user's autocast region": (
        _case(X, W, B, linear(region="autocast cpu bf16")),
        "runs in a region of the user's own (autocast cpu bf16)",
    ),
    "changed in place, no bias": (
        _case(
            X,
            W,
            linear(bias=""),
            other("/relu#0", "fc/linear#0", mutates="self"),
            aliases=(("/relu#0", "fc/linear#0"),),
        ),
        "its output is changed in place by /relu#0, which autograd forbids after fp8 without a bias",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("recipe", RECIPES)
def test_refusals_say_why(name: str, recipe: str) -> None:
    (op, records), words = REFUSED[name]
    found = offer(op, records, recipe, "training", H100)
    assert isinstance(found, Refusal)
    assert words in found.reason


TIED = state("emb.weight", (48, 64))
ACCEPTED = {
    "plain": (_case(X, W, B, linear()), ()),
    "no bias": (_case(X, W, linear(bias="")), ()),
    "bf16 masters": (sized(format="bf16"), ()),
    "bias in place": (
        _case(
            X,
            W,
            B,
            linear(),
            other("/relu#0", "fc/linear#0", mutates="self"),
            aliases=(("/relu#0", "fc/linear#0"),),
        ),
        (),
    ),
    "called twice": (
        _case(X, W, B, linear(), linear(key="fc/linear#1")),
        ("called 2 times: every call runs the one module",),
    ),
    "hooks": (
        _case(X, W, B, linear(), other("fc/mul#0", "fc/linear#0")),
        ("what hooks compute stays as captured: fc/mul#0",),
    ),
    "tied to an embedding, read under its own name": (
        _case(X, W, TIED, B, other("emb/embedding#0", "fc.weight"), linear(), storages=(("emb.weight", "fc.weight"),)),
        (
            "weight tied to emb.weight: it stays one parameter",
            "the weight is also read by emb/embedding#0, in that op's own format",
        ),
    ),
    "tied, read under the other name": (
        _case(X, W, TIED, B, linear(weight="emb.weight"), storages=(("emb.weight", "fc.weight"),)),
        ("weight tied to emb.weight: it stays one parameter",),
    ),
    "tied, only the other name is left": (
        _case(X, TIED, linear(weight="emb.weight", bias="")),
        ("weight tied to emb.weight: it stays one parameter",),
    ),
    "frozen": (
        _case(X, state("fc.weight", (48, 64), grad=False), B, linear()),
        ("the weight is frozen, yet backward computes its gradient too",),
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted_with_notes(name: str) -> None:
    (op, records), notes = ACCEPTED[name]
    found = offer(op, records, "rowwise", "training", H100)
    assert isinstance(found, Swap)
    assert found.notes == notes
    assert (found.k, found.n) == (64, 48)


def test_the_last_graph_is_kept_by_identity_not_by_name() -> None:
    first, second = sized(k=64), sized(k=100)
    assert isinstance(offer(*first, "rowwise", "training", H100), Swap)
    assert isinstance(offer(*second, "rowwise", "training", H100), Refusal)
    assert isinstance(offer(*first, "rowwise", "training", H100), Swap)
