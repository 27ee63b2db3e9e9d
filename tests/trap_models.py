"""Small models that do and do not survive `model.to(low)` or torch.autocast, one function each.

`MODELS` maps a name to a factory of (module, args). Whether one raises is not written down here: the tests run it. Most
come in pairs, the trap and the neighbour that differs in one word and is harmless.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Built = tuple[nn.Module, tuple[Any, ...]]
Body = Callable[..., Any]
Register = Callable[[Body], Body]

MODELS: dict[str, Callable[[], Built]] = {}


class Written(nn.Module):
    """A forward pass written as a function of the module and its inputs."""

    def __init__(self, body: Callable[..., Any], plain: dict[str, Tensor], modules: dict[str, nn.Module]) -> None:
        super().__init__()
        self.body = body
        for name, module in modules.items():
            self.add_module(name, module)
        for name, tensor in plain.items():
            setattr(self, name, tensor)  # no buffer: `.to` leaves it
        self.fc = nn.Linear(8, 8)
        self.register_buffer("table", torch.linspace(0.0, 1.0, 48).reshape(6, 8))
        self.register_buffer("scratch", torch.zeros(6, 8), persistent=False)

    def forward(self, *args: Tensor) -> Any:
        return self.body(self, *args)


def _model(name: str, *inputs: Tensor, plain: dict[str, Tensor] | None = None, **modules: nn.Module) -> Register:
    def register(body: Body) -> Body:
        def build() -> Built:
            torch.manual_seed(0)
            return Written(body, plain or {}, modules).eval(), inputs or (X,)

        MODELS[name] = build
        return body

    return register


torch.manual_seed(0)
X = torch.rand(6, 8)
ROWS = torch.tensor([0, 3, 4])
MASK = torch.tensor([True, False, True, False, False, True])
IMAGE = torch.rand(2, 4, 8, 8)
SEQUENCE = torch.rand(3, 5, 8)
ONES = {"kept": torch.ones(6, 8)}

# norms ----------------------------------------------------------------------------------------------------------------

_model("layer_norm, input upcast", norm=nn.LayerNorm(8))(lambda m, x: m.norm(m.fc(x).float()).to(x.dtype))
_model("layer_norm, parameters upcast too", norm=nn.LayerNorm(8))(
    lambda m, x: F.layer_norm(m.fc(x).float(), (8,), m.norm.weight.float(), m.norm.bias.float()).to(x.dtype)
)
_model("layer_norm", norm=nn.LayerNorm(8))(lambda m, x: m.norm(m.fc(x)))
_model("layer_norm without parameters, upcast")(lambda m, x: F.layer_norm(m.fc(x).float(), (8,)).to(x.dtype))
_model("layer_norm, weight as plain attribute", plain={"scale": torch.ones(8)})(
    lambda m, x: F.layer_norm(m.fc(x), (8,), m.scale)
)
_model("group_norm, input upcast", IMAGE, norm=nn.GroupNorm(2, 4))(lambda m, x: m.norm(x.to(torch.float32)))
_model("group_norm", IMAGE, norm=nn.GroupNorm(2, 4))(lambda m, x: m.norm(x))
_model("batch_norm, input upcast", IMAGE, norm=nn.BatchNorm2d(4))(lambda m, x: m.norm(x.type(torch.float32)))
_model("batch_norm", IMAGE, norm=nn.BatchNorm2d(4))(lambda m, x: m.norm(x))
_model("rms_norm, input upcast", norm=nn.RMSNorm(8))(lambda m, x: m.norm(m.fc(x).float()))
_model("norm written out, upcast and back")(
    lambda m, x: m.fc((x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x))
)
_model("norm written out, upcast and left")(
    lambda m, x: m.fc(x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6))
)

# products -------------------------------------------------------------------------------------------------------------


def _waves(t: Tensor, d: int) -> Tensor:
    angles = t[:, None] * torch.exp(-9.21 * torch.arange(d // 2, dtype=torch.float32) / (d // 2))
    return torch.cat((angles.cos(), angles.sin()), -1)


TIMES = torch.tensor([1, 20, 300, 4, 5, 6])
_model("sinusoid into linear", X, TIMES)(lambda m, x, t: x + m.fc(_waves(t, 8)))
_model("sinusoid into linear, cast", X, TIMES)(lambda m, x, t: x + m.fc(_waves(t, 8).to(x.dtype)))
_model("sinusoid cast like another", X, TIMES)(lambda m, x, t: x + m.fc(_waves(t, 8).type_as(x)))
_model("sinusoid added", X, TIMES)(lambda m, x, t: m.fc(x) + _waves(t, 8))
_model("sinusoid added before linear", X, TIMES)(lambda m, x, t: m.fc(x + _waves(t, 8)))
_model("float range into linear")(lambda m, x: m.fc(torch.arange(8.0)) + x)
_model("integer range times low into linear")(lambda m, x: m.fc(torch.arange(8) * x))
_model("plain attribute into linear", plain=ONES)(lambda m, x: m.fc(x * m.kept))
_model("buffer into linear")(lambda m, x: m.fc(x * m.table))
_model("buffer that is not saved into linear")(lambda m, x: m.fc(x + m.scratch))
_model("scalar tensor does not promote")(lambda m, x: m.fc(x * torch.tensor(2.0)))
_model("one-element tensor promotes")(lambda m, x: m.fc(x * torch.tensor([2.0])))
_model("matmul with plain attribute", plain=ONES)(lambda m, x: m.fc(x) @ m.kept.t())
_model("einsum with ones")(lambda m, x: torch.einsum("bi,ij->bj", m.fc(x), torch.ones(8, 8)))
_model("einsum with ones like")(lambda m, x: torch.einsum("bi,ij->bj", m.fc(x), torch.ones_like(x[:1]).expand(8, 8)))
_model("bmm with eye", SEQUENCE)(lambda m, x: torch.bmm(m.fc(x), torch.eye(8).expand(3, 8, 8)))
_model("bmm with eye of the format", SEQUENCE)(
    lambda m, x: torch.bmm(m.fc(x), torch.eye(8, dtype=x.dtype).expand(3, 8, 8))
)
_model("baddbmm, bias of zeros", SEQUENCE)(
    lambda m, x: torch.baddbmm(torch.zeros(3, 5, 5), m.fc(x), x.transpose(1, 2), beta=1.0)
)
_model("baddbmm, bias of new zeros", SEQUENCE)(
    lambda m, x: torch.baddbmm(x.new_zeros(3, 5, 5), m.fc(x), x.transpose(1, 2), beta=1.0)
)
_model("addmm, method, plain bias", plain={"bias": torch.ones(8)})(lambda m, x: m.bias.addmm(x, m.fc.weight))
_model("mv with hann window")(lambda m, x: m.fc(x).mv(torch.hann_window(8)))
_model("dot with the input")(lambda m, x: torch.dot(m.fc(x)[0], x[0]))
_model("conv, input upcast", IMAGE, conv=nn.Conv2d(4, 4, 3))(lambda m, x: m.conv(x.float()))
_model("conv", IMAGE, conv=nn.Conv2d(4, 4, 3))(lambda m, x: m.conv(x))
_model("conv with coordinates", IMAGE, conv=nn.Conv2d(5, 4, 3))(
    lambda m, x: m.conv(torch.cat((x, torch.linspace(-1, 1, 8).expand(2, 1, 8, 8)), 1))
)
_model("conv transposed, weight as plain attribute", IMAGE, plain={"kernel": torch.ones(4, 2, 3, 3)})(
    lambda m, x: F.conv_transpose2d(x, m.kernel)
)
_model("attention, query upcast", SEQUENCE)(lambda m, x: F.scaled_dot_product_attention(m.fc(x).float(), x, x))
_model("attention, mask left high", SEQUENCE)(
    lambda m, x: F.scaled_dot_product_attention(m.fc(x), m.fc(x), m.fc(x), attn_mask=torch.zeros(5, 5))
)
_model("bilinear, one input upcast", mix=nn.Bilinear(8, 8, 4))(lambda m, x: m.mix(x, x.float()))
_model("user's own cast to low and back")(lambda m, x: m.fc(x.to(torch.float16).to(x.dtype)))


def _outside(m: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        y: Tensor = m.fc(x.float())
    return y


_model("region of the user's switched off")(_outside)


# writes ---------------------------------------------------------------------------------------------------------------


@_model("index_put into zeros like", X, ROWS)
def _(m: Any, x: Tensor, rows: Tensor) -> Any:
    out = torch.zeros_like(x)
    out[rows] = m.fc(x[rows])
    return out


@_model("index_put into zeros", X, ROWS)
def _(m: Any, x: Tensor, rows: Tensor) -> Any:
    out = torch.zeros(6, 8)
    out[rows] = m.fc(x[rows])
    return out


@_model("index_put, cast to the destination", X, ROWS)
def _(m: Any, x: Tensor, rows: Tensor) -> Any:
    out = torch.zeros(6, 8)
    out[rows] = m.fc(x[rows]).to(out.dtype)
    return out


@_model("index_put of a number", X, ROWS)
def _(m: Any, x: Tensor, rows: Tensor) -> Any:
    out = m.fc(x).clone()
    out[rows] = 0.5
    return out


@_model("index_put of a tensor with one number", X, ROWS)
def _(m: Any, x: Tensor, rows: Tensor) -> Any:
    out = m.fc(x).clone()
    out[rows] = torch.tensor(0.5)
    return out


@_model("index_put by mask", X, MASK)
def _(m: Any, x: Tensor, mask: Tensor) -> Any:
    out = x.clone()
    out[mask] = m.fc(x[mask])
    return out


@_model("slice assignment converts")
def _(m: Any, x: Tensor) -> Any:
    out = torch.zeros(6, 8)
    out[:3] = m.fc(x[:3])
    return out


@_model("cache, plain attribute, index_copy", X, ROWS, plain={"cache": torch.zeros(6, 8)})
def _(m: Any, x: Tensor, rows: Tensor) -> Any:
    return m.cache.clone().index_copy_(0, rows, m.fc(x[rows]))


@_model("cache, buffer, index_copy", X, ROWS)
def _(m: Any, x: Tensor, rows: Tensor) -> Any:
    return m.scratch.clone().index_copy_(0, rows, m.fc(x[rows]))


@_model("index_copy out of place", X, ROWS)
def _(m: Any, x: Tensor, rows: Tensor) -> Any:
    return torch.index_copy(torch.zeros(6, 8), 0, rows, m.fc(x[rows]))


@_model("cache, sliced copy", plain={"cache": torch.zeros(6, 8)})
def _(m: Any, x: Tensor) -> Any:
    cache = m.cache.clone()
    cache[2:5].copy_(m.fc(x)[2:5])
    return cache


_model("index_put out of place", X, ROWS)(lambda m, x, r: torch.zeros_like(x).index_put((r,), m.fc(x[r])))
INDEX = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]])
_model("scatter into zeros", X, INDEX)(lambda m, x, i: torch.zeros(6, 8).scatter(0, i, m.fc(x[:1])))
_model("scatter into zeros like", X, INDEX)(lambda m, x, i: torch.zeros_like(x).scatter(0, i, m.fc(x[:1])))
_model("scatter of a number", X, INDEX)(lambda m, x, i: m.fc(x).scatter(0, i, 1.0))
_model("scatter_add into zeros", X, INDEX)(lambda m, x, i: torch.zeros(6, 8).scatter_add_(0, i, m.fc(x[:1])))
_model("scatter_add into new zeros", X, INDEX)(lambda m, x, i: x.new_zeros(6, 8).scatter_add_(0, i, x[:1]))
_model("scatter_reduce into ones", X, INDEX)(lambda m, x, i: torch.ones(6, 8).scatter_reduce(0, i, m.fc(x[:1]), "amax"))
_model("index_add into zeros", X, ROWS)(lambda m, x, r: torch.zeros(6, 8).index_add(0, r, m.fc(x[r])))
_model("index_add of the other", X, ROWS)(lambda m, x, r: m.fc(x).index_add(0, r, x[r]))
_model("masked_scatter into zeros", X, X > 0.5)(lambda m, x, k: torch.zeros(6, 8).masked_scatter(k, m.fc(x)))
_model("where converts", X, X > 0.5)(lambda m, x, k: torch.where(k, m.fc(x), torch.zeros(6, 8)))
_model("cat converts")(lambda m, x: torch.cat((m.fc(x), torch.zeros(6, 8)), -1))
_model("stack, then linear")(lambda m, x: m.fc(torch.stack((m.fc(x), torch.zeros(6, 8)))))
_model("lerp with the input")(lambda m, x: torch.lerp(m.fc(x), x, 0.5))
_model("prelu, slope as plain attribute", plain={"slope": torch.ones(8)})(lambda m, x: F.prelu(m.fc(x), m.slope))
_model("cross with ones")(lambda m, x: torch.linalg.cross(m.fc(x)[:, :3], torch.ones(6, 3)))

# state of recurrent layers, embeddings, losses ------------------------------------------------------------------------

_model("lstm, state of zeros", SEQUENCE, rnn=nn.LSTM(8, 4, batch_first=True))(
    lambda m, x: m.rnn(x, (torch.zeros(1, 3, 4), torch.zeros(1, 3, 4)))[0]
)
_model("lstm, state of new zeros", SEQUENCE, rnn=nn.LSTM(8, 4, batch_first=True))(
    lambda m, x: m.rnn(x, (x.new_zeros(1, 3, 4), x.new_zeros(1, 3, 4)))[0]
)
_model("lstm, default state", SEQUENCE, rnn=nn.LSTM(8, 4, batch_first=True))(lambda m, x: m.rnn(x)[0])
_model("gru, state of zeros", SEQUENCE, rnn=nn.GRU(8, 4, batch_first=True))(
    lambda m, x: m.rnn(x, torch.zeros(1, 3, 4))[0]
)
_model("gru, default state", SEQUENCE, rnn=nn.GRU(8, 4, batch_first=True))(lambda m, x: m.rnn(x)[0])
_model("gru cell, state of zeros", cell=nn.GRUCell(8, 4))(lambda m, x: m.cell(x, torch.zeros(6, 4)))
_model("lstm cell, default state", cell=nn.LSTMCell(8, 4))(lambda m, x: m.cell(x)[0])
_model("embedding by a float", X * 5, emb=nn.Embedding(9, 8))(lambda m, x: m.emb(x[:, 0].long()))
_model("embedding and weights of ones", ROWS, emb=nn.EmbeddingBag(9, 8, mode="sum"))(
    lambda m, i: m.emb(i[None], per_sample_weights=torch.ones(1, 3))
)
_model("cross entropy, plain class weights", X, TIMES % 8, plain={"classes": torch.ones(8)})(
    lambda m, x, t: F.cross_entropy(m.fc(x), t, weight=m.classes)
)
_model("cross entropy", X, TIMES % 8)(lambda m, x, t: F.cross_entropy(m.fc(x), t))
_model("mse against zeros")(lambda m, x: F.mse_loss(m.fc(x), torch.zeros(6, 8)))
_model("bce against ones")(lambda m, x: F.binary_cross_entropy(m.fc(x).sigmoid(), torch.ones(6, 8)))

# kernels --------------------------------------------------------------------------------------------------------------

_model("cdist")(lambda m, x: torch.cdist(m.fc(x), x))
_model("cdist, upcast")(lambda m, x: torch.cdist(m.fc(x).float(), x.float()).to(x.dtype))
_model("quantile")(lambda m, x: m.fc(x).quantile(0.5, dim=-1))
_model("median")(lambda m, x: m.fc(x).median(-1).values)
_model("cholesky")(lambda m, x: torch.linalg.cholesky(m.fc(x).t() @ m.fc(x) + torch.eye(8, dtype=x.dtype)))
_model("cholesky, upcast")(
    lambda m, x: torch.linalg.cholesky((m.fc(x).t() @ m.fc(x)).float() + torch.eye(8)).to(x.dtype)
)
_model("inverse, method")(lambda m, x: (m.fc(x).t() @ m.fc(x) + torch.eye(8, dtype=x.dtype)).inverse())
_model("determinant")(lambda m, x: torch.det(m.fc(x)[:4, :4] + 2 * torch.eye(4, dtype=x.dtype)))
_model("singular values")(lambda m, x: torch.linalg.svdvals(m.fc(x)))
_model("solve")(lambda m, x: torch.linalg.solve(m.fc.weight + 9 * torch.eye(8, dtype=x.dtype), x.t()))
_model("matrix power")(lambda m, x: torch.linalg.matrix_power(m.fc(x)[:4, :4], 3))
_model("fft")(lambda m, x: torch.fft.rfft(m.fc(x)).abs())
_model("fft, upcast")(lambda m, x: torch.fft.rfft(m.fc(x).float()).abs().to(x.dtype))
_model("stft", torch.rand(2, 64))(lambda m, x: torch.stft(x, 16, return_complex=True).abs())
_model("view as complex")(lambda m, x: torch.view_as_real(torch.view_as_complex(m.fc(x).unflatten(-1, (4, 2))) * 2))
_model("view as complex, upcast")(
    lambda m, x: torch.view_as_real(torch.view_as_complex(m.fc(x).float().unflatten(-1, (4, 2))) * 2).type_as(x)
)
_model("polar")(lambda m, x: torch.polar(m.fc(x).abs(), x).real)
_model("complex")(lambda m, x: torch.complex(m.fc(x), x).abs())
_model("resize, antialiased", IMAGE)(lambda m, x: F.interpolate(x, size=(5, 5), mode="bilinear", antialias=True))
_model("resize", IMAGE)(lambda m, x: F.interpolate(x, size=(5, 5), mode="bilinear"))
_model("special functions")(lambda m, x: torch.lgamma(m.fc(x).abs() + 1) + torch.erfinv(x * 0.5))
_model("cumulative")(lambda m, x: torch.logcumsumexp(m.fc(x), -1) + x.cumsum(-1))
_model("sorted")(lambda m, x: m.fc(x).sort(-1).values + x.topk(8).values)

# numbers that do not fit ----------------------------------------------------------------------------------------------

_model("masked_fill with -1e9", X, X > 0.5)(lambda m, x, k: m.fc(x).masked_fill(k, -1e9).softmax(-1))
_model("masked_fill with -1e4", X, X > 0.5)(lambda m, x, k: m.fc(x).masked_fill(k, -1e4).softmax(-1))
_model("masked_fill with -inf", X, X > 0.5)(lambda m, x, k: m.fc(x).masked_fill(k, -float("inf")))
_model("masked_fill with the lowest number", X, X > 0.5)(
    lambda m, x, k: x.masked_fill(k, torch.finfo(x.dtype).min).softmax(-1)
)
_model("full of -1e9 in the format")(lambda m, x: m.fc(x) + torch.full((8,), -1e9, dtype=x.dtype))
_model("full of -1e9")(lambda m, x: x + torch.full((8,), -1e9))
_model("addition of -1e9")(lambda m, x: m.fc(x) - 1e9)
