"""C73 lstm_default_dtype_initial_state (dtype-mismatch)

Reported in: LaurentMazare/tch-rs PR 624 (also pytorch/pytorch issue 42605)

A recurrent layer whose initial hidden state is created with torch.zeros in the default dtype.
After casting the module to half the state is still fp32 and the cell rejects it.
"""

import torch
from torch import nn

SOURCE = "LaurentMazare/tch-rs PR 624 (also pytorch/pytorch issue 42605)"
KIND = "dtype-mismatch"
EXPECT = {
    "naive": "fp16",
    "symptom": "crash",
    "error": "",
    "culprit_op": "lstm",
    "must_keep_fp32": ["rnn"],
    "hazard": "mixed-dtype-rnn-state",
    "safe": "autocast bf16, or create the state with the input dtype",
    "safe_modes": ["autocast-bf16"],
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.fc = nn.LSTM(8, 12, batch_first=True), nn.Linear(12, 3)

    def forward(self, x):
        h0 = torch.zeros(1, x.shape[0], 12)
        y, _ = self.rnn(x, (h0, torch.zeros_like(h0)))
        return self.fc(y[:, -1])


def build_model():
    torch.manual_seed(0)
    return Net().eval()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(2, 5, 8),)
