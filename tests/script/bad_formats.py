"""Scaling that does not fit the format. Every line marked `# PA…` is found, and no other."""

from __future__ import annotations

# -- PA630: scaling and format  --

SCALER_WITH_BF16 = """
import torch

scaler = torch.amp.GradScaler("cuda")  # PA630
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(x).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""

SCALER_WITH_BF16_BY_NAME = """
import torch


def main(loader, model):
    amp_dtype = torch.bfloat16
    grad_scaler = torch.amp.GradScaler("cuda", init_scale=1024)  # PA630
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ctx = torch.amp.autocast(device_type="cuda", dtype=amp_dtype)
    for x in loader:
        with ctx:
            loss = model(x).mean()
        grad_scaler.scale(loss).backward()
        grad_scaler.step(optimizer)
        grad_scaler.update()
        optimizer.zero_grad()
"""

SCALER_WITH_BF16_ON_THE_CPU = """
import torch


class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cpu")  # PA630

    def fit(self, loader):
        for x in loader:
            self.optimizer.zero_grad()
            with torch.autocast("cpu"):
                loss = self.model(x).mean()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
"""

FP16_WITHOUT = """
import torch

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(x).mean()
    loss.backward()  # PA630
    optimizer.step()
"""

FP16_BY_DEFAULT_WITHOUT = """
import torch


def step(model, x, optimizer):
    with torch.amp.autocast("cuda"):
        loss = model(x).mean()
    optimizer.zero_grad()
    loss.backward()  # PA630
    optimizer.step()


def main(model, loader):
    optimizer = torch.optim.Adam(model.parameters())
    for x in loader:
        step(model, x, optimizer)
"""

FP16_DECORATED_WITHOUT = """
import torch


@torch.autocast(device_type="cuda", dtype=torch.half)
def loss_of(model, x, y):
    return torch.nn.functional.cross_entropy(model(x), y)


def main(model, loader, optimizer):
    for x, y in loader:
        total = loss_of(model, x, y)
        total.backward()  # PA630
        optimizer.step()
        optimizer.zero_grad()
"""

CAST_UNDER_ANOTHER_AUTOCAST = """
import torch


def train(net, loader):
    opt = torch.optim.Adam(net.parameters())
    net.to(torch.float16)  # PA627
    for x, y in loader:
        with torch.autocast("xpu", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
"""

HALF_UNDER_A_BF16_SCALER = """
import torch


net = torch.nn.Linear(4, 2)
net.half()  # PA627
opt = torch.optim.AdamW(net.parameters(), lr=1e-5)
scaler = torch.amp.GradScaler("cuda")  # PA630
for x, y in loader:
    opt.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = torch.nn.functional.mse_loss(net(x), y)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
"""

SCALER_IN_FP32 = """
import torch


def train(model, loader, opt):
    scaler = torch.amp.GradScaler("cuda")  # PA630
    for x, y in loader:
        opt.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
"""

SCRIPTS = {name: text for name, text in dict(globals()).items() if name.isupper() and isinstance(text, str)}
