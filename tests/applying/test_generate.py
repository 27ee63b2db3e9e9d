"""`generate()` of transformers on an applied model: prefill, KV cache and sampling are the library's own."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn
from torchao.float8 import Float8LinearConfig, convert_to_float8_training

import precision_audit as pa
from precision_audit.backends.torchao_float8 import is_swapped

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow


def llama() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=96, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, pad_token_id=0, bos_token_id=1, eos_token_id=None,
        initializer_range=0.2,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def gpt2() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=96, n_embd=64, n_layer=2, n_head=4, n_positions=128, bos_token_id=1, eos_token_id=None,
        pad_token_id=0, initializer_range=0.2,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config).eval()


IDS = torch.randint(1, 96, (2, 16), generator=torch.Generator().manual_seed(0))
MASK = torch.ones_like(IDS).index_fill(1, torch.arange(3), 0)  # three tokens of padding on the left


def steps(model: nn.Module, forced: torch.Tensor | None = None, count: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens by greedy search and the logits of every step; along `forced` tokens where they are given."""
    options: dict[str, Any] = {}
    if forced is not None:
        options["prefix_allowed_tokens_fn"] = lambda row, so_far: [int(forced[row, len(so_far)])]
    with torch.no_grad():
        found = model.generate(
            IDS, attention_mask=MASK, max_new_tokens=count, do_sample=False, use_cache=True, output_logits=True,
            return_dict_in_generate=True, **options,
        )  # fmt: skip
    return found.sequences, torch.stack(found.logits)


def relative(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("make", [llama, gpt2])
@pytest.mark.parametrize("policy", ["bf16-inference", "bf16-inference-stream-high"])
def test_tokens_with_a_cache(make: Any, policy: str) -> None:
    wanted, reference = steps(make())
    model = make()
    kwargs = {"input_ids": IDS, "attention_mask": MASK}
    report = pa.audit(model, (), kwargs, policy=policy, device="h100", verify=False)
    applied = pa.apply(model, report)
    assert applied.stored and applied.hooked
    tokens, logits = steps(model, wanted)  # the same way, so that one near tie does not end the comparison
    assert torch.equal(tokens, wanted)
    assert logits.dtype == torch.float32
    assert relative(logits, reference) < 3e-2  # the policy's own tolerance
    top = reference.topk(2).values
    clear = (top[..., 0] - top[..., 1]) > 0.1 * reference.std()
    assert torch.equal(logits.argmax(-1)[clear], reference.argmax(-1)[clear]) and clear.any()
    assert steps(model)[0].shape == wanted.shape


def test_fp8_emulated_generates_what_torchao_does() -> None:
    model = llama()
    report = pa.audit(model, (), {"input_ids": IDS}, policy="fp8-training-hopper", device="h100", verify=False)
    _, plain = steps(llama())
    applied = pa.apply(model.eval(), report)
    planned = len(report.plan.swaps)  # of seven a layer, without the head, those that are not too sensitive (PA410)
    assert 8 <= planned <= 14 and len(applied.swapped) == sum(map(is_swapped, model.modules())) == planned
    config = dataclasses.replace(Float8LinearConfig.from_recipe_name("rowwise"), emulate=True)
    theirs = convert_to_float8_training(llama(), config=config, module_filter_fn=pa.module_filter_fn(report)).eval()
    (tokens, logits), (wanted, reference) = steps(model), steps(theirs)
    assert torch.equal(tokens, wanted) and torch.equal(logits, reference)
    assert relative(logits[0], plain[0]) > 1e-3  # it is not fp32 that ran
