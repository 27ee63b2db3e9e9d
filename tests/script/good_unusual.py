"""Less usual loops, all correct: a lint is silent on each."""

from __future__ import annotations

MANUAL_SGD = """
import torch
w = torch.randn(3, requires_grad=True)
for x in data:
    loss = (w * x).sum()
    loss.backward()
    with torch.no_grad():
        w -= 0.1 * w.grad
        w.grad.zero_()
"""

DICT_SCALER = """
import torch
def run(state, loader):
    for x in loader:
        state["optimizer"].zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = state["model"](x).mean()
        state["scaler"].scale(loss).backward()
        state["scaler"].unscale_(state["optimizer"])
        torch.nn.utils.clip_grad_norm_(state["model"].parameters(), 1.0)
        state["scaler"].step(state["optimizer"])
        state["scaler"].update()
"""

SAM = """
import torch
class SAM(torch.optim.Optimizer):
    def __init__(self, params, base, **kw):
        super().__init__(params, kw)
        self.base_optimizer = base(self.param_groups, **kw)
    @torch.no_grad()
    def first_step(self, zero_grad=False):
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad)
        if zero_grad: self.zero_grad()
    @torch.no_grad()
    def second_step(self, zero_grad=False):
        self.base_optimizer.step()
        if zero_grad: self.zero_grad()
def train(model, loader, crit):
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1)
    for x, y in loader:
        crit(model(x), y).backward()
        optimizer.first_step(zero_grad=True)
        crit(model(x), y).backward()
        optimizer.second_step(zero_grad=True)
"""

FSDP_SCALER = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
def train(model, loader, args):
    scaler = ShardedGradScaler()
    model = FSDP(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for x in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        model.clip_grad_norm_(1.0)
        scaler.step(optimizer)
        scaler.update()
"""

MULTI_TUPLE = """
import torch
def build():
    m = Net().cuda()
    o = torch.optim.SGD(m.parameters(), lr=1)
    return m, o, torch.amp.GradScaler("cuda")
m, o, s = build()
for x in loader:
    with torch.amp.autocast("cuda", dtype=torch.float16), torch.set_grad_enabled(True):
        l = m(x).sum()
    s.scale(l).backward(); s.step(o); s.update(); o.zero_grad()
"""

LIST_COMP = """
import torch
opts = [torch.optim.SGD(m.parameters(), lr=1) for m in nets]
for x in loader:
    [o.zero_grad() for o in opts]
    sum(m(x).sum() for m in nets).backward()
    [o.step() for o in opts]
"""

ACCUM_BY_COUNTER = """
import torch
def train(model, loader, optimizer, scaler, accum):
    n = 0
    for x in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).mean()/accum
        scaler.scale(loss).backward()
        n += 1
        if n < accum:
            continue
        n = 0
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""

TWO_PHASES = """
import torch
class T:
    def __init__(self, net, amp):
        self.net = net
        self.amp = amp
        self.scaler = None
        if amp:
            self.scaler = torch.amp.GradScaler("cuda")
        self.opt = torch.optim.SGD(net.parameters(), lr=1)
    def backward(self, loss):
        if self.amp: self.scaler.scale(loss).backward()
        else: loss.backward()
    def step(self):
        if self.scaler is None:
            self.opt.step()
        else:
            self.scaler.step(self.opt); self.scaler.update()
        self.opt.zero_grad()
    def fit(self, loader):
        for x in loader:
            with torch.autocast("cuda", enabled=self.amp):
                loss = self.net(x).mean()
            self.backward(loss)
            self.step()
"""

BF16_SELECT = """
import torch
use_bf16 = torch.cuda.is_bf16_supported()
dtype = torch.bfloat16 if use_bf16 else torch.float16
scaler = torch.amp.GradScaler("cuda", enabled=not use_bf16)
for x in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=dtype):
        loss = model(x).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""

BF16_BRANCH = """
import torch
def main(args):
    if args.precision == "bf16":
        scaler = None
    else:
        scaler = torch.amp.GradScaler("cuda")
    dt = {"bf16": torch.bfloat16, "fp16": torch.float16}[args.precision]
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=dt):
            loss = model(x).mean()
        if scaler:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
"""

ENABLED_FLAG_BF16 = """
import torch
def main(loader, model, optimizer, fp16):
    scaler = torch.amp.GradScaler("cuda", enabled=fp16)
    half = torch.autocast("cuda", dtype=torch.float16, enabled=fp16)
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=not fp16), half:
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""

EVAL_HALF_THEN_FLOAT = """
import torch
model = torch.nn.Linear(3,3)
opt = torch.optim.SGD(model.parameters(), lr=1)
model.half(); evaluate(model); model.float()
for x in loader:
    opt.zero_grad(); model(x).sum().backward(); opt.step()
"""

LORA_FP16 = """
import torch
from transformers import AutoModelForCausalLM
from peft import get_peft_model
model = AutoModelForCausalLM.from_pretrained("x", torch_dtype=torch.float16)
model = get_peft_model(model, cfg)
opt = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cuda")
for b in loader:
    opt.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(**b).loss
    scaler.scale(loss).backward(); scaler.step(opt); scaler.update()
"""

GRAD_NORM_AFTER_UNSCALE = """
import torch
def grad_norm(params):
    return sum(p.grad.norm() ** 2 for p in params) ** 0.5
def train(model, loader, optimizer, scaler):
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        print(grad_norm(model.parameters()))
        scaler.step(optimizer)
        scaler.update()
"""

CONTEXT_FROM_A_GENERATOR = """
import contextlib, torch
@contextlib.contextmanager
def amp_ctx(on):
    if on:
        with torch.autocast("cuda", dtype=torch.float16):
            yield
    else:
        yield
def train(model, loader, optimizer):
    for x in loader:
        optimizer.zero_grad()
        with amp_ctx(True):
            loss = model(x).mean()
            loss.backward()
        optimizer.step()
"""

WHILE_STEP = """
import torch
def train(model, optimizer, scaler, loader):
    it = iter(loader)
    step = 0
    while step < 100:
        for micro in range(4):
            x = next(it)
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(x).mean() / 4
            scaler.scale(loss).backward()
        if True:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1)
        scaler.step(optimizer)
        old = scaler.get_scale()
        scaler.update()
        if old <= scaler.get_scale():
            scheduler.step()
        optimizer.zero_grad()
        step += 1
"""

TF32_BY_VERSION = """
import torch


def enable(on):
    if version >= (2, 9):
        torch.backends.fp32_precision = "tf32" if on else "ieee"
    else:
        torch.backends.cuda.matmul.allow_tf32 = on
        torch.backends.cudnn.allow_tf32 = on
"""

TF32_BY_TRYING = """
import torch

try:
    torch.backends.cudnn.conv.fp32_precision = "ieee"
except AttributeError:
    torch.set_float32_matmul_precision("highest")
"""

LOOPS = {name: text for name, text in dict(globals()).items() if name.isupper() and isinstance(text, str)}
