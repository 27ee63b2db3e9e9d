import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "fp16",
    "harmless": True,
    "why": "The accumulator starts at 0.1, so the root never vanishes, whatever the eps.",
}


def build_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.EmbeddingBag(12, 8, mode="sum"), nn.Tanh(), nn.Linear(8, 2))


def example_inputs():
    torch.manual_seed(1)
    return (torch.randint(0, 12, (6, 3)),)


def loss(output):
    return F.cross_entropy(output.float(), torch.arange(6) % 2)


def make_optimizer(params):
    return torch.optim.Adagrad(params, lr=0.1, initial_accumulator_value=0.1)
