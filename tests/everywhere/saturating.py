"""Models that leave the low range where it does not matter: what is infinite ends in a tanh or a clamp. An op
whose own result leaves the range is kept high all the same."""

from __future__ import annotations

import torch

from tests.everywhere.models import Two, model


@model(kept="mul tanh")
class CleanSaturateTanh(Two):
    def forward(self, x):
        return self.b(torch.tanh(x * 90000.0))

    @staticmethod
    def inputs():
        return (torch.randn(8, 32).sign() * (1 + torch.rand(8, 32)),)


@model(kept="pow sigmoid")
class CleanSaturateSigmoidOfSquare(Two):
    def forward(self, x):
        gate = torch.sigmoid((x * 400) ** 2)
        return gate * self.h(x)

    @staticmethod
    def inputs():
        return (torch.randn(8, 32).sign() * (1 + torch.rand(8, 32)),)


@model(kept="mul clamp")
class CleanSaturateClamp(Two):
    def forward(self, x):
        z = torch.clamp(x * 2.0e4 * 4.0, -6.0, 6.0)
        return self.h(z)

    @staticmethod
    def inputs():
        return (torch.randn(8, 32).sign() * (1 + torch.rand(8, 32)),)


@model(kept="pow mul erf")
class CleanSaturateErf(Two):
    def forward(self, x):
        return torch.erf(x.pow(3) * 1e4) * 0.5 + self.h(x)

    @staticmethod
    def inputs():
        return (torch.randn(8, 32).sign() * (1.5 + torch.rand(8, 32)),)


@model()
class CleanLogEndsInSigmoid(Two):
    """log 0 is -inf in fp16, of which the sigmoid is 0; so it is, all but, in fp32."""

    def forward(self, x, p):
        return torch.sigmoid(4 * torch.log(p * p + 1e-12)) + self.h(x)

    @staticmethod
    def inputs():
        p = torch.rand(8, 32)
        p[:, :6] = 0.0
        return torch.randn(8, 32), p


@model(kept="pow mul minimum")
class CleanMinimumWithOverflow(Two):
    def forward(self, x):
        penal = torch.minimum((x * 300).pow(2) * 3, torch.full_like(x, 24.0))
        return penal / 24 + self.h(x)

    @staticmethod
    def inputs():
        return (torch.randn(8, 32).sign() * (1 + torch.rand(8, 32)),)


@model(kept="pow atan")
class CleanAtanOfHuge(Two):
    def forward(self, x):
        return self.h(torch.atan((50 * x) ** 3))

    @staticmethod
    def inputs():
        return (torch.randn(8, 32).sign() * (1 + torch.rand(8, 32)),)


@model(kept="minimum")
class CleanHugeConstantUnused(Two):
    def __init__(self):
        super().__init__()
        self.register_buffer("cap", torch.tensor(1e6))

    def forward(self, x):
        return torch.minimum(self.h(x), self.cap)
