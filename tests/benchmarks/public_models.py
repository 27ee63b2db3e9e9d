"""Sixty small public models with random weights: 20 of torchvision, 20 of timm, 20 of transformers.

`MODELS` maps a name to a function without arguments that gives (module, args, kwargs): seeded, in evaluation mode, with
everything random that a constructor leaves constant (`tests.models.randomise`: a zero head tells nothing). The list was
fixed before any of its results was seen and is not to be tuned to them. Big models are built small by their own
arguments; nothing is downloaded. The three packages are imported when needed.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.models import randomise

Built = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


def _torchvision(name: str, size: int, **options: Any) -> Built:
    models = importlib.import_module("torchvision.models")
    options = {"weights": None, **options}
    return models.get_model(name, **options), (torch.randn(2, 3, size, size),), {}


def _torchvision_class(path: str, size: int, **options: Any) -> Built:
    module, _, name = path.rpartition(".")
    made = getattr(importlib.import_module(f"torchvision.models.{module}"), name)
    if "block" in options:
        options["block"] = getattr(importlib.import_module(f"torchvision.models.{module}"), options["block"])
    return made(num_classes=10, **options), (torch.randn(2, 3, size, size),), {}


def _raft() -> Built:
    models = importlib.import_module("torchvision.models.optical_flow")
    first, second = torch.rand(1, 3, 128, 128) * 2 - 1, torch.rand(1, 3, 128, 128) * 2 - 1
    return models.raft_small(weights=None), (first, second), {"num_flow_updates": 2}


def _timm(name: str, size: int, **options: Any) -> Built:
    timm = importlib.import_module("timm")
    return timm.create_model(name, pretrained=False, num_classes=10, **options), (torch.randn(2, 3, size, size),), {}


def _transformers(model: str, inputs: Callable[[], dict[str, Any]], **sizes: Any) -> Built:
    transformers = importlib.import_module("transformers")
    made = getattr(transformers, model)
    return made(made.config_class(**sizes)), (), inputs()


def ids(length: int = 24) -> Tensor:
    return torch.randint(3, 96, (2, length))


def text() -> dict[str, Any]:
    """Two rows, the second padded on the right by six."""
    mask = torch.ones(2, 24, dtype=torch.long)
    mask[1, -6:] = 0
    return {"input_ids": ids(), "attention_mask": mask}


def two_texts() -> dict[str, Any]:
    return {**text(), "decoder_input_ids": ids(8)}


def picture(size: int = 32) -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, size, size)}


def text_and_picture() -> dict[str, Any]:
    return {**text(), **picture()}


def speech() -> dict[str, Any]:
    return {"input_features": torch.randn(2, 16, 32), "decoder_input_ids": ids(8)}


def wave() -> dict[str, Any]:
    return {"input_values": torch.randn(2, 1600)}


BERT = {
    "vocab_size": 96,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 64,
}
GROUPED = {**BERT, "num_key_value_heads": 2}
GPT2 = {"vocab_size": 96, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}
BART = {
    "vocab_size": 96,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
}
VISION = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "image_size": 32,
    "patch_size": 8,
}
WAVE = {
    "vocab_size": 32,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "conv_dim": [32, 32, 32],
    "conv_stride": [5, 2, 2],
    "conv_kernel": [10, 3, 3],
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}
SEGFORMER = {
    "hidden_sizes": [8, 16, 16, 32],
    "depths": [1, 1, 1, 1],
    "num_attention_heads": [1, 2, 2, 4],
    "decoder_hidden_size": 32,
}
T5 = {"vocab_size": 96, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0, "decoder_start_token_id": 1}
SWIN = {"patch_size": [4, 4], "embed_dim": 24, "depths": [2, 2], "num_heads": [2, 4], "window_size": [4, 4]}
VIT = {"image_size": 32, "patch_size": 8, "num_layers": 2, "num_heads": 4, "hidden_dim": 64, "mlp_dim": 128}
MAXVIT = {
    "input_size": (64, 64),
    "stem_channels": 16,
    "partition_size": 2,
    "block_channels": [16, 32],
    "block_layers": [1, 1],
    "head_dim": 8,
    "stochastic_depth_prob": 0.0,
}
CLIP = {
    "text_config": {**BERT, "projection_dim": 32, "eos_token_id": 2, "pad_token_id": 1, "bos_token_id": 0},
    "vision_config": {**VISION, "projection_dim": 32},
    "projection_dim": 32,
}
DEBERTA = {**BERT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8}
OPT = {
    "vocab_size": 96,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "ffn_dim": 128,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "word_embed_proj_dim": 64,
}
BEIT = {"img_size": 32, "depth": 2, "embed_dim": 48, "num_heads": 4}
SWIN_V2 = {"img_size": 64, "embed_dim": 24, "depths": (1, 1, 1, 1), "num_heads": (1, 2, 2, 4), "window_size": 4}

_CALLS: dict[str, Callable[[], Built]] = {
    **{
        f"tv_{name}": functools.partial(_torchvision, name, size, **options)
        for name, size, options in (
            ("resnet18", 64, {}),
            ("resnext50_32x4d", 64, {}),
            ("densenet121", 64, {}),
            ("inception_v3", 96, {"aux_logits": False, "init_weights": False}),
            ("squeezenet1_0", 64, {}),
            ("mobilenet_v2", 64, {}),
            ("mobilenet_v3_small", 64, {}),
            ("mnasnet0_5", 64, {}),
            ("shufflenet_v2_x0_5", 64, {}),
            ("efficientnet_b0", 64, {}),
            ("efficientnet_v2_s", 64, {}),
            ("regnet_y_400mf", 64, {}),
            ("convnext_tiny", 64, {}),
            ("lraspp_mobilenet_v3_large", 64, {"weights_backbone": None, "num_classes": 5}),
            ("deeplabv3_mobilenet_v3_large", 64, {"weights_backbone": None, "num_classes": 5}),
        )
    },
    "tv_vit": functools.partial(_torchvision_class, "vision_transformer.VisionTransformer", 32, **VIT),
    "tv_swin": functools.partial(_torchvision_class, "swin_transformer.SwinTransformer", 32, **SWIN),
    "tv_swin_v2": functools.partial(
        _torchvision_class, "swin_transformer.SwinTransformer", 32, block="SwinTransformerBlockV2", **SWIN
    ),
    "tv_maxvit": functools.partial(_torchvision_class, "maxvit.MaxVit", 64, **MAXVIT),
    "tv_raft_small": _raft,
    **{
        f"timm_{name}": functools.partial(_timm, name, size, **options)
        for name, size, options in (
            ("resnet10t", 64, {}),
            ("mobilenetv3_small_050", 64, {}),
            ("efficientnet_lite0", 64, {}),
            ("convnextv2_atto", 64, {}),
            ("ghostnet_050", 64, {}),
            ("regnetx_002", 64, {}),
            ("repvgg_a0", 64, {}),
            ("edgenext_xx_small", 64, {}),
            ("mobilevit_xxs", 64, {}),
            ("mixer_s32_224", 64, {"img_size": 64}),
            ("vit_tiny_patch16_224", 32, {"img_size": 32, "depth": 2}),
            ("cait_xxs24_224", 32, {"img_size": 32, "depth": 2}),
            ("xcit_nano_12_p16_224", 32, {"img_size": 32, "depth": 2}),
            ("beit_base_patch16_224", 32, BEIT),
            ("swinv2_tiny_window8_256", 64, SWIN_V2),
            ("eva02_tiny_patch14_224", 28, {"img_size": 28, "depth": 2}),
            ("pvt_v2_b0", 64, {}),
            ("levit_128s", 224, {}),
            ("convit_tiny", 32, {"img_size": 32, "depth": 2}),
            ("poolformerv2_s12", 64, {}),
        )
    },
    **{
        f"hf_{name}": functools.partial(_transformers, model, inputs, **sizes)
        for name, model, inputs, sizes in (
            ("bert", "BertModel", text, BERT),
            ("albert", "AlbertModel", text, {**BERT, "embedding_size": 32}),
            ("deberta_v2", "DebertaV2Model", text, DEBERTA),
            ("electra", "ElectraModel", text, {**BERT, "embedding_size": 32}),
            ("gpt2", "GPT2LMHeadModel", text, GPT2),
            ("gpt_neox", "GPTNeoXForCausalLM", text, BERT),
            ("opt", "OPTForCausalLM", text, OPT),
            ("bloom", "BloomForCausalLM", text, {"vocab_size": 96, "hidden_size": 64, "n_layer": 2, "n_head": 4}),
            ("llama", "LlamaForCausalLM", text, GROUPED),
            ("qwen3", "Qwen3ForCausalLM", text, {**GROUPED, "head_dim": 16}),
            ("gemma2", "Gemma2ForCausalLM", text, {**GROUPED, "head_dim": 16, "sliding_window": 8}),
            ("mixtral", "MixtralForCausalLM", text, {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}),
            ("mamba", "MambaForCausalLM", text, {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2}),
            ("t5", "T5ForConditionalGeneration", two_texts, T5),
            ("bart", "BartForConditionalGeneration", two_texts, {**BART, "max_position_embeddings": 64}),
            (
                "whisper",
                "WhisperForConditionalGeneration",
                speech,
                {**BART, **SPECIAL, "max_source_positions": 16, "max_target_positions": 32, "num_mel_bins": 16},
            ),
            ("wav2vec2", "Wav2Vec2Model", wave, WAVE),
            ("clip", "CLIPModel", text_and_picture, CLIP),
            ("dinov2", "Dinov2Model", picture, VISION),
            ("segformer", "SegformerForSemanticSegmentation", picture, SEGFORMER),
        )
    },
}


def _seeded(call: Callable[[], Built]) -> Built:
    torch.manual_seed(0)
    module, args, kwargs = call()
    return randomise(module.eval(), 0), args, kwargs


MODELS: dict[str, Callable[[], Built]] = {name: functools.partial(_seeded, call) for name, call in _CALLS.items()}
