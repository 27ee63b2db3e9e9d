import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "bf16",
    "symptom": "crash-backward",
    "culprit_op": "<custom-function>",
    "line": "table_grad.index_add_(",
    "why": "The backward allocates its gradient in the default fp32 and index_add_ refuses a bf16 source.",
}


class Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx, table, idx):
        ctx.save_for_backward(idx)
        ctx.rows, ctx.dim = table.shape
        return table.index_select(0, idx)

    @staticmethod
    def backward(ctx, g):
        (idx,) = ctx.saved_tensors
        table_grad = torch.zeros(ctx.rows, ctx.dim)
        table_grad.index_add_(0, idx, g)
        return table_grad, None


class Hash(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(16, 4) * 0.1)
        self.mlp = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, idx):
        return self.mlp(Lookup.apply(self.table, idx))


def build_model():
    torch.manual_seed(0)
    return Hash()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randint(0, 16, (9,)),)


def loss(output):
    return F.l1_loss(output.float(), torch.ones(9, 3))
