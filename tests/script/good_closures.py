"""Closures, penalties, policies, hand-made scaling, all correct: a lint is silent on each."""

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

LOOPS = {name: text for name, text in dict(globals()).items() if name.isupper() and isinstance(text, str)}
