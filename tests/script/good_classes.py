"""Agents, teachers, hooks and tied models, all correct: a lint is silent on each."""

from __future__ import annotations

TIED = """
import torch
from torch import nn


class LM(nn.Module):
    def __init__(self, n, d):
        super().__init__()
        self.embed = nn.Embedding(n, d)
        self.head = nn.Linear(d, n, bias=False)
        self.head.weight = self.embed.weight
        self.query_tokens = nn.Parameter(torch.zeros(4, d))

    def init(self, pretrained):
        self.embed.weight = nn.Parameter(pretrained.weight.clone())


student, teacher = LM(8, 4), LM(8, 4)
student.head.weight = nn.Parameter(teacher.head.weight.clone())
for module in student.modules():
    if isinstance(module, nn.Linear):
        module.weight.data = module.weight.data.half()
"""

TARGET_OPTIMIZER = """
import torch


class Learner:
    def __init__(self, net, target):
        self.net, self.target = net, target
        self.optimizer = torch.optim.Adam(net.parameters())
        self.optimizer_target = torch.optim.SGD(target.parameters(), lr=1e-3)
        self.scaler = torch.amp.GradScaler("cuda")

    def _backpropagate(self, batches):
        for batch in batches:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = self.net(batch).mean()
            self.scaler.scale(loss).backward()

    def learn(self, loader):
        for batches in loader:
            self._backpropagate(batches)
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_value_(self.net.parameters(), 1.0)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
            self.pull()
            self.optimizer_target.step()

    def pull(self):
        for p, q in zip(self.target.parameters(), self.net.parameters()):
            p.grad = p.data - q.data
"""

ENABLED_OR_NOT = """
import torch


def backward(loss, scaler):
    if scaler is not None:
        scaler.scale(loss).backward()
    else:
        loss.backward()


def train(task, loader, optimizer, scaler, args):
    autocast = get_autocast(args.precision)
    for batch in loader:
        optimizer.zero_grad()
        for part in batch:
            with autocast():
                losses = task(part)
                loss = sum(losses.values())
            backward(loss, scaler)
        if scaler is not None:
            if scaler.is_enabled():
                scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(task.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        else:
            torch.nn.utils.clip_grad_norm_(task.parameters(), 1.0)
            optimizer.step()
"""

SAC = """
import torch
import torch.nn.functional as F


class Agent:
    def __init__(self, actor, critic):
        self.actor, self.critic = actor, critic
        self.actor_optimizer = torch.optim.Adam(actor.parameters())
        self.critic_optimizer = torch.optim.Adam(critic.parameters())
        self.log_alpha = torch.zeros(1, requires_grad=True)
        self.alpha_optim = torch.optim.Adam([self.log_alpha])

    def update(self, buffer, steps):
        for step in range(steps):
            state, action, target = buffer.sample()
            critic_loss = F.mse_loss(self.critic(state, action), target)
            self.critic_optimizer.zero_grad()
            critic_loss.backward()
            self.critic_optimizer.step()
            new_action, log_prob = self.actor.sample(state)
            actor_loss = (self.log_alpha.exp() * log_prob - self.critic(state, new_action)).mean()
            self.actor_optimizer.zero_grad()
            actor_loss.backward()
            self.actor_optimizer.step()
            alpha_loss = -(self.log_alpha * log_prob.detach()).mean()
            self.alpha_optim.zero_grad()
            alpha_loss.backward()
            self.alpha_optim.step()
            if step % 2 == 0:
                soft_update(self.target, self.critic, 0.005)
"""

DISTILLATION = """
import torch
import torch.nn.functional as F

teacher = Net().cuda().half().eval()
student = Net().cuda()
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
torch.zeros(1).to("cuda")  # wakes the device up
for x, y in loader:
    with torch.no_grad():
        target = teacher(x.half()).float()
    with torch.autocast("cuda", dtype=torch.float16):
        output = student(x)
        loss = F.kl_div(F.log_softmax(output, -1), target.softmax(-1)) + F.cross_entropy(output, y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""

HOOKS = """
import torch


class Trainer(Base):
    def __init__(self, net):
        self.net = net
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cuda")
        self.register(self)

    def fit(self, loader):
        for batch in loader:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = self.net(batch).mean()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.notify("batch_end")

    def on_batch_end(self):
        self.scaler.update()
        self.optimizer.zero_grad()
"""

LOOPS = {name: text for name, text in dict(globals()).items() if name.isupper() and isinstance(text, str)}
