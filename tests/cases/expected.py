"""What the audit has to say of each case, written down by reading the case and nothing else.

`CULPRITS`: the line of the case that holds the culprit's code, by a piece of its text (several where the same mistake
is made on several lines). `LATER`: cases whose failure lies in sizes, which the tests of backends look at; they
are still captured and converted, under the policy named. `BACKWARD`: cases that fail in the backward alone, judged by
their gradients. `ALL_KEPT`: cases where nothing that computes lies outside
the list of what must stay fp32, so that "half of the rest runs low" says nothing. `CHEAPER_HIGH`: cases where an op
outside that list has only fp32 around it, so that running it low would add casts and save nothing.
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from types import ModuleType

_FP8 = ("fp8-train", "fp8-cast", "fp8-storage")  # no shipped policy does these: see the files
POLICIES = {"fp16": "fp16-inference", "bf16": "bf16-inference", "autocast-bf16": "amp-cpu-bf16"} | {
    mode: str(Path(__file__).parent / "policies" / f"{mode}.yaml") for mode in _FP8
}

CULPRITS: dict[str, tuple[str, ...]] = {
    "c01": ("r = (x + self.wo(h)).float()",),
    "c03": ("att = torch.matmul(self.q(x), self.k(x)",),
    "c06": ("return 0.5 * h * (1.0 + torch.tanh(",),
    "c07": ("return self.weight * (x * torch.rsqrt(",),
    "c09": ("norm = torch.sqrt((x * x).sum(",),
    "c10": ("return torch.matmul(att.masked_fill(~keep, -1e9)",),
    "c12": ("s = s + torch.where(ok",),
    "c14": ("(1.0 - mask[:, None, :]) * self.penalty",),
    "c15": ("e = torch.exp(",),
    "c18": ("inter = (p * target).sum(", "(p.sum((1, 2, 3)) + target.sum("),
    "c20": (".abs().sum(-1)",),
    "c23": ("return F.normalize(F.relu(",),
    "c25": ("torch.sqrt(v + 1e-12)",),
    "c27": ("return torch.log(wh + 1e-8)",),
    "c30": ("return F.binary_cross_entropy(torch.sigmoid(",),
    "c31": ("return 1.0 - torch.exp(torch.log1p(",),
    "c33": ("return torch.linalg.vector_norm(",),
    "c35": ("return rotate(self.fc(x), t * self.inv_freq)",),
    "c38": ("ang = t.unsqueeze(-1) * self.freqs",),
    "c40": ("return self.emb(ids) + 0.1",),
    "c41": ("return F.grid_sample(",),
    "c44": ("return (x - a * self.eps(x)) / (1.0 - a)",),
    "c47": ("- mean.pow(2)",),
    "c49": ("return torch.sqrt(d2 + 1e-6)",),
    "c61": ("s = torch.sigmoid(self.head(",),
    "c63": ("return logits, logits.argmax(-1)",),
    "c64": ("return torch.exp(torch.gather(",),
    "c66": ("out[rows] = self.fc(x[rows])",),
    "c69": ("return self.norm(h.to(torch.float32))",),
    "c70": ("return x + self.proj(",),
    "c73": ("y, _ = self.rnn(x",),
    "c74": ("return torch.mm(g, w), torch.mm(g.t(), x)",),  # raises there; the call is named in the message
    "c76": ("h = torch.view_as_complex(",),
    "c78": ("L = torch.linalg.cholesky(cov)",),
    "c80": ("p = F.interpolate(self.pos",),
    "c83": ("return self.head(torch.tanh(self.fc(self.emb(ids))))",),
    "c87": ("return self.norm(self.down(h))",),
    "c88": ("return self.fc(x)",),
    "c90": ("return self.fc(n * self.weight)",),
    "c92": ("return F.grid_sample(",),
}

# case → (policy to convert it under, what is needed before anything can be said of it)
LATER: dict[str, tuple[str, str]] = {}

# cases whose forward is right and whose gradients are not, and the policy that does what their naive conversion does
BACKWARD: dict[str, str] = {
    "c06": "fp16-training",
    "c31": "bf16-training",
    "c33": "fp16-training",
    "c74": "amp-cpu-bf16",
}

# case → (policy to convert it under, rules that must speak, culprit's line). What fails is no output but a gradient,
# an update or a buffer: `test_training_cases` has their tests.
TRAINING: dict[str, tuple[str, tuple[str, ...], str]] = {
    "c51": ("bf16-training", ("PA605",), "self.count.add_(1.0)"),
    "c53": ("amp-cpu-fp16", ("PA101", "PA606"), ""),  # nn.Sequential has no line of the user's
    "c54": ("fp16-training", ("PA604",), "return torch.optim.Adam("),
    "c56": ("bf16-training", ("PA603",), "return torch.optim.SGD("),
    "c59": ("fp16-training", ("PA601",), "return self.b(torch.tanh(self.a(x)))"),
}

# case → (policy to convert it under, rule that must speak, culprit's line). fp8: what fails is a kernel of the device,
# which a CPU does not have; `test_fp8_cases` has their tests.
FP8: dict[str, tuple[str, str, str]] = {
    "c85": ("fp8-training-hopper", "PA401", "return self.head(F.relu(self.body(x)))"),
}

ALL_KEPT = frozenset({"c47", "c49", "c63", "c64", "c88", "c92"})

CHEAPER_HIGH = {
    "c27": "two differences of four numbers, of fp32 inputs and read by a division that is kept",
    "c41": "grid_sample of two tensors that the user's own code casts to fp32, returned as fp32",
    "c78": "the ridge 0.1 * eye that is added to a covariance that is kept",
    "c80": "an fp32 input plus a resized grid that is kept: their sum takes one cast, they would take two",
}


# case → op that its `safe` has in fp32 although `must_keep_fp32` names only what makes its operands
ALSO_KEPT = {"c41": "grid_sampler"}


def names() -> tuple[str, ...]:
    """Module names of all cases and controls, by listing the folder."""
    found = (entry.name for entry in pkgutil.iter_modules([str(Path(__file__).parent)]))
    return tuple(sorted(name for name in found if name[0] in "ck" and name[1:3].isdigit()))


def short(name: str) -> str:
    """`c07` of `c07_rmsnorm_square_overflow`."""
    return name.partition("_")[0]


def load(name: str) -> ModuleType:
    return importlib.import_module(f"{__package__}.{name}")


def naive_policy(name: str) -> str:
    """The policy that does what the case's naive conversion does; "" for a control."""
    if short(name) in LATER:
        return LATER[short(name)][0]
    if short(name) in BACKWARD:
        return BACKWARD[short(name)]
    if short(name) in TRAINING:
        return TRAINING[short(name)][0]
    if short(name) in FP8:
        return FP8[short(name)][0]
    if short(name) == "c83":  # its own converter, which is cast to bf16 module by module
        return "bf16-inference"
    return POLICIES.get(load(name).EXPECT["naive"], "")


def everywhere_policy(name: str) -> str:
    """The policy without classes that does what the case's naive conversion does; "" where that is no cast."""
    mode = "bf16" if short(name) == "c83" else load(name).EXPECT["naive"]
    return f"{mode}-everywhere" if mode in ("fp16", "bf16") and short(name) in CULPRITS else ""


def safe_everywhere(name: str) -> tuple[str, ...]:
    """The policies without classes that must not condemn the case."""
    return tuple(f"{mode}-everywhere" for mode in load(name).EXPECT["safe_modes"] if mode in ("fp16", "bf16"))


def safe_policies(name: str) -> tuple[str, ...]:
    """The policies that must not condemn the case; controls and cases of the backward in training too. None of ours
    quantises weights alone."""
    if short(name) in LATER:
        return ()
    modes = load(name).EXPECT["safe_modes"]
    training = [f"{mode}-training" for mode in modes if mode in ("fp16", "bf16")]
    trained = training if name[0] == "k" or short(name) in BACKWARD else []
    return (*(POLICIES[mode] for mode in modes if mode in POLICIES), *trained)


def culprit_lines(name: str) -> tuple[int, ...]:
    """Numbers of the culprit's lines, from the text of the case."""
    lines = Path(str(load(name).__file__)).read_text(encoding="utf-8").splitlines()
    found = []
    for piece in CULPRITS[short(name)]:
        numbers = [number for number, text in enumerate(lines, 1) if piece in text]
        assert len(numbers) == 1, f"{name}: {piece!r} is on {len(numbers)} lines"
        found += numbers
    return tuple(found)
