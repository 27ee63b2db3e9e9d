"""Beside each defect of `bad_walked` the correct script that looks most like it: a lint is silent on each."""

from __future__ import annotations

STEPS_FROM_A_GENERATOR = """
import torch
import torch.nn.functional as F

model = torch.nn.Linear(4, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")


def losses(loader):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        yield loss


def numbered(loader):
    yield from losses(loader)


for step, loss in enumerate(numbered(make_loader())):
    scaler.scale(loss).backward()
    scaler.step(optimizer)
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
        scaler.step(optimizer)
        scaler.update()
        yield loss.item()
"""

ONE_UPDATE_FOR_A_LIST = """
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
        scaler.unscale_(o)
        nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        scaler.step(o)
    scaler.update()
"""

COMPREHENDED = """
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
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    torch.nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


history = [one(x, y) for x, y in make_loader()]
"""

MADE_AS_A_CLASSMETHOD_SAYS = """
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
        self.optimizer.zero_grad()
        self.model(x).sum().backward()
        self.optimizer.step()


task = Task.made()
for x in make_loader():
    task(x)
"""

SCALER_MADE_ONCE = """
import torch


def train(build, folds):
    scaler = None
    for fold in folds:
        model = build()
        opt = torch.optim.Adam(model.parameters())
        for x in fold:
            if scaler is None:
                scaler = torch.amp.GradScaler("cuda")
            opt.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(x).mean()
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()


def compare(builds, x):
    for build in builds:
        model = build()
        opt = torch.optim.Adam(model.parameters())
        scaler = torch.amp.GradScaler("cuda")
        opt.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
"""

CHANGED_IN_PLACE = """
import torch


def decay(model, x, scale, device):
    with torch.no_grad():
        for p in model.parameters():
            p.detach().mul_(0.9)
            p.data.mul_(0.999)
            p.data = p.data.float().mul_(0.999).to(p.dtype)
            p.grad.data.to(device).mul_(scale)
    model.half().requires_grad_(False)
    y = x.to(torch.float32).clamp_(0, 1)
    x.float().requires_grad_().register_hook(print)
    return y, x.clone().zero_()
"""

SCALER_WITHOUT_AUTOCAST_HERE = """
import torch
from project.contexts import lowered


def train(model, loader, opt):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        opt.zero_grad()
        with lowered():
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
"""

SCALER_SWITCHED_OFF = """
import torch


def train(model, loader, opt):
    scaler = torch.amp.GradScaler("cuda", enabled=False)
    for x in loader:
        opt.zero_grad()
        scaler.scale(model(x).mean()).backward()
        scaler.step(opt)
        scaler.update()
"""

RESET_IN_EVERY_BATCH_RIGHTLY = """
import torch


def train(model, loader, opt):
    for x in loader:
        opt.zero_grad()
        loss = model(x).mean()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if torch.isfinite(norm):
            opt.step()


def adversarial(gen, disc, loader, every):
    g_opt = torch.optim.Adam(gen.parameters())
    d_opt = torch.optim.Adam(disc.parameters())
    for i, x in enumerate(loader):
        g_opt.zero_grad()
        d_opt.zero_grad()
        (disc(gen(x).detach()).mean() - disc(x).mean()).backward()
        d_opt.step()
        if i % every == 0:
            g_opt.zero_grad()
            (-disc(gen(x)).mean()).backward()
            g_opt.step()


def accumulate(model, loader, opt, every):
    for i, x in enumerate(loader):
        if i % every == 0:
            opt.zero_grad()
        (model(x).mean() / every).backward()
        if (i + 1) % every == 0:
            opt.step()
"""

LOW_OUTPUT_LIFTED = """
import torch
import torch.nn.functional as F


def train(model, loader, optimizer, scaler):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            out = model(x)
        loss = F.mse_loss(out.float(), y.half())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""

TIE_KEPT = """
import torch
from torch import nn


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.body = nn.Linear(4, 4)
        self.head.weight = self.embed.weight


lm = LM()
lm.head.weight.data = lm.head.weight.data.half()
lm.body.weight = nn.Parameter(lm.body.weight.half())
"""

RESET_BY_THE_WHOLE = """
import torch


def train(net, loader):
    body, head = torch.optim.Adam(net.body.parameters()), torch.optim.Adam(net.head.parameters())
    for x in loader:
        net.zero_grad()
        net(x).mean().backward()
        body.step()
        head.step()


def lists(nets, loader):
    opts = [torch.optim.Adam(net.parameters()) for net in nets]
    for x in loader:
        for opt in opts:
            opt.zero_grad()
        sum(net(x).mean() for net in nets).backward()
        for opt in opts:
            opt.step()
"""

LOOPS = {name: text for name, text in dict(globals()).items() if name.isupper() and isinstance(text, str)}
