"""Quantisation configs that drop a bias (PA416). Every line marked `# PA…` is found, and no other."""

from __future__ import annotations

CONFIG_OF_A_RECIPE = """
import torch.nn as nn
from torchao.prototype.moe_training.config import MXFP8TrainingOpConfig, MXFP8TrainingRecipe
from torchao.quantization import quantize_


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(256, 1024, bias=False)
        self.down = nn.Linear(1024, 256)


model = Net().cuda()
quantize_(model, config=MXFP8TrainingOpConfig.from_recipe(MXFP8TrainingRecipe.MXFP8_RCEIL))  # PA416
"""

CONFIG_BY_NAME = """
import torchao.quantization as q
import torchao.prototype.moe_training.config as moe

from models import build

model = build()
how = moe.MXFP8TrainingOpConfig()
q.quantize_(model, how)  # PA416
"""

BLOCKWISE_WITH_BIAS = """
from torchao.prototype.blockwise_fp8_training.linear import Float8BlockwiseLinear

plain = Float8BlockwiseLinear(256, 256, bias=False)
layer = Float8BlockwiseLinear(256, 512)  # PA416
"""

SCRIPTS = {name: text for name, text in dict(globals()).items() if name.isupper() and isinstance(text, str)}
