"""The recipes of public training scripts with one mistake each. Every line marked `# PA…` is found, and no other."""

from __future__ import annotations

DDP_UNSCALED_BEFORE_THE_TEST = """
import contextlib

import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def train(rank, net, loader, loss_fn, every=8):
    ddp = DDP(net.to(rank), device_ids=[rank])
    opt = torch.optim.AdamW(ddp.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        last = (i + 1) % every == 0
        with contextlib.nullcontext() if last else ddp.no_sync():
            with torch.autocast("cuda", dtype=torch.float16):
                loss = loss_fn(ddp(x), y) / every
            scaler.scale(loss).backward()
        scaler.unscale_(opt)  # PA620
        torch.nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
        if not last:
            continue
        scaler.step(opt)
        scaler.update()
        opt.zero_grad(set_to_none=True)
"""

R1_OF_SCALED_GRADIENTS = """
import torch
import torch.nn.functional as F


def train(gen, disc, loader, d_opt, z_dim, gamma=10.0):
    d_scaler = torch.amp.GradScaler("cuda")
    for real in loader:
        d_opt.zero_grad(set_to_none=True)
        real.requires_grad_(True)
        with torch.autocast("cuda", dtype=torch.float16):
            scores = disc(real)
            d_loss = F.softplus(-scores).mean()
        grads = torch.autograd.grad(d_scaler.scale(scores.sum()), real, create_graph=True)[0]  # PA620
        d_scaler.scale(d_loss + gamma / 2 * grads.square().sum([1, 2, 3]).mean()).backward()
        d_scaler.step(d_opt)
        d_scaler.update()
"""

CRITIC_PAST_THE_SCALER = """
import torch
import torch.nn.functional as F


class Agent:
    def __init__(self, actor, critic):
        self.actor, self.critic = actor.to("cuda"), critic.to("cuda")
        self.actor_opt = torch.optim.Adam(self.actor.parameters(), lr=3e-4)
        self.critic_opt = torch.optim.Adam(self.critic.parameters(), lr=1e-3)
        self.scaler = torch.amp.GradScaler("cuda")

    def update(self, rollouts):
        for obs, action, returns in rollouts:
            with torch.autocast("cuda", dtype=torch.float16):
                policy_loss = F.mse_loss(self.actor(obs), action)
                value_loss = F.smooth_l1_loss(self.critic(obs).squeeze(-1), returns)
            self.actor_opt.zero_grad()
            self.critic_opt.zero_grad()
            self.scaler.scale(policy_loss + value_loss).backward()
            self.scaler.step(self.actor_opt)
            self.critic_opt.step()  # PA623
            self.scaler.update()
"""

TRUNCATED_AND_CLIPPED = """
import torch
from torch import nn


def train(net, tokens, optimizer, bptt=35, clip=0.25):
    criterion = nn.CrossEntropyLoss()
    grad_scaler = torch.amp.GradScaler("cuda")
    hidden = net.init_hidden(tokens.size(1))
    for start in range(0, tokens.size(0) - 1, bptt):
        x, y = tokens[start : start + bptt], tokens[start + 1 : start + 1 + bptt].view(-1)
        hidden = tuple(h.detach() for h in hidden)
        net.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            output, hidden = net(x, hidden)
            loss = criterion(output.view(-1, net.words), y)
        grad_scaler.scale(loss).backward()
        nn.utils.clip_grad_norm_(net.parameters(), clip)  # PA620
        grad_scaler.step(optimizer)
        grad_scaler.update()
"""

STUDENT_IN_HALF = """
import torch
import torch.nn.functional as F


def distil(teacher, student, loader, temperature=4.0):
    teacher = teacher.half().cuda().eval()
    student = student.half().cuda()  # PA627
    opt = torch.optim.AdamW(student.parameters(), lr=1e-3)
    for x, y in loader:
        with torch.no_grad():
            soft = F.softmax(teacher(x.half()).float() / temperature, dim=-1)
        logits = student(x.half()).float()
        loss = F.kl_div(F.log_softmax(logits / temperature, dim=-1), soft, reduction="batchmean")
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
"""

UPDATE_FUNCTION_CLIPS = """
import torch
from ignite.engine import Engine


def create(model, optimizer, loss_fn, device):
    scaler = torch.amp.GradScaler("cuda")

    def update(engine, batch):
        optimizer.zero_grad()
        x, y = batch
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x.to(device)), y.to(device))
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # PA620
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return Engine(update)
"""

MOMENTUM_OF_A_COPY = """
import copy

import torch


class MoCo(torch.nn.Module):
    def __init__(self, encoder, momentum=0.999):
        super().__init__()
        self.query, self.key, self.momentum = encoder, copy.deepcopy(encoder), momentum

    @torch.no_grad()
    def follow(self):
        for q, k in zip(self.query.parameters(), self.key.parameters()):
            k.data.float().mul_(self.momentum).add_(q.data, alpha=1 - self.momentum)  # PA626
"""

MIXED_OUTSIDE = """
import torch
from torch import nn


def train_epoch(model, loader, optimizer, scaler):
    criterion = nn.CrossEntropyLoss()
    for x, y in loader:
        lam = torch.rand(()).item()
        index = torch.randperm(x.size(0))
        optimizer.zero_grad(set_to_none=True)
        out = model(lam * x + (1 - lam) * x[index])  # PA624
        with torch.amp.autocast("cuda", dtype=torch.float16):
            loss = lam * criterion(out, y) + (1 - lam) * criterion(out, y[index])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""

CURRICULUM_RESET_LATE = """
import torch


def train(model, loader, criterion, opt):
    scaler = torch.amp.GradScaler("cuda")
    for x, y, difficulty in loader:
        if difficulty > 0.5:
            continue
        with torch.autocast("cuda", dtype=torch.float16):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        opt.zero_grad(set_to_none=True)  # PA622
        scaler.step(opt)
        scaler.update()
"""

AVERAGED_IN_BF16 = """
import torch
from torch.optim.swa_utils import AveragedModel


def run(model, loader, loss_fn):
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    ema_model = AveragedModel(model)
    scaler = torch.amp.GradScaler("cuda")  # PA630
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            batch_loss = loss_fn(model(x), y)
        scaler.scale(batch_loss).backward()
        scaler.step(opt)
        scaler.update()
        ema_model.update_parameters(model)
"""

CHECKPOINTED_BACKWARD_INSIDE = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

stem, body = nn.Linear(8, 8).cuda(), nn.Linear(8, 2).cuda()
optimizer = torch.optim.AdamW([*stem.parameters(), *body.parameters()], lr=1e-3)
for x, y in loader:
    optimizer.zero_grad(set_to_none=True)
    with torch.amp.autocast("cuda", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(body(checkpoint(stem, x, use_reentrant=False)), y)
        loss.backward()  # PA624
    optimizer.step()
"""

FP16_UNSCALED = """
import torch


class Loop:
    def __init__(self, net):
        self.net = net
        self.opt = torch.optim.Adam(net.parameters())

    def fit(self, loader):
        for x in loader:
            self.opt.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = self.net(x).mean()
            loss.backward()  # PA630
            self.opt.step()
"""

SCRIPTS = {name: text for name, text in dict(globals()).items() if name.isupper() and isinstance(text, str)}
