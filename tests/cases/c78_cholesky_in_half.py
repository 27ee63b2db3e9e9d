"""C78 cholesky_in_half (unsupported-op)

Reported in: ldeecke/gmm-torch issue 27 (also pytorch/pytorch issue 40427)

Mahalanobis distance through a Cholesky factor inside the network. LAPACK style routines exist
only for fp32 and fp64, so a half model cannot run; the accuracy would be inadequate anyway.
"""

import torch
from torch import nn

SOURCE = "ldeecke/gmm-torch issue 27 (also pytorch/pytorch issue 40427)"
KIND = "unsupported-op"
EXPECT = {
    "naive": "fp16",
    "symptom": "crash",
    "error": "not implemented for 'Half'",
    "culprit_op": "linalg_cholesky",
    "must_keep_fp32": ["matmul", "add", "linalg_cholesky", "linalg_solve_triangular", "pow", "sum", "feat"],
    "hazard": "linalg-low-precision",
    "safe": "covariance, factorisation and solve in fp32",
    "safe_modes": [],
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.feat = nn.Linear(10, 6)

    def forward(self, x):
        h = self.feat(x)
        cov = torch.matmul(h.t(), h) / h.shape[0] + 0.1 * torch.eye(6, dtype=h.dtype)
        L = torch.linalg.cholesky(cov)
        return torch.linalg.solve_triangular(L, h.t(), upper=False).pow(2).sum(0)


def build_model():
    torch.manual_seed(0)
    return Net().eval()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(40, 10),)
