"""Two networks, averages and detectors as public scripts train them, all correct: a lint is silent on each."""

from __future__ import annotations

DCGAN = """
import torch
import torch.nn as nn
import torch.optim as optim

netG = Generator(ngpu).to(device)
netD = Discriminator(ngpu).to(device)
criterion = nn.BCELoss()
optimizerD = optim.Adam(netD.parameters(), lr=lr, betas=(beta1, 0.999))
optimizerG = optim.Adam(netG.parameters(), lr=lr, betas=(beta1, 0.999))

for epoch in range(num_epochs):
    for i, data in enumerate(dataloader, 0):
        netD.zero_grad()
        real_cpu = data[0].to(device)
        label = torch.full((real_cpu.size(0),), real_label, dtype=torch.float, device=device)
        output = netD(real_cpu).view(-1)
        errD_real = criterion(output, label)
        errD_real.backward()
        noise = torch.randn(real_cpu.size(0), nz, 1, 1, device=device)
        fake = netG(noise)
        label.fill_(fake_label)
        output = netD(fake.detach()).view(-1)
        errD_fake = criterion(output, label)
        errD_fake.backward()
        optimizerD.step()

        netG.zero_grad()
        label.fill_(real_label)
        output = netD(fake).view(-1)
        errG = criterion(output, label)
        errG.backward()
        optimizerG.step()
"""

GAN_ONE_SCALER = """
import torch
from torch.amp import GradScaler, autocast


def train(gen, disc, loader, opt_g, opt_d, bce, z_dim):
    scaler = GradScaler("cuda")
    for real in loader:
        noise = torch.randn(real.size(0), z_dim, device="cuda")
        with autocast("cuda", dtype=torch.float16):
            fake = gen(noise)
            d_real, d_fake = disc(real), disc(fake.detach())
            loss_d = bce(d_real, torch.ones_like(d_real)) + bce(d_fake, torch.zeros_like(d_fake))
        opt_d.zero_grad(set_to_none=True)
        scaler.scale(loss_d).backward()
        scaler.unscale_(opt_d)
        torch.nn.utils.clip_grad_norm_(disc.parameters(), 1.0)
        scaler.step(opt_d)
        with autocast("cuda", dtype=torch.float16):
            out = disc(fake)
            loss_g = bce(out, torch.ones_like(out))
        opt_g.zero_grad(set_to_none=True)
        scaler.scale(loss_g).backward()
        scaler.unscale_(opt_g)
        torch.nn.utils.clip_grad_norm_(gen.parameters(), 1.0)
        scaler.step(opt_g)
        scaler.update()
"""

WGAN_CLIPPED = """
import torch


def train(netD, netG, loader, n_critic, c):
    optD = torch.optim.RMSprop(netD.parameters(), lr=5e-5)
    optG = torch.optim.RMSprop(netG.parameters(), lr=5e-5)
    data = iter(loader)
    while True:
        for _ in range(n_critic):
            for p in netD.parameters():
                p.data.clamp_(-c, c)
            real = next(data)
            netD.zero_grad()
            loss = netD(netG(torch.randn(64, 100)).detach()).mean() - netD(real).mean()
            loss.backward()
            optD.step()
        netG.zero_grad()
        loss_g = -netD(netG(torch.randn(64, 100))).mean()
        loss_g.backward()
        optG.step()
"""

EMA = """
import copy
import torch
import torch.nn.functional as F


class EMA:
    def __init__(self, model, decay):
        self.ema = copy.deepcopy(model).eval()
        self.decay = decay
        for p in self.ema.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for e, p in zip(self.ema.parameters(), model.parameters()):
            e.mul_(self.decay).add_(p.detach(), alpha=1 - self.decay)


def train(model, loader, epochs):
    model = model.cuda()
    ema = EMA(model, 0.999)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda")
    for epoch in range(epochs):
        for x, y in loader:
            with torch.amp.autocast("cuda", dtype=torch.float16):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            ema.update(model)
        torch.save(copy.deepcopy(ema.ema).half().state_dict(), "ema.pt")
"""

YOLO = """
import numpy as np
import torch
from torch import amp
import torch.nn as nn

device = select_device(opt.device)
cuda = device.type != "cpu"
model = Model(cfg, ch=3, nc=nc).to(device)
g = [], [], []
for v in model.modules():
    if hasattr(v, "bias") and isinstance(v.bias, nn.Parameter):
        g[2].append(v.bias)
optimizer = torch.optim.SGD(g[2], lr=hyp["lr0"], momentum=hyp["momentum"], nesterov=True)
optimizer.add_param_group({"params": g[0], "weight_decay": hyp["weight_decay"]})
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_lambda=lf)
ema = ModelEMA(model) if rank in [-1, 0] else None
scaler = amp.GradScaler("cuda", enabled=cuda)
last_opt_step = -1
for epoch in range(start_epoch, epochs):
    model.train()
    optimizer.zero_grad()
    for i, (imgs, targets, paths, _) in enumerate(train_loader):
        ni = i + nb * epoch
        imgs = imgs.to(device, non_blocking=True).float() / 255
        if ni <= nw:
            accumulate = max(1, np.interp(ni, xi, [1, nbs / batch_size]).round())
        with amp.autocast("cuda", enabled=cuda):
            pred = model(imgs)
            loss, loss_items = compute_loss(pred, targets.to(device))
            if rank != -1:
                loss *= world_size
        scaler.scale(loss).backward()
        if ni - last_opt_step >= accumulate:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=10.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            if ema:
                ema.update(model)
            last_opt_step = ni
    scheduler.step()
"""

VITS = """
import torch
from torch import amp


def train_and_evaluate(hps, nets, optims, scaler, loader):
    net_g, net_d = nets
    optim_g, optim_d = optims
    for x, y in loader:
        with amp.autocast("cuda", enabled=hps.fp16_run):
            y_hat, attn = net_g(x)
            y_d_r, y_d_g = net_d(y, y_hat.detach())
            with amp.autocast("cuda", enabled=False):
                loss_disc, _, _ = discriminator_loss(y_d_r, y_d_g)
        optim_d.zero_grad()
        scaler.scale(loss_disc).backward()
        scaler.unscale_(optim_d)
        grad_norm_d = commons.clip_grad_value_(net_d.parameters(), None)
        scaler.step(optim_d)
        with amp.autocast("cuda", enabled=hps.fp16_run):
            y_d_r, y_d_g = net_d(y, y_hat)
            with amp.autocast("cuda", enabled=False):
                loss_gen = torch.nn.functional.l1_loss(y.float(), y_hat.float()) * hps.c_mel
        optim_g.zero_grad()
        scaler.scale(loss_gen).backward()
        scaler.unscale_(optim_g)
        grad_norm_g = commons.clip_grad_value_(net_g.parameters(), None)
        scaler.step(optim_g)
        scaler.update()
"""

LOOPS = {name: text for name, text in dict(globals()).items() if name.isupper() and isinstance(text, str)}
