"""Loops in the hands of frameworks and classes, all correct: a lint is silent on each."""

from __future__ import annotations

HF_NO_TRAINER = """
from accelerate import Accelerator
import torch
from transformers import AutoModelForCausalLM, get_scheduler


def main():
    args = parse_args()
    accelerator = Accelerator(gradient_accumulation_steps=args.gradient_accumulation_steps)
    model = AutoModelForCausalLM.from_pretrained(args.model_name_or_path)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    lr_scheduler = get_scheduler(name=args.lr_scheduler_type, optimizer=optimizer)
    model, optimizer, train_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, lr_scheduler
    )
    for epoch in range(starting_epoch, args.num_train_epochs):
        model.train()
        for step, batch in enumerate(train_dataloader):
            with accelerator.accumulate(model):
                outputs = model(**batch)
                loss = outputs.loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()
"""

HF_BY_HAND = """
import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification, get_linear_schedule_with_warmup

device = torch.device("cuda")
model = AutoModelForSequenceClassification.from_pretrained("bert-base-uncased", num_labels=2)
model.to(device)
no_decay = ["bias", "LayerNorm.weight"]
groups = [
    {"params": [p for n, p in model.named_parameters() if not any(nd in n for nd in no_decay)], "weight_decay": 0.01},
    {"params": [p for n, p in model.named_parameters() if any(nd in n for nd in no_decay)], "weight_decay": 0.0},
]
optimizer = torch.optim.AdamW(groups, lr=5e-5)
scheduler = get_linear_schedule_with_warmup(optimizer, 100, 1000)
scaler = torch.amp.GradScaler("cuda")
for epoch in range(3):
    for step, batch in enumerate(train_dataloader):
        batch = {k: v.to(device) for k, v in batch.items()}
        with torch.autocast(device_type="cuda", dtype=torch.float16):
            outputs = model(**batch)
            loss = outputs.loss / args.accumulation
        scaler.scale(loss).backward()
        if (step + 1) % args.accumulation == 0 or step == len(train_dataloader) - 1:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            model.zero_grad()
"""

BF16_ONLY = """
import torch
import torch.nn.functional as F

model = Transformer(config).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
for x, y in loader:
    with torch.autocast("cuda", torch.bfloat16):
        logits = model(x)
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)).float(), y.view(-1))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
"""

TRAINER_CLASS = """
import torch
from torch import nn


class Trainer:
    def __init__(self, model, optimizer, cfg):
        self.model = model.cuda()
        self.optimizer = optimizer
        self.use_amp = cfg.amp
        self.scaler = torch.amp.GradScaler("cuda", enabled=self.use_amp)
        self.criterion = nn.CrossEntropyLoss()
        self.cfg = cfg

    def _forward(self, batch):
        with torch.amp.autocast("cuda", dtype=torch.float16, enabled=self.use_amp):
            output = self.model(batch["x"])
            return self.criterion(output, batch["y"])

    def _optimize(self, loss):
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        if self.cfg.clip:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_value_(self.model.parameters(), self.cfg.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def training_step(self, batch):
        loss = self._forward(batch)
        self._optimize(loss)
        return loss.detach()

    def fit(self, loader):
        for epoch in range(self.cfg.epochs):
            for batch in loader:
                loss = self.training_step(batch)
            self.log(loss)

    def log(self, loss):
        print(loss.item())


net = build(cfg)
trainer = Trainer(net, torch.optim.Adam(net.parameters()), cfg)
trainer.fit(loader)
"""

LIGHTNING = """
import lightning as L
import torch
import torch.nn.functional as F


class LitModel(L.LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


trainer = L.Trainer(precision="16-mixed", max_epochs=3)
trainer.fit(LitModel(net), loader)
"""

FABRIC = """
import torch
from lightning.fabric import Fabric

fabric = Fabric(precision="16-mixed")
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = fabric.setup(model, optimizer)
loader = fabric.setup_dataloaders(loader)
for x, y in loader:
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    fabric.backward(loss)
    fabric.clip_gradients(model, optimizer, max_norm=1.0)
    optimizer.step()
"""

DEEPSPEED = """
import deepspeed
import torch

model = Net()
optimizer = torch.optim.AdamW(model.parameters())
model_engine, optimizer, _, _ = deepspeed.initialize(args=args, model=model, optimizer=optimizer)
for step, batch in enumerate(loader):
    loss = model_engine(batch)
    model_engine.backward(loss)
    model_engine.step()
"""

LOOPS = {name: text for name, text in dict(globals()).items() if name.isupper() and isinstance(text, str)}
