"""Float8Linear: whose size allows a swap, and what is built. Decided by hand from the rules of `_scaled_mm`."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from precision_audit import backends
from precision_audit.backends import torchao_float8
from precision_audit.backends.torchao_float8 import RECIPES, build, is_swapped, match_device, offer
from precision_audit.hardware import device
from precision_audit.records import InputError, Mode, Refusal, Swap
from tests.backends.graphs import LINEAR, sized
from tests.backends.swapped import Small, swap_for

H100 = device("h100")

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
    found = offer(op, records, recipe, mode, H100)
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
    found = offer(op, records, recipe, mode, H100)
    assert isinstance(found, Swap)
    assert found.constraints == constraints


def test_a_size_that_can_never_fit_is_refused() -> None:
    op, records = sized(lead=("2*B + 1",), hint=(9,), symbols=(("B", 4),))
    found = offer(op, records, "rowwise", "training", H100)
    assert isinstance(found, Refusal)
    assert found.reason.startswith("M=2*B + 1 is not a multiple of 16")


# build ---------------------------------------------------------------------------------------------------------------


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


# registry ------------------------------------------------------------------------------------------------------------


def test_backends_are_found_by_listing_their_folder() -> None:
    listed = backends.listed()
    assert list(listed) == ["torchao", "torchao_quantize", "transformer_engine"]
    for name, backend in listed.items():
        assert name == backend.NAME
        assert backend.RECIPES and backend.__doc__
    assert backends.get("torchao") is torchao_float8


@pytest.mark.parametrize(
    ("name", "recipe", "words"),
    [
        ("torchoa", None, "unknown backend: 'torchoa'; did you mean torchao"),
        ("nothing", None, "known: torchao, torchao_quantize, transformer_engine"),
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
