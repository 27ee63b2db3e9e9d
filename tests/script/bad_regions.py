"""Gradients and autocast regions. Every line marked `# PA…` is found, and no other."""

from __future__ import annotations

# -- PA622: gradients never reset, or too soon  --

NEVER_RESET = """
import torch

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    optimizer.zero_grad()
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()  # PA622
"""

NEVER_RESET_WITH_A_SCALER = """
import torch


def train(model, loader, optimizer, scaler):
    for i, x in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        if i % 4 == 3:
            scaler.step(optimizer)  # PA622
            scaler.update()
"""

NEVER_RESET_IN_A_CLASS = """
import torch


class Trainer:
    def __init__(self, net):
        self.net = net
        self.opt = torch.optim.Adam(net.parameters())

    def step(self, x):
        loss = self.net(x).mean()
        loss.backward()
        self.opt.step()  # PA622

    def fit(self, loader):
        for x in loader:
            self.step(x)
"""

NEVER_RESET_BY_AN_OWN_OPTIMIZER = """
import torch


class Signs(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad.sign(), alpha=group["lr"])


def train(net, loader):
    signs = Signs(net.parameters(), 1e-4)
    for x in loader:
        net(x).mean().backward()
        signs.step()  # PA622
"""

RESET_TOO_SOON = """
import torch

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.zero_grad()  # PA622
    optimizer.step()
"""

RESET_TOO_SOON_BY_THE_MODEL = """
import torch


def train(net, loader):
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for x in loader:
        loss = net(x).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        net.zero_grad(set_to_none=True)  # PA622
        opt.step()
"""

RESET_TOO_SOON_WHEN_ACCUMULATED = """
import torch


def train(model, loader, optimizer, scaler, accum):
    for i, x in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).mean() / accum
        scaler.scale(loss).backward()
        if (i + 1) % accum == 0:
            optimizer.zero_grad()  # PA622
            scaler.step(optimizer)
            scaler.update()
"""

# -- PA624: autocast around the wrong lines  --

BACKWARD_INSIDE = """
import torch


def train(model, loader, optimizer):
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(x).mean()
            loss.backward()  # PA624
        optimizer.step()
"""

ALL_INSIDE = """
import torch


def train(model, loader, optimizer, scaler):
    with torch.amp.autocast("cuda", dtype=torch.float16):
        for x in loader:
            optimizer.zero_grad()
            loss = model(x).mean()
            scaler.scale(loss).backward()  # PA624
            scaler.step(optimizer)
            scaler.update()
"""

DECORATED_STEP = """
import torch


class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch.autocast("cuda", dtype=torch.bfloat16)
    def step(self, x):
        loss = self.model(x).mean()
        self.optimizer.zero_grad()
        loss.backward()  # PA624
        self.optimizer.step()

    def fit(self, loader):
        for x in loader:
            self.step(x)
"""

LOSS_ALONE_INSIDE = """
import torch
from torch import nn

model = nn.Linear(4, 4).cuda()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    logits = model(x)  # PA624
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = criterion(logits, y)
    loss.backward()
    optimizer.step()
"""

LOSS_ALONE_IN_A_HELPER = """
import torch
import torch.nn.functional as F


def loss_of(output, y):
    with torch.autocast("cuda", dtype=torch.float16):
        return F.cross_entropy(output, y)


def train(model, loader, optimizer, scaler):
    for x, y in loader:
        optimizer.zero_grad()
        output = model(x)  # PA624
        scaler.scale(loss_of(output, y)).backward()
        scaler.step(optimizer)
        scaler.update()
"""

FORWARD_UNDER_NO_SYNC_ONLY = """
import torch
import torch.nn.functional as F


def train(net, loader, optimizer):
    ctx = torch.autocast("cuda", dtype=torch.bfloat16)
    for x, y in loader:
        with torch.enable_grad():
            out = net(x)["logits"]  # PA624
        with ctx:
            loss = F.cross_entropy(out.view(-1, 10), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""

ANOTHER_DEVICE = """
import torch

model = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in loader:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):  # PA624
        loss = model(x).mean()
    loss.backward()
    optimizer.step()
"""

ANOTHER_DEVICE_BY_TO = """
import torch

device = torch.device("cuda:0")
model = torch.nn.Linear(4, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
cast = torch.autocast(device_type="cpu")  # PA624
for x in loader:
    optimizer.zero_grad()
    with cast:
        loss = model(x).mean()
    loss.backward()
    optimizer.step()
"""

ANOTHER_DEVICE_ON_THE_CPU = """
import torch


def main(loader):
    model = torch.nn.Linear(4, 4).to("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in loader:
        optimizer.zero_grad()
        with torch.amp.autocast("cuda", dtype=torch.bfloat16):  # PA624
            loss = model(x).mean()
        loss.backward()
        optimizer.step()
"""

SCRIPTS = {name: text for name, text in dict(globals()).items() if name.isupper() and isinstance(text, str)}
