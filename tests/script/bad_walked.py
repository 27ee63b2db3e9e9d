"""Defects in generators, comprehensions and accumulating loops. Every line marked `# PA…` is found, and no other."""

from __future__ import annotations

NORM_IN_EVERY_BATCH = """
import torch
from torch import nn


def train(net, loader, opt, scaler, accum):
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(net(x), y)
        scaler.scale(loss / accum).backward()
        print(sum(p.grad.norm() for p in net.parameters()))  # PA620
        if (i + 1) % accum == 0:
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
"""

CLIP_IN_EVERY_BATCH = """
import torch
from torch import nn


def train(net, loader, opt, amp_scaler, accum):
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(net(x), y)
        amp_scaler.scale(loss / accum).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # PA620
        if (i + 1) % accum:
            continue
        amp_scaler.step(opt)
        amp_scaler.update()
        opt.zero_grad()
"""

NORM_IN_SOME_BATCHES = """
import torch


def train(net, loader, opt, scaler):
    for i, x in enumerate(loader):
        opt.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = net(x).mean()
        scaler.scale(loss).backward()
        if i % 100 == 0:
            print(net.head.weight.grad.norm())  # PA620
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
"""

NORM_IN_A_HELPER = """
import torch


def size(net):
    return torch.stack([p.grad.norm() for p in net.parameters()]).norm()  # PA620


def train(net, loader, opt, scaler, accum):
    for i, x in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = net(x).mean()
        scaler.scale(loss).backward()
        print(size(net))
        if (i + 1) % accum == 0:
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
"""

CLIP_IN_A_COMPREHENSION = """
import torch
import torch.nn.functional as F

model = torch.nn.Linear(4, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")


def one(x, y):
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])  # PA620
    torch.nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, norm)  # PA620
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


history = [one(x, y) for x, y in make_loader()]
"""

SCALER_IN_A_STEP = """
import torch


class Trainer:
    def __init__(self, net):
        self.net = net
        self.opt = torch.optim.Adam(net.parameters())

    def step(self, x):
        scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)  # PA621
        self.opt.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = self.net(x).mean()
        scaler.scale(loss).backward()
        scaler.step(self.opt)
        scaler.update()

    def fit(self, loader):
        for epoch in range(3):
            for x in loader:
                self.step(x)
"""

GENERATOR_WITHOUT_A_RESET = """
import torch
import torch.nn.functional as F

model = torch.nn.Linear(4, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")


def losses(loader):
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        yield loss


for loss in losses(make_loader()):
    scaler.scale(loss).backward()
    scaler.step(optimizer)  # PA622
    scaler.update()
"""

TRAINING_GENERATOR = """
import torch


def steps(model, loader, optimizer, scaler):
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)  # PA621
        yield loss.item()
"""

CLASSMETHOD_WITHOUT_A_RESET = """
import torch


class Task:
    def __init__(self):
        self.model = torch.nn.Linear(2, 2)
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    @classmethod
    def made(cls):
        return cls()

    @property
    def optimizer(self):
        return self._optimizer

    def __call__(self, x):
        self.model(x).sum().backward()
        self.optimizer.step()  # PA622


task = Task.made()
for x in make_loader():
    task(x)
"""

RESET_IN_EVERY_BATCH = """
import torch


def train(net, loader, opt, scaler):
    for i, x in enumerate(loader):
        opt.zero_grad()  # PA622
        with torch.autocast("cuda", dtype=torch.float16):
            loss = net(x).mean() / 4
        scaler.scale(loss).backward()
        if (i + 1) % 4 == 0:
            scaler.step(opt)
            scaler.update()
"""

ONE_OF_TWO_RESET = """
import torch


def train(gen, disc, loader):
    g_opt, d_opt = torch.optim.Adam(gen.parameters()), torch.optim.Adam(disc.parameters())
    for x in loader:
        d_loss = disc(gen(x).detach()).mean() - disc(x).mean()
        d_loss.backward()
        d_opt.step()  # PA622
        g_opt.zero_grad()
        g_loss = -disc(gen(x)).mean()
        g_loss.backward()
        g_opt.step()
"""

A_LIST_WITHOUT_AN_UPDATE = """
import torch
from torch import nn

models = [nn.Linear(2, 2) for _ in range(3)]
opts = [torch.optim.SGD(m.parameters(), lr=0.1) for m in models]
scaler = torch.amp.GradScaler("cuda")
for x in loader:
    for m, o in zip(models, opts):
        o.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = m(x).float().mean()
        scaler.scale(loss).backward()
        scaler.step(o)  # PA621
"""

SCRIPTS = {name: text for name, text in dict(globals()).items() if name.isupper() and isinstance(text, str)}
