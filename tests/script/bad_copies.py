"""Copies, casts and ties. Every line marked `# PA…` is found, and no other."""

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
        self.out.weight = nn.Parameter(self.wte.weight)  # PA628


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

CHANGED_COPIES = """
import torch


def decay(model, x):
    with torch.no_grad():
        for p in model.parameters():
            p.half().mul_(0.9)  # PA626
            p.data.float().mul_(0.999).clamp_(-1, 1)  # PA626
            p.grad.clone().zero_()  # PA626
    x.to(torch.float32).clamp_(0, 1)  # PA626
    x.to("cuda", dtype=torch.bfloat16).add_(1)  # PA626
"""

PARTED = """
import torch
from torch import nn


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(10, 4)
        self.h = nn.Linear(4, 10)
        self.h.weight = self.e.weight


lm = LM()
lm.h.weight = nn.Parameter(lm.h.weight.half())  # PA628
"""

LOW_TARGET = """
import torch
import torch.nn.functional as F


def train(model, loader, optimizer, scaler):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            out = model(x)
        loss = F.mse_loss(out, torch.as_tensor(y).half())  # PA625
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""

SCRIPTS = {name: text for name, text in dict(globals()).items() if name.isupper() and isinstance(text, str)}
