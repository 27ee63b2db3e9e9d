"""Gradients read while they are scaled. Every line marked `# PA…` is found, and no other."""

from __future__ import annotations

# -- PA620: gradients read while they are scaled  --

CLIP_IN_A_HELPER = """
import torch
from torch.nn.utils import clip_grad_norm_ as clip


def update(scaler, loss, model, optimizer):
    scaler.scale(loss).backward()
    clip(model.parameters(), 1.0)  # PA620
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


def main(loader):
    model = torch.nn.Linear(4, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler()
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = torch.nn.functional.mse_loss(model(x), y)
        update(scaler, loss, model, optimizer)


main(make_loader())
"""

CLIP_BEFORE_UNSCALE = """
import torch


class Trainer:
    def __init__(self, model):
        self.model = model
        self.opt = torch.optim.Adam(model.parameters())
        self.scaler = torch.amp.GradScaler("cuda")

    def run(self, loader):
        for i, batch in enumerate(loader):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = self.model(batch) / 4
            self.scaler.scale(loss).backward()
            if (i + 1) % 4 == 0:
                torch.nn.utils.clip_grad_value_(self.model.parameters(), 0.5)  # PA620
                self.scaler.unscale_(self.opt)
                self.scaler.step(self.opt)
                self.scaler.update()
                self.opt.zero_grad()
"""

CLIP_UNDER_A_FLAG = """
import torch


def train(args, model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda") if args.amp else None
    for x, y in loader:
        with torch.amp.autocast("cuda", enabled=args.amp):
            loss = criterion(model(x), y)
        optimizer.zero_grad()
        if scaler:
            scaler.scale(loss).backward()
        else:
            loss.backward()
        if args.max_norm > 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_norm)  # PA620
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
"""

CLIP_OF_THE_OTHER = """
import torch


def train(gen, disc, loader):
    opt_g, opt_d = torch.optim.Adam(gen.parameters()), torch.optim.Adam(disc.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        opt_g.zero_grad()
        opt_d.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = disc(gen(x)).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(opt_d)
        torch.nn.utils.clip_grad_norm_(disc.parameters(), 1.0)
        torch.nn.utils.clip_grad_norm_(gen.parameters(), 1.0)  # PA620
        scaler.step(opt_d)
        scaler.step(opt_g)
        scaler.update()
"""

NORM_LOGGED = """
import torch


def train(model, loader, optimizer, scaler):
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).mean()
        scaled = scaler.scale(loss)
        scaled.backward()
        total = 0.0
        for p in model.parameters():
            if p.grad is not None:
                total += p.grad.data.norm(2).item() ** 2  # PA620
        print(total**0.5)
        scaler.step(optimizer)
        scaler.update()
"""

NORM_BY_COMPREHENSION = """
import torch


def grad_norm(model):
    return torch.stack([torch.norm(p.grad) for p in model.parameters()]).norm()  # PA620


def train(model, loader, optimizer, scaler):
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        print(grad_norm(model))
        scaler.step(optimizer)
        scaler.update()
"""

CLAMPED_IN_PLACE = """
import torch


def train(model, loader, optimizer, scaler):
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        for name, p in model.named_parameters():
            p.grad.clamp_(-1, 1)  # PA620
        scaler.step(optimizer)
        scaler.update()
"""

UNSCALED_TWICE = """
import torch


def train(model, loader, optimizer, scaler):
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.unscale_(optimizer)  # PA620
        scaler.step(optimizer)
        scaler.update()
"""

UNSCALED_TWICE_BY_A_HELPER = """
import torch


def clip(scaler, optimizer, model):
    scaler.unscale_(optimizer)  # PA620
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def train(model, loader, optimizer, scaler):
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip(scaler, optimizer, model)
        scaler.step(optimizer)
        scaler.update()
"""

UNSCALED_IN_EVERY_BATCH = """
import torch


def train(model, loader, optimizer, scaler, accum):
    for i, x in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).mean() / accum
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)  # PA620
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if (i + 1) % accum == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
"""

PENALTY_OF_SCALED = """
import torch


def train(model, loader, optimizer, scaler):
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).mean()
        grads = torch.autograd.grad(scaler.scale(loss), model.parameters(), create_graph=True)  # PA620
        penalty = sum(g.pow(2).sum() for g in grads)
        scaler.scale(loss + penalty).backward()
        scaler.step(optimizer)
        scaler.update()
"""

SCRIPTS = {name: text for name, text in dict(globals()).items() if name.isupper() and isinstance(text, str)}
