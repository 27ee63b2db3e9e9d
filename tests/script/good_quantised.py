"""Quantisation of models that keeps every bias."""

from __future__ import annotations

FILTERED_BY_BIAS = """
import torch
from torchao.prototype.moe_training.config import MXFP8TrainingOpConfig
from torchao.quantization import quantize_

model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64, bias=False))
quantize_(model, MXFP8TrainingOpConfig(), filter_fn=lambda m, _: isinstance(m, torch.nn.Linear) and m.bias is None)
"""

WITHOUT_ANY_BIAS = """
import torch
from torchao.prototype.moe_training.config import MXFP8TrainingOpConfig
from torchao.quantization import quantize_

model = torch.nn.Sequential(torch.nn.Linear(64, 64, False), torch.nn.ReLU(), torch.nn.Linear(64, 64, bias=False))
quantize_(model, MXFP8TrainingOpConfig())
"""

OTHER_CONFIGS = """
import torch
from torchao.float8 import Float8LinearConfig, convert_to_float8_training
from torchao.prototype.moe_training.config import Float8TrainingOpConfig
from torchao.quantization import Int8WeightOnlyConfig, quantize_

model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
convert_to_float8_training(model, config=Float8LinearConfig.from_recipe_name("rowwise"))
quantize_(model, Float8TrainingOpConfig())
quantize_(model, Int8WeightOnlyConfig())
"""

LOOPS = {name: text for name, text in dict(globals()).items() if name.isupper() and isinstance(text, str)}
