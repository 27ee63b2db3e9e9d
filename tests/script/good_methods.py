"""Methods that train with several losses, networks or passes, all correct: a lint is silent on each."""

from __future__ import annotations

ACTOR_AND_CRITIC = """
import torch
import torch.nn.functional as F


class Agent:
    def __init__(self, actor, critic, device="cuda"):
        self.actor, self.critic = actor.to(device), critic.to(device)
        self.actor_opt = torch.optim.Adam(self.actor.parameters(), lr=3e-4)
        self.critic_opt = torch.optim.Adam(self.critic.parameters(), lr=1e-3)
        self.scaler = torch.amp.GradScaler("cuda")

    def update(self, rollouts, epochs=4):
        for _ in range(epochs):
            for obs, action, old_logp, advantage, returns in rollouts:
                with torch.autocast("cuda", dtype=torch.float16):
                    dist = torch.distributions.Normal(*self.actor(obs))
                    ratio = (dist.log_prob(action).float() - old_logp).exp()
                    policy_loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
                    value_loss = F.smooth_l1_loss(self.critic(obs).squeeze(-1).float(), returns)
                    loss = policy_loss + 0.5 * value_loss - 0.01 * dist.entropy().mean()
                self.actor_opt.zero_grad(set_to_none=True)
                self.critic_opt.zero_grad(set_to_none=True)
                self.scaler.scale(loss).backward()
                for opt, net in ((self.actor_opt, self.actor), (self.critic_opt, self.critic)):
                    self.scaler.unscale_(opt)
                    torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
                    self.scaler.step(opt)
                self.scaler.update()
"""

R1_UNDER_A_SCALER = """
import torch
import torch.nn.functional as F


def train(gen, disc, loader, z_dim, every=16, gamma=10.0):
    g_opt = torch.optim.Adam(gen.parameters(), lr=2e-3, betas=(0.0, 0.99))
    d_opt = torch.optim.Adam(disc.parameters(), lr=2e-3, betas=(0.0, 0.99))
    g_scaler, d_scaler = torch.amp.GradScaler("cuda"), torch.amp.GradScaler("cuda")
    for step, real in enumerate(loader):
        z = torch.randn(real.shape[0], z_dim, device="cuda")
        d_opt.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            fake = gen(z).detach()
            d_loss = F.softplus(disc(fake)).mean() + F.softplus(-disc(real)).mean()
        d_scaler.scale(d_loss).backward()
        if step % every == 0:
            real.requires_grad_(True)
            with torch.autocast("cuda", enabled=False):
                scores = disc(real.float())
                scaled = torch.autograd.grad(d_scaler.scale(scores.sum()), real, create_graph=True)[0]
                grads = scaled / d_scaler.get_scale()
                penalty = gamma / 2 * every * grads.square().sum([1, 2, 3]).mean()
            d_scaler.scale(penalty).backward()
        d_scaler.step(d_opt)
        d_scaler.update()

        g_opt.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            g_loss = F.softplus(-disc(gen(z))).mean()
        g_scaler.scale(g_loss).backward()
        g_scaler.step(g_opt)
        g_scaler.update()
"""

MIXUP = """
import numpy as np
import torch
from torch import nn


def mix(x, y, alpha):
    lam = np.random.beta(alpha, alpha)
    index = torch.randperm(x.size(0), device=x.device)
    return lam * x + (1 - lam) * x[index], y, y[index], lam


def train_epoch(model, loader, optimizer, scaler, alpha=0.4):
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    seen = 0
    for x, y in loader:
        x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
        mixed, first, second, lam = mix(x, y, alpha)
        optimizer.zero_grad(set_to_none=True)
        with torch.amp.autocast("cuda", dtype=torch.float16):
            out = model(mixed)
            loss = lam * criterion(out, first) + (1 - lam) * criterion(out, second)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        seen += (out.argmax(1) == y).sum().item()
    return seen
"""

TAUGHT = """
import torch
import torch.nn.functional as F


def distil(teacher, student, loader, temperature=4.0, alpha=0.9):
    teacher = teacher.half().cuda().eval().requires_grad_(False)
    student = student.cuda()
    opt = torch.optim.AdamW(student.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        with torch.no_grad():
            soft = F.softmax(teacher(x.half()).float() / temperature, dim=-1)
        with torch.autocast("cuda", dtype=torch.float16):
            logits = student(x)
        logits = logits.float()
        kd = F.kl_div(F.log_softmax(logits / temperature, dim=-1), soft, reduction="batchmean") * temperature**2
        loss = alpha * kd + (1 - alpha) * F.cross_entropy(logits, y)
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
"""

MOMENTUM_ENCODER = """
import copy

import torch
import torch.nn.functional as F


class MoCo(torch.nn.Module):
    def __init__(self, encoder, size=4096, dim=128, momentum=0.999):
        super().__init__()
        self.query, self.key, self.momentum = encoder, copy.deepcopy(encoder), momentum
        for p in self.key.parameters():
            p.requires_grad = False
        self.register_buffer("queue", F.normalize(torch.randn(dim, size), dim=0))

    @torch.no_grad()
    def follow(self):
        for q, k in zip(self.query.parameters(), self.key.parameters()):
            k.data.mul_(self.momentum).add_(q.data, alpha=1 - self.momentum)

    def forward(self, one, other):
        q = F.normalize(self.query(one), dim=1)
        with torch.no_grad():
            self.follow()
            k = F.normalize(self.key(other), dim=1)
        positive = torch.einsum("nc,nc->n", q, k).unsqueeze(-1)
        negative = torch.einsum("nc,ck->nk", q, self.queue.clone().detach())
        return torch.cat([positive, negative], dim=1) / 0.07


moco = MoCo(resnet()).cuda()
optimizer = torch.optim.SGD(moco.query.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)
scaler = torch.amp.GradScaler("cuda")
for one, other in loader:
    with torch.autocast("cuda", dtype=torch.float16):
        logits = moco(one, other)
        loss = F.cross_entropy(logits, torch.zeros(len(one), dtype=torch.long, device="cuda"))
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""

TRUNCATED = """
import torch
from torch import nn


def detached(hidden):
    return hidden.detach() if isinstance(hidden, torch.Tensor) else tuple(detached(h) for h in hidden)


def train(net, tokens, optimizer, bptt=35, clip=0.25):
    net.train()
    criterion = nn.CrossEntropyLoss()
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**12)
    hidden = net.init_hidden(tokens.size(1))
    for start in range(0, tokens.size(0) - 1, bptt):
        x, y = tokens[start : start + bptt], tokens[start + 1 : start + 1 + bptt].view(-1)
        hidden = detached(hidden)
        net.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            output, hidden = net(x, hidden)
            loss = criterion(output.view(-1, net.words), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
"""

UPDATE_FUNCTION = """
import torch
from ignite.engine import Engine, Events


def create(model, optimizer, loss_fn, device, accumulate=2):
    scaler = torch.amp.GradScaler("cuda")

    def update(engine, batch):
        if (engine.state.iteration - 1) % accumulate == 0:
            optimizer.zero_grad()
        model.train()
        x, y = batch
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x.to(device)), y.to(device)) / accumulate
        scaler.scale(loss).backward()
        if engine.state.iteration % accumulate == 0:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        return loss.item()

    trainer = Engine(update)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda engine: print(engine.state.output))
    return trainer
"""

CURRICULUM = """
import torch


def train(model, loader, criterion, optimizer, epochs):
    scaler = torch.amp.GradScaler("cuda")
    for epoch in range(epochs):
        hardest = min(1.0, 0.2 + epoch / epochs)
        for x, y, difficulty in loader:
            keep = difficulty <= hardest
            if not keep.any():
                continue
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", dtype=torch.float16):
                loss = criterion(model(x[keep]), y[keep])
            if not torch.isfinite(loss):
                continue
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
"""

LOOPS = {name: text for name, text in dict(globals()).items() if name.isupper() and isinstance(text, str)}
