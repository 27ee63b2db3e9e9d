"""Defective loops around a GradScaler: every line marked `# PA…` is found, and no other line of any rule."""

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

SCRIPTS = {name: text for name, text in dict(globals()).items() if name.isupper() and isinstance(text, str)}
