"""Recipes of public training scripts, one or two of each kind, all correct: a lint is silent on each."""

from __future__ import annotations

SAM_UNDER_A_SCALER = """
import torch
from torch.amp import GradScaler, autocast


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base, rho=0.05, **rest):
        super().__init__(params, dict(rho=rho, **rest))
        self.base = base(self.param_groups, **rest)

    @torch.no_grad()
    def first_step(self, zero_grad=False):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.state[p]["old"] = p.data.clone()
                    p.add_(p.grad * group["rho"])
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad=False):
        for group in self.param_groups:
            for p in group["params"]:
                p.data = self.state[p]["old"]
        self.base.step()
        if zero_grad:
            self.zero_grad()


def train(model, loader, criterion):
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1)
    scaler, second_scaler = GradScaler("cuda"), GradScaler("cuda")
    for x, y in loader:
        with autocast("cuda", dtype=torch.float16):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        optimizer.first_step(zero_grad=True)
        scaler.update()
        with autocast("cuda", dtype=torch.float16):
            second = criterion(model(x), y)
        second_scaler.scale(second).backward()
        second_scaler.unscale_(optimizer)
        optimizer.second_step(zero_grad=True)
        second_scaler.update()
"""

CHECKPOINTED = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


class Deep(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x)


model = Deep(64, 8).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    optimizer.zero_grad(set_to_none=True)
    with torch.amp.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""

AVERAGED = """
import torch
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn


def run(model, loader, loss_fn, epochs, swa_start):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    ema_model = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    swa_model, swa_scheduler = AveragedModel(model), SWALR(optimizer, swa_lr=0.05)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
    scaler = torch.amp.GradScaler("cuda")
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            ema_model.update_parameters(model)
        if epoch > swa_start:
            swa_model.update_parameters(model)
            swa_scheduler.step()
        else:
            scheduler.step()
    update_bn(loader, swa_model)
    with torch.no_grad():
        return [swa_model(x).float() for x, _ in loader]
"""

DDP_ACCUMULATING = """
import contextlib

import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def train(rank, net, loader, loss_fn, every=8):
    ddp = DDP(net.to(rank), device_ids=[rank])
    opt = torch.optim.AdamW(ddp.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        last = (i + 1) % every == 0 or i + 1 == len(loader)
        with contextlib.nullcontext() if last else ddp.no_sync():
            with torch.autocast("cuda", dtype=torch.float16):
                loss = loss_fn(ddp(x), y) / every
            scaler.scale(loss).backward()
        if not last:
            continue
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        opt.zero_grad(set_to_none=True)
"""

ACCELERATED = """
import torch
from accelerate import Accelerator


def main(args):
    accelerator = Accelerator(mixed_precision="fp16", gradient_accumulation_steps=args.accum)
    model, loader = build(args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    lr_scheduler = make_schedule(optimizer)
    model, optimizer, loader, lr_scheduler = accelerator.prepare(model, optimizer, loader, lr_scheduler)
    for batch in loader:
        with accelerator.accumulate(model):
            with accelerator.autocast():
                loss = model(**batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
"""

ENGINE = """
import deepspeed
import torch


def main(args, net, data):
    engine, optimizer, loader, _ = deepspeed.initialize(
        args=args, model=net, model_parameters=net.parameters(), training_data=data, config="ds.json"
    )
    half = engine.fp16_enabled()
    for step, (x, y) in enumerate(loader):
        x = x.to(engine.local_rank)
        if half:
            x = x.half()
        loss = torch.nn.functional.mse_loss(engine(x).float(), y.to(engine.local_rank))
        engine.backward(loss)
        engine.step()
        if step % 100 == 0:
            engine.save_checkpoint("out", step)
"""

MANUAL_LIGHTNING = """
import lightning as L
import torch


class Gan(L.LightningModule):
    def __init__(self, generator, discriminator):
        super().__init__()
        self.automatic_optimization = False
        self.generator, self.discriminator = generator, discriminator

    def training_step(self, batch, batch_idx):
        opt_g, opt_d = self.optimizers()
        fake = self.generator(torch.randn(len(batch), 64, device=self.device))
        self.toggle_optimizer(opt_d)
        loss_d = self.discriminator(fake.detach()).mean() - self.discriminator(batch).mean()
        opt_d.zero_grad()
        self.manual_backward(loss_d)
        self.clip_gradients(opt_d, gradient_clip_val=1.0, gradient_clip_algorithm="norm")
        opt_d.step()
        self.untoggle_optimizer(opt_d)
        if batch_idx % 5 == 0:
            loss_g = -self.discriminator(fake).mean()
            opt_g.zero_grad()
            self.manual_backward(loss_g)
            opt_g.step()
        self.log("loss_d", loss_d)

    def configure_optimizers(self):
        return torch.optim.Adam(self.generator.parameters()), torch.optim.Adam(self.discriminator.parameters())
"""

TRAINER_SUBCLASS = """
import torch
from transformers import Trainer, TrainingArguments


class WeightedTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **rest):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        weight = torch.tensor([1.0, 2.0], device=labels.device)
        loss = torch.nn.functional.cross_entropy(outputs.logits.float(), labels, weight=weight)
        return (loss, outputs) if return_outputs else loss

    def training_step(self, model, inputs, num_items_in_batch=None):
        model.train()
        inputs = self._prepare_inputs(inputs)
        with self.compute_loss_context_manager():
            loss = self.compute_loss(model, inputs)
        self.accelerator.backward(loss / self.args.gradient_accumulation_steps)
        return loss.detach()


trainer = WeightedTrainer(model, TrainingArguments("out", fp16=True), train_dataset=data)
trainer.train()
"""

LOOPS = {name: text for name, text in dict(globals()).items() if name.isupper() and isinstance(text, str)}
