"""Defects beside the loop: copies, casts, ties, old names. Every line marked `# PA…` is found, and no other."""

from __future__ import annotations

# -- PA626: changes made to copies  --

CLAMPED_COPY = """
import torch


def train(critic, loader, opt):
    for x in loader:
        opt.zero_grad()
        critic(x).mean().backward()
        opt.step()
        for p in critic.parameters():
            p.data.clamp(-0.01, 0.01)  # PA626
"""

CAST_COPIES = """
import torch

x = torch.randn(4, 4)
x.half()  # PA626
y = torch.zeros(3).cuda()
y.to(torch.bfloat16)  # PA626
z = torch.ones(2)
z.mul(0.5)  # PA626
"""

REBOUND = """
def lower(model):
    for p in model.parameters():
        p = p.half()  # PA626
    for name, w in model.named_parameters():
        if "norm" in name:
            continue
        w = w.data.bfloat16()  # PA626
"""

EMA_COPY = """
import torch


@torch.no_grad()
def update(ema_model, model, decay):
    for e, p in zip(ema_model.parameters(), model.parameters()):
        e.mul_(decay).add_(p, alpha=1 - decay)
    for e in ema_model.parameters():
        e.data.mul(decay)  # PA626
        e.data.copy(model.weight.data)  # PA626
        e.grad.float()  # PA626
"""

OLD_CLIP = """
import torch
from torch.nn.utils import clip_grad_norm


def train(model, loader, optimizer):
    for x in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        clip_grad_norm(model.parameters(), 1.0)  # PA626
        torch.nn.utils.clip_grad_norm(model.parameters(), 1.0)  # PA626
        optimizer.step()
"""

# -- PA627: no master weights  --

CAST_AFTER_THE_OPTIMIZER = """
import torch
import torch.nn.functional as F

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.Adam(model.parameters())
model.to("cuda", torch.float16)  # PA627
for x, y in loader:
    optimizer.zero_grad()
    loss = F.mse_loss(model(x.half()).float(), y)
    loss.backward()
    optimizer.step()
"""

HALF_UNDER_A_SCALER = """
import torch
import torch.nn.functional as F


def main(loader):
    model = torch.nn.Linear(4, 4).cuda()
    model.half()  # PA627
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x.half()).float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""

LOADED_IN_BF16 = """
import torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("gpt2", torch_dtype=torch.bfloat16)  # PA627
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5)
for batch in loader:
    optimizer.zero_grad()
    loss = model(**batch).loss
    loss.backward()
    optimizer.step()
"""

CAST_IN_A_CLASS = """
import torch


class Trainer:
    def __init__(self, net):
        self.net = net.cuda()
        self.optimizer = torch.optim.SGD([{"params": self.net.parameters()}], lr=0.1)
        self.net.bfloat16()  # PA627

    def fit(self, loader):
        for x in loader:
            self.optimizer.zero_grad()
            loss = self.net(x).float().mean()
            loss.backward()
            self.optimizer.step()
"""

# -- PA628: ties  --

COPIES_OF_AN_EMBEDDING = """
import copy
import torch
from torch import nn


class LM(nn.Module):
    def __init__(self, n, d):
        super().__init__()
        self.wte = nn.Embedding(n, d)
        self.lm_head = nn.Linear(d, n, bias=False)
        self.out = nn.Linear(d, n, bias=False)
        self.lm_head.weight = nn.Parameter(self.wte.weight.data.half())  # PA628
        self.out.weight = copy.deepcopy(self.wte.weight)  # PA628


model = LM(8, 4)
model.lm_head.weight = torch.nn.Parameter(model.wte.weight.detach().clone())  # PA628
model.out.weight.data = model.wte.weight.data  # PA628
"""

TIE_BETWEEN_NAMES = """
from torch import nn

embed = nn.Embedding(8, 4)
head = nn.Linear(4, 8, bias=False)
head.weight = nn.Parameter(embed.weight.clone())  # PA628
"""

NEW_PARAMETERS = """
import torch
from torch import nn


def lower(model):
    for m in model.modules():
        if isinstance(m, (nn.Linear, nn.Embedding)):
            m.weight = nn.Parameter(m.weight.half())  # PA628
    for name, child in model.named_modules():
        if hasattr(child, "weight"):
            child.weight = nn.Parameter(child.weight.data.to(torch.bfloat16))  # PA628
"""

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
