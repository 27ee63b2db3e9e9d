"""Training loops of other kinds, all correct: closures, penalties, policies, hand-made scaling. A lint is silent."""

from __future__ import annotations

LBFGS = """
import torch
from torch import nn, optim

seq = Sequence().double()
criterion = nn.MSELoss()
optimizer = optim.LBFGS(seq.parameters(), lr=0.8)
for i in range(opt.steps):

    def closure():
        optimizer.zero_grad()
        out = seq(input)
        loss = criterion(out, target)
        loss.backward()
        return loss

    optimizer.step(closure)
"""

PENALTY = """
import torch
import torch.nn.functional as F


def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast(device_type="cuda", dtype=torch.float16):
            output = model(x)
            loss = F.cross_entropy(output, y)
        scaled_grads = torch.autograd.grad(
            outputs=scaler.scale(loss), inputs=model.parameters(), create_graph=True
        )
        inv_scale = 1.0 / scaler.get_scale()
        grads = [p * inv_scale for p in scaled_grads]
        with torch.autocast(device_type="cuda", dtype=torch.float16):
            grad_norm = 0
            for grad in grads:
                grad_norm += grad.pow(2).sum()
            loss = loss + grad_norm.sqrt()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""

WGAN_GP = """
import torch
from torch import autograd


def gradient_penalty(critic, real, fake):
    alpha = torch.rand(real.size(0), 1, 1, 1, device=real.device)
    mixed = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    scores = critic(mixed)
    gradients = autograd.grad(outputs=scores, inputs=mixed, grad_outputs=torch.ones_like(scores),
                              create_graph=True, retain_graph=True)[0]
    return ((gradients.view(gradients.size(0), -1).norm(2, dim=1) - 1) ** 2).mean()


def train(critic, gen, loader, opt_critic, opt_gen):
    for real in loader:
        fake = gen(torch.randn(real.size(0), 100))
        loss_c = critic(fake.detach()).mean() - critic(real).mean() + 10 * gradient_penalty(critic, real, fake)
        critic.zero_grad()
        loss_c.backward(retain_graph=True)
        opt_critic.step()
        loss_g = -critic(fake).mean()
        gen.zero_grad()
        loss_g.backward()
        opt_gen.step()
"""

TWO_LOSSES = """
import torch

scaler = torch.amp.GradScaler("cuda")
for epoch in epochs:
    for input, target in data:
        optimizer0.zero_grad()
        optimizer1.zero_grad()
        with torch.autocast(device_type="cuda", dtype=torch.float16):
            output0 = model0(input)
            output1 = model1(input)
            loss0 = loss_fn(2 * output0 + 3 * output1, target)
            loss1 = loss_fn(3 * output0 - 5 * output1, target)
        scaler.scale(loss0).backward(retain_graph=True)
        scaler.scale(loss1).backward()
        scaler.unscale_(optimizer0)
        scaler.step(optimizer0)
        scaler.step(optimizer1)
        scaler.update()
"""

PPO = """
import torch
import torch.nn as nn
import torch.optim as optim

agent = Agent(envs).to(device)
optimizer = optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
for iteration in range(1, args.num_iterations + 1):
    for step in range(0, args.num_steps):
        with torch.no_grad():
            action, logprob, _, value = agent.get_action_and_value(next_obs)
    for epoch in range(args.update_epochs):
        for start in range(0, args.batch_size, args.minibatch_size):
            _, newlogprob, entropy, newvalue = agent.get_action_and_value(b_obs[start:], b_actions[start:])
            ratio = (newlogprob - b_logprobs[start:]).exp()
            pg_loss = -(b_advantages[start:] * ratio).mean()
            loss = pg_loss - args.ent_coef * entropy.mean() + args.vf_coef * newvalue.mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
            optimizer.step()
        if args.target_kl is not None and approx_kl > args.target_kl:
            break
"""

DQN_TARGET = """
import torch
import torch.nn.functional as F

q_network = QNetwork(envs).to(device)
optimizer = torch.optim.Adam(q_network.parameters(), lr=1e-4)
target_network = QNetwork(envs).to(device)
target_network.load_state_dict(q_network.state_dict())
for global_step in range(total_timesteps):
    if global_step > learning_starts:
        if global_step % train_frequency == 0:
            with torch.no_grad():
                target_max, _ = target_network(next_obs).max(dim=1)
            old_val = q_network(obs).gather(1, actions).squeeze()
            loss = F.mse_loss(rewards + gamma * target_max, old_val)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if global_step % target_network_frequency == 0:
            for target_param, param in zip(target_network.parameters(), q_network.parameters()):
                target_param.data.copy_(tau * param.data + (1.0 - tau) * target_param.data)
"""

SKIPS_BAD_BATCHES = """
import torch


def train(model, loader, optimizer, scaler, clip):
    for x, y in loader:
        optimizer.zero_grad()
        try:
            with torch.amp.autocast("cuda", dtype=torch.float16):
                loss = model(x, y)
        except torch.cuda.OutOfMemoryError:
            optimizer.zero_grad(set_to_none=True)
            continue
        if not torch.isfinite(loss):
            continue
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        if norm.isnan():
            optimizer.zero_grad()
            scaler.update()
            continue
        scaler.step(optimizer)
        scaler.update()
"""

STATIC_SCALE = """
import torch

SCALE = 1024.0
model = Net().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = criterion(model(x), y)
    (loss * 1024.0).backward()
    for p in model.parameters():
        p.grad.div_(1024.0)
    optimizer.step()
"""

APEX_STYLE_MASTERS = """
import torch

model = Net().cuda().half()
master = [p.detach().clone().float().requires_grad_() for p in model.parameters()]
optimizer = torch.optim.SGD(master, lr=0.1)
for x, y in loader:
    output = model(x.half())
    loss = criterion(output.float(), y)
    model.zero_grad()
    loss.backward()
    for m, p in zip(master, model.parameters()):
        m.grad = p.grad.float()
    optimizer.step()
    for m, p in zip(master, model.parameters()):
        p.data.copy_(m.data)
"""

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
