"""Losses in a low format. Every line marked `# PA…` is found, and no other."""

from __future__ import annotations

# -- PA625: losses  --

LOSS_OF_A_HALF_MODEL = """
import torch
from torch import nn

model = nn.Linear(4, 4).half()  # PA627
loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    loss = loss_fn(model(x.half()), y)  # PA625
    loss.backward()
    optimizer.step()
"""

LOSS_OF_A_BF16_MODEL = """
import torch
import torch.nn.functional as F


def train(model, loader):
    model = model.to(dtype=torch.bfloat16)  # PA627
    optimizer = torch.optim.AdamW(model.parameters())
    for x, y in loader:
        optimizer.zero_grad()
        logits = model(x).logits
        loss = F.cross_entropy(logits.view(-1, 10), y)  # PA625
        loss.backward()
        optimizer.step()
"""

OUTPUT_CAST = """
import torch
import torch.nn.functional as F


def train(model, loader, optimizer):
    for x, y in loader:
        optimizer.zero_grad()
        output = model(x).half()
        loss = F.mse_loss(output, y)  # PA625
        loss.backward()
        optimizer.step()
"""

OUTPUT_CAST_WITH_AUTOCAST_OFF = """
import torch
import torch.nn.functional as F


def train(model, loader, optimizer):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            output = model(x)
            with torch.autocast("cuda", enabled=False):
                loss = F.mse_loss(output.half(), y)  # PA625
        loss.backward()
        optimizer.step()
"""

BCE_UNDER_AUTOCAST = """
import torch
import torch.nn as nn

criterion = nn.BCELoss()
model = Net().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = criterion(torch.sigmoid(model(x)), y)  # PA625
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""

FUNCTIONAL_BCE = """
import torch
import torch.nn.functional as F


def loss_of(model, x, y):
    with torch.amp.autocast("cuda", dtype=torch.bfloat16):
        p = model(x).sigmoid()
        return F.binary_cross_entropy(p.float(), y)  # PA625
"""

BCE_IN_A_CLASS = """
import torch


class Trainer:
    def __init__(self, net, opt):
        self.net, self.opt = net, opt
        self.bce = torch.nn.BCELoss(reduction="sum")

    def fit(self, loader):
        for x, y in loader:
            self.opt.zero_grad()
            with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
                loss = self.bce(self.net(x), y)  # PA625
            loss.backward()
            self.opt.step()
"""

SCRIPTS = {name: text for name, text in dict(globals()).items() if name.isupper() and isinstance(text, str)}
