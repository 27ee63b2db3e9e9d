"""Training loops of images as public scripts write them, all correct: a lint is silent on each."""

from __future__ import annotations

TORCHVISION = """
import torch
import utils
from torch import nn


def train_one_epoch(model, criterion, optimizer, data_loader, device, epoch, args, model_ema=None, scaler=None):
    model.train()
    metric_logger = utils.MetricLogger(delimiter="  ")
    header = f"Epoch: [{epoch}]"
    for i, (image, target) in enumerate(metric_logger.log_every(data_loader, args.print_freq, header)):
        image, target = image.to(device), target.to(device)
        with torch.amp.autocast("cuda", enabled=scaler is not None):
            output = model(image)
            loss = criterion(output, target)

        optimizer.zero_grad()
        if scaler is not None:
            scaler.scale(loss).backward()
            if args.clip_grad_norm is not None:
                # we should unscale the gradients of optimizer's assigned params if do gradient clipping
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad_norm)
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            if args.clip_grad_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad_norm)
            optimizer.step()

        if model_ema and i % args.model_ema_steps == 0:
            model_ema.update_parameters(model)
        metric_logger.update(loss=loss.item(), lr=optimizer.param_groups[0]["lr"])


def evaluate(model, criterion, data_loader, device):
    model.eval()
    with torch.inference_mode():
        for image, target in data_loader:
            output = model(image.to(device))
            loss = criterion(output, target)


def main(args):
    device = torch.device(args.device)
    model = torchvision.models.get_model(args.model, weights=args.weights)
    model.to(device)
    criterion = nn.CrossEntropyLoss(label_smoothing=args.label_smoothing)
    opt_name = args.opt.lower()
    if opt_name.startswith("sgd"):
        optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)
    elif opt_name == "adamw":
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    else:
        raise RuntimeError(f"Invalid optimizer {args.opt}.")
    scaler = torch.amp.GradScaler("cuda") if args.amp else None
    lr_scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs)
    model_without_ddp = model
    if args.distributed:
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[args.gpu])
        model_without_ddp = model.module
    if args.resume:
        checkpoint = torch.load(args.resume, map_location="cpu")
        optimizer.load_state_dict(checkpoint["optimizer"])
        if scaler:
            scaler.load_state_dict(checkpoint["scaler"])
    for epoch in range(args.start_epoch, args.epochs):
        train_one_epoch(model, criterion, optimizer, data_loader, device, epoch, args, None, scaler)
        lr_scheduler.step()
        evaluate(model, criterion, data_loader_test, device=device)


if __name__ == "__main__":
    main(parser.parse_args())
"""

DETECTION = """
import math
import sys
import torch
import utils


def train_one_epoch(model, optimizer, data_loader, device, epoch, print_freq, scaler=None):
    model.train()
    lr_scheduler = None
    if epoch == 0:
        warmup_iters = min(1000, len(data_loader) - 1)
        lr_scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.001, total_iters=warmup_iters)
    for images, targets in data_loader:
        images = list(image.to(device) for image in images)
        targets = [{k: v.to(device) for k, v in t.items()} for t in targets]
        with torch.amp.autocast("cuda", enabled=scaler is not None):
            loss_dict = model(images, targets)
            losses = sum(loss for loss in loss_dict.values())
        loss_dict_reduced = utils.reduce_dict(loss_dict)
        losses_reduced = sum(loss for loss in loss_dict_reduced.values())
        loss_value = losses_reduced.item()
        if not math.isfinite(loss_value):
            print(f"Loss is {loss_value}, stopping training")
            sys.exit(1)
        optimizer.zero_grad()
        if scaler is not None:
            scaler.scale(losses).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            losses.backward()
            optimizer.step()
        if lr_scheduler is not None:
            lr_scheduler.step()
"""

TIMM = """
import torch
from contextlib import suppress
from functools import partial
from timm.utils import NativeScaler, dispatch_clip_grad
from timm.optim import create_optimizer_v2
import timm


def main(args):
    device = torch.device("cuda")
    amp_dtype = torch.bfloat16 if args.amp_dtype == "bfloat16" else torch.float16
    model = timm.create_model(args.model, pretrained=args.pretrained)
    model.to(device=device)
    optimizer = create_optimizer_v2(model, opt=args.opt)
    amp_autocast = suppress
    loss_scaler = None
    if args.amp:
        amp_autocast = partial(torch.autocast, device_type=device.type, dtype=amp_dtype)
        if amp_dtype == torch.float16:
            loss_scaler = NativeScaler()
    for epoch in range(args.epochs):
        train_one_epoch(epoch, model, loader, optimizer, loss_fn, args, amp_autocast, loss_scaler)


def train_one_epoch(epoch, model, loader, optimizer, loss_fn, args, amp_autocast=suppress, loss_scaler=None):
    accum_steps = args.grad_accum_steps
    model.train()
    optimizer.zero_grad()
    for batch_idx, (input, target) in enumerate(loader):
        last_batch = batch_idx == len(loader) - 1
        need_update = last_batch or (batch_idx + 1) % accum_steps == 0

        def _forward():
            with amp_autocast():
                output = model(input)
                loss = loss_fn(output, target)
            if accum_steps > 1:
                loss /= accum_steps
            return loss

        def _backward(_loss):
            if loss_scaler is not None:
                loss_scaler(_loss, optimizer, clip_grad=args.clip_grad, parameters=model.parameters(),
                            need_update=need_update)
            else:
                _loss.backward(create_graph=args.second_order)
                if need_update:
                    if args.clip_grad is not None:
                        dispatch_clip_grad(model.parameters(), value=args.clip_grad)
                    optimizer.step()

        if hasattr(model, "no_sync") and not need_update:
            with model.no_sync():
                loss = _forward()
                _backward(loss)
        else:
            loss = _forward()
            _backward(loss)
        if not need_update:
            continue
        optimizer.zero_grad()
"""

NATIVE_SCALER = """
import math
import torch
from torch import inf


class NativeScalerWithGradNormCount:
    state_dict_key = "amp_scaler"

    def __init__(self):
        self._scaler = torch.amp.GradScaler("cuda")

    def __call__(self, loss, optimizer, clip_grad=None, parameters=None, create_graph=False, update_grad=True):
        self._scaler.scale(loss).backward(create_graph=create_graph)
        if update_grad:
            if clip_grad is not None:
                assert parameters is not None
                self._scaler.unscale_(optimizer)
                norm = torch.nn.utils.clip_grad_norm_(parameters, clip_grad)
            else:
                self._scaler.unscale_(optimizer)
                norm = get_grad_norm_(parameters)
            self._scaler.step(optimizer)
            self._scaler.update()
        else:
            norm = None
        return norm

    def state_dict(self):
        return self._scaler.state_dict()


def get_grad_norm_(parameters, norm_type: float = 2.0):
    parameters = [p for p in parameters if p.grad is not None]
    if norm_type == inf:
        return max(p.grad.detach().abs().max() for p in parameters)
    return torch.norm(torch.stack([torch.norm(p.grad.detach(), norm_type) for p in parameters]), norm_type)


def train_one_epoch(model, data_loader, optimizer, device, epoch, loss_scaler, args):
    optimizer.zero_grad()
    for data_iter_step, (samples, _) in enumerate(data_loader):
        samples = samples.to(device, non_blocking=True)
        with torch.amp.autocast("cuda"):
            loss, _, _ = model(samples, mask_ratio=args.mask_ratio)
        loss_value = loss.item()
        if not math.isfinite(loss_value):
            raise SystemExit(1)
        loss /= args.accum_iter
        loss_scaler(loss, optimizer, parameters=model.parameters(),
                    update_grad=(data_iter_step + 1) % args.accum_iter == 0)
        if (data_iter_step + 1) % args.accum_iter == 0:
            optimizer.zero_grad()


def main(args):
    model = models_mae.__dict__[args.model](norm_pix_loss=args.norm_pix_loss)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95))
    loss_scaler = NativeScalerWithGradNormCount()
    for epoch in range(args.start_epoch, args.epochs):
        train_one_epoch(model, data_loader_train, optimizer, "cuda", epoch, loss_scaler, args=args)
"""

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

LOOPS = {name: text for name, text in dict(globals()).items() if name.isupper() and isinstance(text, str)}
