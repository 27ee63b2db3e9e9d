"""Float8Linear: who may be swapped, and that a swap in an FX graph trains, saves and passes CUDA's shape checks.

Shapes in the tables were decided by hand from the rules of `_scaled_mm`; the checks on meta tensors are torch's own.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from precision_audit import backends
from precision_audit.backends import torchao_float8
from precision_audit.backends.torchao_float8 import RECIPES, build, is_swapped, match_device, offer
from precision_audit.device_shapes import check_shapes, on_meta
from precision_audit.records import Graph, InputError, Mode, Op, Refusal, Swap
from tests.backends.graphs import LINEAR, entering, graph, linear, other, sized, state

# offer: sizes ------------------------------------------------------------------------------------------------------

# recipe, mode, (K, N, M) → words of the refusal, "" for a swap
SIZES = [
    ("rowwise", "training", (64, 48, 32), ""),
    ("rowwise", "training", (100, 48, 32), "K=100 is not a multiple of 16"),
    ("rowwise", "training", (9216, 10, 64), "N=10 is not a multiple of 16"),
    ("rowwise", "training", (100, 10, 32), "K=100 is not a multiple of 16; N=10 is not a multiple of 16"),
    ("rowwise", "training", (712, 15, 1), "K=712 is not a multiple of 16; N=15 is not a multiple of 16; M=1 is not"),
    (
        "rowwise",
        "training",
        (64, 48, 24),
        "M=24 is not a multiple of 16, as backward needs; rowwise_with_gw_hp does without",
    ),
    ("tensorwise", "training", (64, 48, 24), "M=24 is not a multiple of 16"),
    ("rowwise_with_gw_hp", "training", (64, 48, 24), ""),
    ("rowwise_with_gw_hp", "training", (64, 40, 24), "N=40 is not a multiple of 16"),
    ("rowwise", "inference", (64, 48, 1), ""),
    ("tensorwise", "inference", (64, 48, 1), ""),
    ("tensorwise", "inference", (56, 48, 1), "K=56 is not a multiple of 16"),
    ("tensorwise", "inference", (64, 48, 0), "M=0: an empty batch has no maximum to scale by"),
    ("rowwise", "training", (64, 48, 0), "M=0: an empty batch has no maximum to scale by"),
    ("rowwise", "inference", (64, 48, 0), ""),
    ("rowwise_with_gw_hp", "training", (64, 48, 0), ""),
]


@pytest.mark.parametrize(("recipe", "mode", "shape", "words"), SIZES)
def test_sizes_decide_and_are_named(recipe: str, mode: Mode, shape: tuple[int, int, int], words: str) -> None:
    k, n, m = shape
    op, records = sized(k, n, (m,), (m,))
    found = offer(op, records, recipe, mode)
    if words:
        assert isinstance(found, Refusal)
        assert words in found.reason
        assert (found.op, found.module, found.backend) == ("fc/linear#0", "fc", "torchao")
    else:
        assert found == Swap("fc/linear#0", "fc", "torchao", recipe, k, n, m)


@pytest.mark.parametrize(
    ("recipe", "mode", "lead", "hint", "constraints"),
    [
        ("rowwise", "training", ("B",), (64,), ("B % 16 == 0 in backward, last batch included",)),
        ("rowwise", "training", ("B", "T"), (4, 8), ("B*T % 16 == 0 in backward, last batch included",)),
        ("rowwise", "training", ("B", 4), (4, 4), ("B % 4 == 0 in backward, last batch included",)),
        ("rowwise", "training", ("B", 16), (3, 16), ()),
        (
            "tensorwise",
            "training",
            ("B",),
            (10,),
            ("B % 16 == 0 in backward, last batch included (the example's M=10 breaks it)",),
        ),
        ("rowwise", "inference", ("B",), (3,), ()),
        ("rowwise_with_gw_hp", "training", ("B",), (3,), ()),
        (
            "tensorwise",
            "inference",
            ("u0",),
            (1,),
            ("u0 > 0, no empty batch: it has no maximum to scale by",),
        ),
    ],
)
def test_open_sizes_become_constraints(
    recipe: str, mode: Mode, lead: tuple[int | str, ...], hint: tuple[int, ...], constraints: tuple[str, ...]
) -> None:
    op, records = sized(lead=lead, hint=hint, symbols=(("B", 4), ("T", 8), ("u0", 1)))
    found = offer(op, records, recipe, mode)
    assert isinstance(found, Swap)
    assert found.constraints == constraints


def test_a_size_that_can_never_fit_is_refused() -> None:
    op, records = sized(lead=("2*B + 1",), hint=(9,), symbols=(("B", 4),))
    found = offer(op, records, "rowwise", "training")
    assert isinstance(found, Refusal)
    assert found.reason.startswith("M=2*B + 1 is not a multiple of 16")


# offer: whose linear it is -----------------------------------------------------------------------------------------

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
    found = offer(op, records, recipe, "training")
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
    found = offer(op, records, "rowwise", "training")
    assert isinstance(found, Swap)
    assert found.notes == notes
    assert (found.k, found.n) == (64, 48)


def test_the_last_graph_is_kept_by_identity_not_by_name() -> None:
    first, second = sized(k=64), sized(k=100)
    assert isinstance(offer(*first, "rowwise", "training"), Swap)
    assert isinstance(offer(*second, "rowwise", "training"), Refusal)
    assert isinstance(offer(*first, "rowwise", "training"), Swap)


# build ---------------------------------------------------------------------------------------------------------------


def swap_for(recipe: str, path: str = "fc") -> Swap:
    return Swap(f"{path}/linear#0", path, "torchao", recipe, 64, 48, 32)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_build_keeps_parameters_bias_and_mode(recipe: str, bias: bool, training: bool) -> None:
    plain = nn.Linear(64, 48, bias=bias).train(training)
    built = build(plain, swap_for(recipe))
    assert is_swapped(built)
    assert built.weight is plain.weight
    assert built.bias is plain.bias
    assert built.training is training
    assert built.config.emulate
    assert list(built.state_dict()) == list(plain.state_dict())


def test_build_mends_inductor() -> None:
    patch = pytest.importorskip("torchao.float8._inductor_patch")
    build(nn.Linear(64, 48), swap_for("rowwise"))
    assert patch._PATCHED


def test_build_refuses_what_a_swap_would_lose() -> None:
    class Scaled(nn.Linear):
        pass

    hooked = nn.Linear(64, 48)
    hooked.register_forward_hook(lambda module, inputs, output: output * 2)
    with pytest.raises(InputError, match=r"not exactly nn\.Linear"):
        build(Scaled(64, 48), swap_for("rowwise"))
    with pytest.raises(InputError, match="fc has hooks"):
        build(hooked, swap_for("rowwise"))


def test_emulation_follows_the_device() -> None:
    holder = nn.Sequential(build(nn.Linear(64, 48), swap_for("rowwise")))
    assert match_device(holder) == 0
    holder.to("meta")
    assert match_device(holder) == 1
    assert not holder[0].config.emulate
    assert not holder[0].linear_mm_config.output.emulate
    holder.to_empty(device="cpu")
    assert match_device(holder) == 1
    assert holder[0].config.emulate


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("format", [torch.float32, torch.bfloat16, torch.float16])
def test_the_output_has_the_format_of_the_input(recipe: str, format: torch.dtype) -> None:
    built = build(nn.Linear(64, 48), swap_for(recipe))  # fp32 master weights
    x = torch.randn(32, 64, dtype=format, requires_grad=True)
    y = built(x)
    assert y.dtype == format
    y.float().sum().backward()
    assert x.grad is not None and x.grad.dtype == format
    assert built.weight.grad.dtype == torch.float32


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_transposed_input_is_taken_as_a_linear_takes_it(recipe: str) -> None:
    built = build(nn.Linear(64, 48), swap_for(recipe))
    x = torch.randn(16, 2, 64).transpose(0, 1).requires_grad_()
    flat = x.detach().contiguous().requires_grad_()
    expected = built(flat)
    found = built(x)
    assert torch.equal(found, expected)
    found.sum().backward()
    expected.sum().backward()
    assert torch.equal(x.grad, flat.grad)


# swaps in an FX graph ------------------------------------------------------------------------------------------------


class Net(nn.Module):
    """A tied table, a linear that is called twice, one without bias, one that stays: a classifier of 10."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 64)
        self.mix = nn.Linear(64, 64)
        self.table = nn.Linear(64, 32, bias=False)
        self.table.weight = self.embedding.weight
        self.head = nn.Linear(32, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens).mean(1)
        x = F.gelu(self.mix(F.gelu(self.mix(x))))
        return self.head(self.table(x) + torch.arange(32, device=x.device) * 1e-3)


SWAPPED = ("mix", "table")


def swapped_net(recipe: str, batch: int = 32, paths: tuple[str, ...] = SWAPPED) -> tuple[Net, fx.GraphModule, Tensor]:
    """The net, and its exported graph with Float8Linear at the original paths over clones of the parameters."""
    torch.manual_seed(0)
    net = Net()
    tokens = torch.randint(0, 32, (batch, 8))
    module = copy.deepcopy(torch.export.export(copy.deepcopy(net), (tokens,), strict=False).module(check_guards=False))
    for path in paths:
        holder = module.get_submodule(path)
        plain = nn.Linear(*reversed(holder.weight.shape), bias=hasattr(holder, "bias"))
        plain.weight = holder.weight
        if hasattr(holder, "bias"):
            plain.bias = holder.bias
        module.set_submodule(path, build(plain, swap_for(recipe, path)))
    for node in list(module.graph.nodes):
        if node.op == "call_function" and node.target is torch.ops.aten.linear.default:
            path = list(node.meta["nn_module_stack"].values())[-1][0]
            if path in paths:
                with module.graph.inserting_before(node):
                    node.replace_all_uses_with(module.graph.call_module(path, (node.args[0],)))
                module.graph.erase_node(node)
    module.recompile()
    return net, module, tokens


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_swapped_graph_trains(recipe: str) -> None:
    _, module, tokens = swapped_net(recipe)
    labels = tokens[:, 0] % 10
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3)
    losses = []
    for _ in range(50):
        loss = F.cross_entropy(module(tokens), labels)
        optimizer.zero_grad()
        loss.backward()
        gradients = {name: parameter.grad for name, parameter in module.named_parameters()}
        assert all(g is not None and g.dtype == torch.float32 and g.isfinite().all() for g in gradients.values())
        assert all(g.abs().max() > 0 for name, g in gradients.items() if g is not None), gradients.keys()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_swapped_graph_is_near_the_original_and_not_equal(recipe: str) -> None:
    net, module, tokens = swapped_net(recipe)
    expected, found = net(tokens), module(tokens)
    error = ((found - expected).norm() / expected.norm()).item()
    # Each e4m3 operand carries up to 2^-4 relative rounding error; three products in a row stay well below one.
    assert 1e-4 < error < 0.2
    assert found.dtype == expected.dtype


@pytest.mark.parametrize("recipe", RECIPES)
def test_state_dict_loads_both_ways_strictly(recipe: str) -> None:
    net, module, _ = swapped_net(recipe)
    assert set(module.state_dict()) == set(net.state_dict())
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    net.load_state_dict(module.state_dict(), strict=True)
    assert torch.equal(net.mix.weight, module.get_submodule("mix").weight)
    for parameter in net.parameters():
        nn.init.normal_(parameter)
    module.load_state_dict(net.state_dict(), strict=True)
    assert torch.equal(net.table.weight, module.get_submodule("table").weight)


def test_ties_and_calls_survive() -> None:
    _, module, _ = swapped_net("rowwise")
    assert module.get_submodule("table").weight is module.get_submodule("embedding").weight
    calls = [node.target for node in module.graph.nodes if node.op == "call_module"]
    assert calls == ["mix", "mix", "table"]


# shapes on the meta device -------------------------------------------------------------------------------------------


class Small(nn.Module):
    def __init__(self, k: int, n: int) -> None:
        super().__init__()
        self.fc = nn.Linear(k, n)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.fc(x))


# (K, N, M), backward?, recipe → the words of CUDA's rule
META = [
    ((64, 48, 32), True, "tensorwise", "pass"),
    ((64, 48, 32), True, "rowwise", "pass"),
    ((64, 48, 24), True, "rowwise_with_gw_hp", "pass"),
    ((64, 48, 24), False, "rowwise", "pass"),
    ((56, 48, 32), False, "rowwise", "size(1)=56"),
    ((64, 40, 32), False, "tensorwise", "divisible by 16"),
    ((64, 40, 32), True, "rowwise_with_gw_hp", "divisible by 16"),
    ((64, 48, 24), True, "rowwise", "size(1)=24"),
    ((64, 48, 24), True, "tensorwise", "size(1)=24"),
]


@pytest.mark.parametrize(("shape", "backward", "recipe", "words"), META)
def test_shapes_are_checked_as_cuda_does(shape: tuple[int, int, int], backward: bool, recipe: str, words: str) -> None:
    k, n, m = shape
    module = Small(k, n)
    plain = module.fc
    module.fc = build(plain, swap_for(recipe))  # type: ignore[assignment]
    found = check_shapes(module, (torch.randn(m, k),), mode="training" if backward else "inference")
    if words == "pass":
        assert found == "pass"
    else:
        assert found.startswith("fc: ")
        assert words in found
    assert module.fc.weight is plain.weight and module.fc.config.emulate and plain.weight.device.type == "cpu"


@pytest.mark.parametrize("m", [32, 24, 1])
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("k", [64, 56])
@pytest.mark.parametrize("n", [48, 40])
def test_offer_agrees_with_the_device(m: int, recipe: str, k: int, n: int) -> None:
    """What `offer` takes passes on meta, and what it refuses for a size fails there."""
    module = Small(k, n)
    module.fc = build(module.fc, swap_for(recipe))  # type: ignore[assignment]
    op, records = sized(k, n, (m,), (m,))
    taken = isinstance(offer(op, records, recipe, "training"), Swap)
    assert taken == (check_shapes(module, (torch.randn(m, k),)) == "pass")


@pytest.mark.parametrize(("batch", "words"), [(32, "pass"), (24, "table: ")])
def test_a_whole_graph_is_checked_with_devices_baked_in(batch: int, words: str) -> None:
    _, module, tokens = swapped_net("rowwise", batch)  # holds arange(device="cpu")
    assert check_shapes(module, (tokens,)).startswith(words)
    assert {parameter.device.type for parameter in module.parameters()} == {"cpu"}


def test_the_meta_copy_keeps_ties_and_holds_no_weights() -> None:
    _, module, _ = swapped_net("rowwise")
    twin = on_meta(module)
    assert all(parameter.is_meta for parameter in twin.parameters())
    assert twin.get_submodule("table").weight is twin.get_submodule("embedding").weight
    assert not twin.get_submodule("mix").config.emulate


def test_what_depends_on_data_is_not_checked_and_said() -> None:
    class Picks(Small):
        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x[x[:, 0] > 0])

    module = Picks(64, 48)
    module.fc = build(module.fc, swap_for("rowwise"))  # type: ignore[assignment]
    assert check_shapes(module, (torch.randn(32, 64),)).startswith("not checked: ")


# registry ------------------------------------------------------------------------------------------------------------


def test_backends_are_found_by_listing_their_folder() -> None:
    listed = backends.listed()
    assert list(listed) == ["torchao", "transformer_engine"]
    for name, backend in listed.items():
        assert name == backend.NAME
        assert backend.RECIPES and backend.__doc__
    assert backends.get("torchao") is torchao_float8


@pytest.mark.parametrize(
    ("name", "recipe", "words"),
    [
        ("torchoa", None, "unknown backend: 'torchoa'; did you mean torchao"),
        ("nothing", None, "known: torchao, transformer_engine"),
        ("torchao", "rowise", "unknown recipe of backend torchao: 'rowise'; did you mean rowwise"),
    ],
)
def test_unknown_names_are_answered_with_the_nearest(name: str, recipe: str | None, words: str) -> None:
    with pytest.raises(InputError, match=words.replace("(", "\\(")):
        backends.get(name, recipe)


def test_recipes_are_torchaos_own() -> None:
    from torchao.float8 import Float8LinearRecipeName

    assert set(RECIPES) == {each.value for each in Float8LinearRecipeName}


def test_module_type_is_what_export_says() -> None:
    exported = torch.export.export(Small(16, 16), (torch.randn(2, 16),), strict=False)
    linears = [node for node in exported.graph.nodes if node.target is torch.ops.aten.linear.default]
    assert [list(node.meta["nn_module_stack"].values())[-1] for node in linears] == [("fc", LINEAR)]
