"""C92 cpu_grid_sample_low_precision_garbage (unsupported-op)

Reported in: pytorch/pytorch issue 127224 (see PR 134812)

CPU grid_sample accepts half and bf16 in the tested build but returns values that are not
samples of the image at all when part of the grid falls outside a larger picture (an all-ones
image yields huge or non-finite numbers). It neither raises nor warns.
"""

import torch
import torch.nn.functional as F
from torch import nn

SOURCE = "pytorch/pytorch issue 127224 (see PR 134812)"
KIND = "unsupported-op"
EXPECT = {
    "naive": "bf16",
    "symptom": "garbage",
    "culprit_op": "grid_sampler",
    "must_keep_fp32": ["affine_grid_generator", "grid_sampler", "theta"],
    "hazard": "cpu-grid-sample-low-precision",
    "safe": "grid and grid_sample in fp32",
    "safe_modes": [],
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("theta", torch.tensor([[[0.9848, -0.1736, 0.0], [0.1736, 0.9848, 0.0]]]))

    def forward(self, img):
        grid = F.affine_grid(self.theta, img.shape, align_corners=True)
        return F.grid_sample(img, grid, align_corners=True)


def build_model():
    return Net().eval()


def example_inputs():
    return (torch.ones(1, 1, 512, 512),)
