"""Loops around a GradScaler. Every line marked `# PA…` is found, and no other line of any rule."""

from __future__ import annotations

# -- PA621: update() missing, too early, or too often  --

NO_UPDATE = """
import torch
from torch.amp import GradScaler

scaler = GradScaler("cuda")
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(10):
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)  # PA621
"""

UPDATE_ONCE_AN_EPOCH = """
import torch


def train(model, loader, optimizer, scaler):
    for epoch in range(10):
        for x in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(x).mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)  # PA621
        scaler.update()
"""

NO_UPDATE_IN_A_CLASS = """
import torch


class Engine:
    def __init__(self, model):
        self.model = model
        self.amp_scaler = torch.amp.GradScaler("cuda")
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def batch(self, x):
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = self.model(x).mean()
        self.amp_scaler.scale(loss).backward()
        self.amp_scaler.step(self.optimizer)  # PA621

    def fit(self, loader):
        for x in loader:
            self.batch(x)
"""

UPDATE_FOR_EACH = """
import torch


def train(gen, disc, loader, opt_g, opt_d, scaler):
    for x in loader:
        opt_d.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss_d = disc(x).mean()
        scaler.scale(loss_d).backward()
        scaler.step(opt_d)
        scaler.update()  # PA621
        opt_g.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss_g = disc(gen(x)).mean()
        scaler.scale(loss_g).backward()
        scaler.step(opt_g)
        scaler.update()
"""

UPDATE_TOO_EARLY = """
import torch


def train(enc, dec, loader):
    scaler = torch.amp.GradScaler("cuda")
    first, second = torch.optim.SGD(enc.parameters()), torch.optim.SGD(dec.parameters())
    for x in loader:
        first.zero_grad()
        second.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = dec(enc(x)).mean()
        scaler.scale(loss).backward()
        scaler.step(first)
        scaler.update()  # PA621
        scaler.step(second)
        scaler.update()
"""

UPDATE_TOO_EARLY_UNDER_A_FLAG = """
import torch
from torch import amp


def do_train(cfg, model, center_criterion, loader, optimizer, optimizer_center, loss_fn):
    scaler = amp.GradScaler("cuda")
    for img, vid in loader:
        optimizer.zero_grad()
        optimizer_center.zero_grad()
        with amp.autocast("cuda", enabled=True):
            score, feat = model(img, vid)
            loss = loss_fn(score, feat, vid)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()  # PA621
        if "center" in cfg.losses:
            for param in center_criterion.parameters():
                param.grad.data *= 1.0 / cfg.center_weight
            scaler.step(optimizer_center)
            scaler.update()
"""

# -- PA623: past the scaler, or a scaler without scaling  --

PAST_THE_SCALER = """
import torch

scaler = torch.amp.GradScaler("cuda")
model = torch.nn.Linear(4, 4)
opt = torch.optim.AdamW(model.parameters())
for x in loader:
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(x).mean()
    scaler.scale(loss).backward()
    opt.step()  # PA623
    scaler.update()
    opt.zero_grad()
"""

PAST_IT_UNDER_A_FLAG = """
import torch


def train(model, loader, optimizer, use_amp):
    scaler = torch.amp.GradScaler("cuda", enabled=use_amp)
    for x in loader:
        with torch.autocast("cuda", enabled=use_amp):
            loss = model(x).mean()
        if use_amp:
            scaler.scale(loss).backward()
        else:
            loss.backward()
        optimizer.step()  # PA623
        optimizer.zero_grad()
"""

PAST_IT_IN_A_METHOD = """
import torch


class Trainer:
    def __init__(self, net):
        self.net = net
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cuda")

    def _update(self):
        self.optimizer.step()  # PA623
        self.optimizer.zero_grad()

    def train(self, loader):
        for x in loader:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = self.net(x).mean()
            loss = self.scaler.scale(loss)
            loss.backward()
            self._update()
"""

PAST_IT_AFTER_UNSCALE = """
import torch


def train(model, loader, optimizer, scaler):
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()  # PA623
        scaler.update()
"""

LOSS_NOT_SCALED = """
import torch
import torch.nn.functional as F

scaler = torch.amp.GradScaler("cuda")
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.mse_loss(model(x), y)
    loss.backward()  # PA623
    scaler.step(optimizer)
    scaler.update()
"""

ONE_OF_TWO_NOT_SCALED = """
import torch


def compute(model, x):
    with torch.autocast("cuda", dtype=torch.float16):
        return model(x).mean()


def train(model, loader, optimizer, scaler, accum):
    for i, x in enumerate(loader):
        loss = compute(model, x) / accum
        loss.backward()  # PA623
        if (i + 1) % accum == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
"""

LOSS_NOT_SCALED_IN_A_STEP = """
import torch


class Trainer:
    def __init__(self, net, optimizer):
        self.net, self.optimizer = net, optimizer
        self.scaler = torch.amp.GradScaler("cuda")

    def train_step(self, batch):
        self.optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = self.net(batch).mean()
        loss.backward()  # PA623
        self.scaler.unscale_(self.optimizer)
        self.scaler.step(self.optimizer)
        self.scaler.update()
"""

SCALER_IN_THE_LOOP = """
import torch


def train(model, loader, opt):
    for x, y in loader:
        scaler = torch.amp.GradScaler("cuda")  # PA621
        opt.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
"""

SCRIPTS = {name: text for name, text in dict(globals()).items() if name.isupper() and isinstance(text, str)}
