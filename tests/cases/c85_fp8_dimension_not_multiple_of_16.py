"""C85 fp8_dimension_not_multiple_of_16 (fp8-shape)

Reported in: pytorch/ao issue 1268 (also issue 571)

Classifier with 15 outputs quantised to fp8. CUDA scaled matmul wants both dimensions of the
second operand to be multiples of 16. The CPU kernel does not check, so the rule is exercised
here through fake CUDA tensors.
"""

import torch
import torch.nn.functional as F
from torch import nn

SOURCE = "pytorch/ao issue 1268 (also issue 571)"
KIND = "fp8-shape"
EXPECT = {
    "naive": "custom",
    "symptom": "custom",
    "culprit_op": "linear",
    "culprit_fqn": "head",
    "must_keep_fp32": ["head"],
    "hazard": "fp8-dims-not-multiple-of-16",
    "safe": "leave the layer in bf16, or pad it to a multiple of 16",
    "safe_modes": ["fp8-train"],
    "safe_tol": 0.15,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(32, 32), nn.Linear(32, 15)

    def forward(self, x):
        return self.head(F.relu(self.body(x)))


def build_model():
    torch.manual_seed(0)
    return Net().eval()


def example_inputs():
    torch.manual_seed(1)
    return (torch.randn(16, 32),)


def custom_check():
    from torch._subclasses.fake_tensor import FakeTensorMode

    msgs = {}
    with FakeTensorMode():
        for n, m in build_model().named_children():
            a = torch.empty(16, m.in_features, device="cuda", dtype=torch.float8_e4m3fn)
            b = torch.empty(m.out_features, m.in_features, device="cuda", dtype=torch.float8_e4m3fn).t()
            one = torch.empty((), device="cuda")
            try:
                torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16)
                msgs[n] = "ok"
            except Exception as ex:
                msgs[n] = str(ex).splitlines()[0][:90]
    return msgs["body"] == "ok" and msgs["head"] != "ok", str(msgs)
