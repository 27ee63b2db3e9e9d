import torch
import torch.nn.functional as F
from torch import nn

EXPECT = {
    "naive": "bf16",
    "symptom": "buffer_stuck",
    "state": "tokens_seen",
    "steps": 700,
    "culprit_op": "add",
    "line": "self.tokens_seen + ids.numel()",
    "why": "A float count of tokens grows by 12 per call; at 4096 the bf16 spacing is 32 and it stays there.",
}


class WarmLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.lstm, self.out = nn.Embedding(11, 6), nn.LSTM(6, 6, batch_first=True), nn.Linear(6, 11)
        self.register_buffer("tokens_seen", torch.zeros(1))

    def forward(self, ids):
        if self.training:
            self.tokens_seen.copy_(self.tokens_seen + ids.numel())
        warm = (self.tokens_seen / 10000).clamp(max=1.0)
        return self.out(self.lstm(self.emb(ids))[0]) * warm


def build_model():
    torch.manual_seed(0)
    return WarmLM()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randint(0, 11, (3, 4)),)


def loss(output):
    return F.cross_entropy(output.float().flatten(0, 1), torch.arange(12) % 11)
