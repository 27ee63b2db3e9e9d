"""An applied model trains, wraps, compiles, saves and is copied as the user's own."""

from __future__ import annotations

import copy
import io
import os
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import precision_audit as pa
from precision_audit.backends.torchao_float8 import is_swapped
from tests.applying.small import Holder, Net, converted, rows, seeded

FP8 = "fp8-training-hopper"


def applied(policy: str = FP8) -> tuple[nn.Module, pa.Applied]:
    model = seeded(Net)
    model.train(policy.endswith("hopper"))
    result = converted(model, policy)
    return model, pa.apply(model, result)


def test_parameters_are_the_same_objects_and_an_earlier_optimizer_trains_them() -> None:
    model = seeded(Net)
    result = converted(model, FP8)
    before = dict(model.named_parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    record = pa.apply(model, result)
    after = dict(model.named_parameters())
    assert after.keys() == before.keys() and all(after[name] is before[name] for name in before)
    assert is_swapped(model.first) and not record.stored and not record.hooked
    x, target = rows(), torch.randn(64, 10, generator=torch.Generator().manual_seed(2))
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = (model(x).float() - target).square().mean()
        loss.backward()
        assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in before.values())
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.8 * losses[0]


def test_what_autocast_decides_is_stated() -> None:
    _, record = applied()
    assert record.mode == "training" and not record.exact
    ways = {each.runs: each for each in record.not_expressed}
    assert 'torch.autocast("cpu", dtype=torch.bfloat16)' in ways[""].remedy
    assert {"attention/scaled_dot_product_attention#0", "odd/linear#0"} <= set(ways[""].ops)
    assert "train under torch.autocast" in str(record)


def test_state_dict_goes_both_ways_and_copies_are_whole(tmp_path: Path) -> None:
    for policy in (FP8, "bf16-inference"):
        model, _ = applied(policy)
        torch.save(model.state_dict(), tmp_path / "model.pt")
        state = torch.load(tmp_path / "model.pt", weights_only=True)
        plain = seeded(Net)
        assert list(state) == list(plain.state_dict())
        plain.load_state_dict(state)
        for name, tensor in plain.state_dict().items():
            assert torch.equal(tensor, state[name].float()), name
        model.load_state_dict(seeded(Net).state_dict())
        assert model.odd.weight.dtype == (torch.float32 if policy == FP8 else torch.bfloat16)
        twin = copy.deepcopy(model)
        assert torch.equal(twin(rows()), model(rows()))
        with torch.no_grad():
            twin.odd.weight.zero_()
        assert not torch.equal(twin(rows()), model(rows()))


def test_a_whole_model_can_be_pickled() -> None:
    model, _ = applied("bf16-inference")
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    assert torch.equal(again(rows()), model(rows()))


def test_hooks_of_the_users_run_as_before() -> None:
    """A hook registered later sees what the module gives out and takes in, in the model's own formats."""
    model, record = applied("bf16-inference")
    assert record.hooked
    seen: list[torch.dtype] = []
    model.register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    model(rows())
    assert seen == [torch.float32]


@pytest.mark.slow
def test_compiled() -> None:
    """One graph, hooks and all, by inductor where there is a compiler for it."""
    compiler = any(shutil.which(name) for name in ("g++", "c++", "clang++"))
    model, _ = applied("bf16-inference")
    torch._dynamo.reset()
    with torch.no_grad():
        found = torch.compile(model, backend="inductor" if compiler else "aot_eager", fullgraph=True)(rows())
        wanted = model(rows())
    assert found.dtype == wanted.dtype == torch.float32
    assert float((found - wanted).norm() / wanted.norm()) < 2e-2  # inductor keeps fp32 between fused ops


@pytest.mark.slow
def test_compiled_in_training() -> None:
    """Emulated fp8 is a long graph of casts, whose C++ takes minutes: traced and differentiated here."""
    model = seeded(Holder)
    pa.apply(model, converted(seeded(Holder), FP8))
    torch._dynamo.reset()
    found = torch.compile(model, backend="aot_eager")(rows())
    found.square().sum().backward()
    compiled = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    model(rows()).square().sum().backward()
    assert compiled.keys() == {name for name, _ in model.named_parameters()}
    for name, parameter in model.named_parameters():
        assert torch.allclose(compiled[name], parameter.grad, rtol=1e-2, atol=1e-2), name


class LoRA(nn.Module):
    """What PEFT puts in the place of a linear: the linear as it is, and a trained product of low rank beside it."""

    def __init__(self, base: nn.Module, rank: int = 4) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        made = self.base(x)
        return made + self.up(self.down(x.to(self.down.weight.dtype))).to(made.dtype)


@pytest.mark.parametrize("policy", [FP8, "bf16-inference"])
def test_adapters_beside_an_applied_model_learn(policy: str) -> None:
    model, _ = applied(policy)
    model.requires_grad_(False)
    model.first, model.odd = LoRA(model.first), LoRA(model.odd)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1)
    target = torch.zeros(64, 10)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = (model(rows()).float() - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert len(trained) == 4 and losses[-1] < losses[0]


@pytest.mark.slow
def test_two_ranks_of_ddp_agree(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    model = seeded(Net)
    plan = converted(model, FP8).plan
    torch.multiprocessing.spawn(_rank, (port, plan, str(tmp_path)), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    assert first["losses"][-1] < first["losses"][0]
    for name, tensor in first["state"].items():
        assert torch.equal(tensor, second["state"][name]), name
        assert not torch.equal(tensor, model.state_dict()[name]) or "bias" in name


def _rank(rank: int, port: int, plan: Any, folder: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    model = seeded(Net)
    pa.apply(model, plan)
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.05)
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(rank))
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = wrapped(x).square().mean() + (wrapped.module.norm.bias - 1).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    torch.save({"losses": losses, "state": model.state_dict()}, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()
