"""C40 category_id_inside_float_features (integer-precision)

Reported in: deepspeedai/DeepSpeed issue 5701 (also mosaicml/composer PR 197)

Casting a whole batch to half also casts what are really integers. Here a category id travels in
a float feature tensor and is converted back with .long(); ids above 2048 change when rounded,
so other embedding rows are read. A pure integer id tensor in the same position would crash in
the embedding instead.
"""

import torch
from torch import nn

SOURCE = "deepspeedai/DeepSpeed issue 5701 (also mosaicml/composer PR 197)"
KIND = "integer-precision"
EXPECT = {
    "naive": "fp16",
    "symptom": "rel_err>0.1",
    "culprit_op": "embedding",
    "must_keep_fp32": ["feats"],
    "hazard": "integer-carried-in-float-input",
    "safe": "leave the input that carries ids in fp32 (autocast does), or split ids out as int64",
    "safe_modes": ["autocast-bf16"],
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.fc = nn.Embedding(6000, 16), nn.Linear(3, 16)

    def forward(self, feats):
        ids = feats[:, 0].long()
        return self.emb(ids) + 0.1 * self.fc(feats[:, 1:])


def build_model():
    torch.manual_seed(0)
    return Net().eval()


def example_inputs():
    torch.manual_seed(1)
    return (torch.cat((torch.tensor([[2049.0], [3001], [4097], [4999], [17], [2051]]), torch.randn(6, 3)), 1),)
