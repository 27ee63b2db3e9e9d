"""Flags, decorators and handlers, all correct: a lint is silent on each."""

from __future__ import annotations

SWITCHED_BY_FLAGS = """
import torch


def main(args):
    model = Net().cuda()
    optimizer = torch.optim.Adam(model.parameters())
    if args.use_amp:
        scaler = torch.amp.GradScaler("cuda")
    for epoch in range(args.epochs):
        for x, y in loader:
            optimizer.zero_grad()
            if args.use_amp:
                with torch.amp.autocast("cuda", dtype=torch.float16):
                    loss = criterion(model(x), y)
            else:
                loss = criterion(model(x), y)
            if args.use_amp:
                scaler.scale(loss).backward()
            else:
                loss.backward()
            if args.clip:
                if args.use_amp:
                    scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            if args.use_amp:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
"""

TWO_FLAGS = """
import torch


def step(model, batch, optimizer, scaler, use_amp):
    with torch.amp.autocast("cuda", enabled=use_amp):
        loss = model(batch)
    if use_amp:
        scaler.scale(loss).backward()
    else:
        loss.backward()
    if scaler is not None:
        scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()
    optimizer.zero_grad()
"""

DECORATED = """
import torch


@torch.autocast("cuda", dtype=torch.bfloat16)
def compute_loss(model, x, y):
    return torch.nn.functional.cross_entropy(model(x), y)


def train(model, loader):
    optimizer = torch.optim.AdamW(model.parameters())
    for x, y in loader:
        loss = compute_loss(model, x, y)
        loss.backward()
        optimizer.step()
        for p in model.parameters():
            p.grad = None
"""

OWN_AUTOCAST = """
import torch
import torch.nn.functional as F


class Net(torch.nn.Module):
    @torch.autocast("cuda", dtype=torch.float16)
    def forward(self, x):
        return self.body(x)


def train(loader):
    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        output = model(x)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(output, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""

OPTIMIZERS_IN_A_DICT = """
import torch


class Engine:
    def __init__(self, nets, scaler):
        self.nets = nets
        self.optims = {"enc": torch.optim.Adam(nets["enc"].parameters()),
                       "dec": torch.optim.Adam(nets["dec"].parameters())}
        self.scaler = scaler

    def train_batch(self, x):
        for o in self.optims.values():
            o.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = self.nets["dec"](self.nets["enc"](x)).mean()
        self.scaler.scale(loss).backward()
        for o in self.optims.values():
            self.scaler.unscale_(o)
        for net in self.nets.values():
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        for o in self.optims.values():
            self.scaler.step(o)
        self.scaler.update()
"""

CUSTOM_FUNCTION = """
import torch
from torch.amp import custom_bwd, custom_fwd


class Linear(torch.autograd.Function):
    @staticmethod
    @custom_fwd(device_type="cuda")
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x.mm(w.t())

    @staticmethod
    @custom_bwd(device_type="cuda")
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g.mm(w), g.t().mm(x)


with torch.autocast("cuda"):
    y = Linear.apply(a, b)
"""

EVALUATION_IN_HALF = """
import torch
import torchvision

model = torchvision.models.resnet50().cuda().half().eval()
with torch.no_grad():
    for x, y in loader:
        correct = (model(x.half()).argmax(1) == y).sum()
"""

LOOPS = {name: text for name, text in dict(globals()).items() if name.isupper() and isinstance(text, str)}
