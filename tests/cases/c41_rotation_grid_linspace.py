"""C41 rotation_grid_linspace (coordinate-precision)

Reported in: pytorch/vision issue 9029

A sampling grid built by linspace in the image dtype and rotated by a matrix. bf16 has 128 steps
between 0.5 and 1, fewer than the pixels of a 512-wide image, so the warped picture looks
blocky.
"""

import torch
import torch.nn.functional as F
from torch import nn

SOURCE = "pytorch/vision issue 9029"
KIND = "coordinate-precision"
EXPECT = {
    "naive": "bf16",
    "symptom": "rel_err>0.1",
    "culprit_op": "grid_sampler",
    "must_keep_fp32": ["linspace", "meshgrid", "stack", "theta", "matmul"],
    "hazard": "coordinate-precision",
    "safe": "fp32 grid (theta, linspace, matmul) and grid_sample; image itself may be stored in bf16",
    "safe_modes": [],
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("theta", torch.tensor([[0.9848, -0.1736], [0.1736, 0.9848]]))

    def forward(self, img):
        H, W = img.shape[-2:]
        ys = torch.linspace(-1, 1, H, dtype=img.dtype)
        xs = torch.linspace(-1, 1, W, dtype=img.dtype)
        gy, gx = torch.meshgrid(ys, xs, indexing="ij")
        grid = torch.matmul(torch.stack((gx, gy), -1), self.theta)
        return F.grid_sample(img.to(torch.float32), grid[None].to(torch.float32), align_corners=True)


def build_model():
    return Net().eval()


def example_inputs():
    torch.manual_seed(1)
    return (F.interpolate(torch.randn(1, 1, 256, 256), size=(512, 512), mode="bilinear"),)
