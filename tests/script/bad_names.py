"""Old names, custom functions, TF32, suppressions. Every line marked `# PA…` is found, and no other."""

from __future__ import annotations

# -- PA629: old names  --

OLD_NAMES = """
import torch
import torch.cuda.amp as amp
from torch.cuda.amp import GradScaler as GS, autocast


@autocast()  # PA629
def forward(model, x):
    return model(x)


scaler = GS()  # PA629
other = torch.cuda.amp.GradScaler(enabled=False)  # PA629
with amp.autocast(True, dtype=torch.float16):  # PA629
    pass
with torch.cpu.amp.autocast():  # PA629
    pass
"""

OLD_DECORATORS = """
import torch
from torch.cuda.amp import custom_bwd, custom_fwd


class Product(torch.autograd.Function):
    @staticmethod
    @custom_fwd(cast_inputs=torch.float32)  # PA629
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    @custom_bwd  # PA629
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g @ b.t(), a.t() @ g
"""

APEX = """
from apex import amp
import torch

model = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = amp.initialize(model, optimizer, opt_level="O1")  # PA629
for x in loader:
    optimizer.zero_grad()
    loss = model(x).mean()
    with amp.scale_loss(loss, optimizer) as scaled_loss:  # PA629
        scaled_loss.backward()
    torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)  # PA629
    optimizer.step()
"""

# -- PA631: custom functions  --

PLAIN_FUNCTION = """
import torch
import torch.nn.functional as F
from torch.autograd import Function


class Fused(Function):
    @staticmethod
    def forward(ctx, x, w):  # PA631
        ctx.save_for_backward(x, w)
        return F.linear(x, w)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g.matmul(w), g.t().matmul(x)


def run(x, w):
    with torch.autocast("cuda", dtype=torch.float16):
        return Fused.apply(x, w)
"""

HALF_DECORATED = """
import torch


class Scores(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")
    def forward(ctx, q, k):
        ctx.save_for_backward(q, k)
        return torch.bmm(q, k.transpose(1, 2))

    @staticmethod
    def backward(ctx, g):  # PA631
        q, k = ctx.saved_tensors
        return torch.bmm(g, k), torch.bmm(g.transpose(1, 2), q)


@torch.autocast("cuda")
def run(q, k):
    return Scores.apply(q, k)
"""

EINSUM_FUNCTION = """
import torch
from torch import amp, autograd


class Contract(autograd.Function):
    @staticmethod
    def forward(ctx, a, b):  # PA631
        ctx.a, ctx.b = a, b
        return torch.einsum("ij,jk->ik", a, b)

    @staticmethod
    def backward(ctx, g):
        return torch.einsum("ik,jk->ij", g, ctx.b), torch.einsum("ij,ik->jk", ctx.a, g)


with amp.autocast("cuda", dtype=torch.bfloat16):
    Contract.apply(a, b)
"""

# -- PA702: TF32  --

TF32_MATMUL = """
import torch

torch.backends.cuda.matmul.allow_tf32 = True  # PA702
torch.backends.cudnn.conv.fp32_precision = "tf32"
"""

TF32_CALL = """
import torch
from torch import backends

torch.set_float32_matmul_precision("high")  # PA702
backends.fp32_precision = "ieee"
"""

TF32_ALIAS = """
import torch.backends.cudnn as cudnn
import torch.backends.cuda as cuda

cuda.matmul.fp32_precision = "tf32"
cudnn.allow_tf32 = False  # PA702
"""

# -- PA506: suppressions  --

SUPPRESSED = """
import torch

x = torch.randn(4, 4)
x.half()  # precision-audit: ignore[PA626] the cost of the cast is what is timed here
# precision-audit: ignore[PA626] the next line
x.float()
x.sum()  # precision-audit: ignore[PA626] nothing is dropped here  # PA506
x.mean()  # precision-audit: ignore[PA203] of a rule about models, not judged here
"""

SCRIPTS = {name: text for name, text in dict(globals()).items() if name.isupper() and isinstance(text, str)}
