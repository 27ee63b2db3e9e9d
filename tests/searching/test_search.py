"""A search on models whose answer can be worked out; every run of a model is counted by the test itself."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import precision_audit as pa
from precision_audit import policy as policies
from precision_audit import quantise
from precision_audit.plan import file as plan_file
from precision_audit.records import InputError
from precision_audit.searching import evidence, solving
from tests.searching.small import BLACKWELL, Mlp, Scaled, rows, states, transformer, use


@pytest.fixture(autouse=True)
def _toy(monkeypatch):
    use(monkeypatch)


def error_of(module: nn.Module, model: nn.Module, *args: Tensor) -> float:
    """Relative L2 of the outputs, by definition."""
    with torch.no_grad():
        expected, made = model(*args).double(), module(*args).double()
    return float((made - expected).norm() / expected.norm())


def policy(*rules: str, low: str = "bf16") -> str:
    lines = "".join(f"  - {{{rule}}}\n" for rule in rules)
    return f"name: mine\nmode: inference\nformats: {{high: fp32, low: {low}}}\nrules:\n{lines}"


def test_a_plan_within_the_tolerance_where_all_fp16_fails():
    model, args = Scaled(), rows(256, 64, scale=20.0)
    with torch.no_grad():
        assert not torch.isfinite(model.half()(args[0].half())).all(), "all fp16 overflows"
    model = Scaled()
    found = pa.search(model, args, budget={"relative_l2": 0.01}, policy="search-fp16")
    assert found.met and found.runs >= 1
    assert error_of(found.module, model, *args) == pytest.approx(found.measured["relative_l2"], rel=1e-6)
    assert found.measured["relative_l2"] <= 0.01
    assert states(found)["/matmul#0"] == "fp16", "the product, where the time goes, runs low"
    stay = {place.op: place for place in found.search.high}
    assert {"/mul#1", "/div#0"} <= stay.keys(), "what holds more than 65,504 does not"
    assert stay["/mul#1"].source.text == "y = torch.matmul(x, self.weight) * 100 * 10" and "PA101" in stay["/mul#1"].why
    assert found.search.seconds < found.search.seconds_high


def test_another_budget_needs_no_new_evidence(monkeypatch):
    calls = Counter()
    for module, name in ((evidence, "analyse"), (evidence, "sensitivities"), (evidence, "captures_of")):
        real = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *a, _real=real, _name=name, **k: (calls.update([_name]), _real(*a, **k))[1]
        )
    found = pa.search(Mlp(), rows(64, 64), budget={"relative_l2": 1e-1})
    before = dict(calls)
    assert before == {"analyse": 2, "sensitivities": 1, "captures_of": 1}, "once per low format, the probes once"
    tight = found.again({"relative_l2": 1e-3})
    assert dict(calls) == before and tight.evidence is found.evidence and tight.evidence.passes == 1
    assert tight.met and tight.measured["relative_l2"] <= 1e-3
    assert tight.search.seconds >= found.search.seconds
    again = tight.again({"relative_l2": 1e-1})
    assert again.plan == found.plan, "one budget, one plan, whatever was asked before"


@pytest.mark.parametrize("budget", [1e-1, 1e-2, 2e-3, 3e-4, 5e-5, 1e-7])
def test_at_most_five_runs_and_all_are_counted(monkeypatch, budget):
    seen = Counter()
    real = solving.running.tried
    monkeypatch.setattr(solving.running, "tried", lambda *a: (seen.update(["runs"]), real(*a))[1])
    found = pa.search(transformer(), rows(2, 8, 32), budget={"relative_l2": budget})
    assert found.runs == seen["runs"] == len(found.search.trials) <= 5
    assert found.met and found.measured["relative_l2"] <= budget


def test_every_batch_counts():
    model = Scaled()
    example, larger = rows(64, 64, scale=1.0), rows(64, 64, scale=20.0)
    alone = pa.search(model, example, budget={"relative_l2": 1e-2}, policy="search-fp16")
    both = pa.search(model, example, calibration=[larger], budget={"relative_l2": 1e-2}, policy="search-fp16")
    assert not math.isfinite(error_of(alone.module, model, *larger)) or alone.plan == both.plan
    assert both.met and error_of(both.module, model, *larger) <= 1e-2


@pytest.mark.parametrize("budget", [3e-2, 1e-3, 1e-4])
def test_q_k_v_and_gate_up_get_the_same(budget):
    found = pa.search(transformer(), rows(2, 16, 32), budget={"relative_l2": budget})
    got = states(found)
    assert len({got[f"0.attention.{name}/linear#0"] for name in "qkv"}) == 1
    assert len({got[f"0.mlp.{name}/linear#0"] for name in ("gate", "up")}) == 1


@pytest.mark.parametrize("rule", ["class: keep-fp32", "class: 'pin:fp32'"])
def test_a_module_that_is_disabled_stays_out(rule):
    text = policy(f"name: out, module: '*layers.1', {rule}", "name: rest, class: follow")
    found = pa.search(Mlp(), rows(64, 64), budget={"relative_l2": 0.5}, policy=policies.parse(text))
    got = states(found)
    assert got["layers.1/linear#0"] == "fp32" and "fp32" not in (got["layers.0/linear#0"], got["head/linear#0"])
    (place,) = [each for each in found.search.high if each.op == "layers.1/linear#0"]
    assert "out" in place.why and place.module == "layers.1"


def test_a_member_of_a_group_that_is_disabled_takes_the_others_with_it():
    text = policy("name: out, module: '*.attention.k', class: keep-fp32", "name: rest, class: follow")
    found = pa.search(transformer(), rows(2, 16, 32), budget={"relative_l2": 0.5}, policy=policies.parse(text))
    assert {states(found)[f"0.attention.{name}/linear#0"] for name in "qkv"} == {"fp32"}


def test_an_infeasible_budget_is_reported_with_what_can_be_reached():
    text = policy("name: all, class: 'pin:bf16'")
    model, args = Mlp(), rows(64, 64)
    found = pa.search(model, args, budget={"relative_l2": 1e-6}, policy=policies.parse(text))
    assert not found.met and found.search.outcome == "not met" and found.report.verdict == "NOT READY"
    assert found.runs == 1
    assert found.measured["relative_l2"] == pytest.approx(error_of(found.module, model, *args), rel=1e-6)
    assert 1e-3 < found.measured["relative_l2"] < 3e-2, "what bf16 costs"
    assert any("pins" in note for note in found.search.notes)


def test_nothing_low_keeps_to_a_budget_below_every_rounding():
    found = pa.search(Mlp(), rows(64, 64), budget={"relative_l2": 1e-9})
    assert found.search.outcome == "nothing low" and found.met and set(states(found).values()) == {"fp32"}
    assert torch.equal(found.module(*rows(64, 64)), Mlp()(*rows(64, 64)))


def test_everything_low_is_said_to_keep_to_it():
    found = pa.search(Mlp(), rows(64, 64), budget={"relative_l2": 0.9}, policy="search-bf16")
    assert found.runs == 1 and any("fastest plan" in note for note in found.search.notes)
    assert set(found.plan.formats) and not found.search.high


class Noisy(nn.Module):
    """Another answer at every call, whatever the seed."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 64)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(x)
        return y


def test_noise_of_the_reference_above_the_budget(monkeypatch):
    real = solving.running._outputs
    calls = Counter()

    def noisy(*args):
        calls.update(["n"])
        return real(*args) * (1 + 1e-2 * calls["n"])

    monkeypatch.setattr(solving.running, "_outputs", noisy)
    found = pa.search(Noisy(), rows(8, 64), budget={"relative_l2": 1e-4})
    assert not found.met and any("differs from itself" in note for note in found.search.notes)


class Classes(nn.Module):
    """A decision after the float output."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * 2).argmax(-1)


class Scalar(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(x).sum()
        return y


class Whole(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1


def raises(model):
    raise RuntimeError("no data")


INTEGERS = (torch.arange(8),)


@pytest.mark.parametrize(
    ("model", "args", "budget", "metric", "said"),
    [
        (Classes(), rows(8, 64), {"relative_l2": 1e-2}, None, "no output is a float"),
        (Classes(), rows(8, 64), {"argmax_flip": 1e-2}, None, "no output has rows of classes"),
        (Scalar(), rows(8, 64), {"argmax_flip": 1e-2}, None, "no output has rows of classes"),
        (Mlp(), rows(8, 64), {"metric": 1}, raises, "metric raises fails on the model itself: RuntimeError: no data"),
        (Mlp(), rows(8, 64), {"metric": 1}, lambda model: "good", "metric returned a str; expected a number"),
        (Mlp(), rows(8, 64), {"metric": 1}, lambda model: torch.ones(3), "a tensor of shape [3]; expected a number"),
        (Mlp(), rows(8, 64), {"metric": 1}, lambda model: math.nan, "of the model itself is nan"),
        (
            Mlp(),
            rows(8, 64),
            {"metric": "1%"},
            lambda model: 0.0,
            "of the model's own metric, which is 0",
        ),
        (Mlp(), rows(8, 64), {lambda a, b: None: 1}, None, "returned a NoneType; expected a number"),
        (Mlp(), rows(8, 64), {lambda a, b: math.nan: 1}, None, "is nan; expected a number"),
        (Mlp(), rows(8, 64), {lambda a, b: a.missing: 1}, None, "fails on the model's own outputs: AttributeError"),
        (Whole(), INTEGERS, {lambda a, b: 0.0: 1}, None, "no op of this model is free to run in another format"),
    ],
)
def test_what_cannot_be_searched_is_refused_in_one_line(model, args, budget, metric, said):
    with pytest.raises(InputError) as error:
        pa.search(model, args, budget=budget, metric=metric)
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "said"), [("amp-cuda-bf16", "reproduces torch.autocast"), ("fp32", "keeps every op in fp32")]
)
def test_policies_that_leave_nothing_to_search(name, said):
    with pytest.raises(InputError, match=said):
        pa.search(Mlp(), rows(8, 64), policy=name)


def test_a_metric_judges():
    """The number is the largest logit's distance from the captured model's: known, since the test computes it."""
    model, args = Mlp(), rows(64, 64)
    with torch.no_grad():
        expected = model(*args)

    def largest(module: nn.Module) -> float:
        return float((module(*args) - expected).abs().max().detach())

    loose = pa.search(model, args, budget={"metric": 1.0}, metric=largest)
    bound = loose.measured["metric"] / 20
    tight = loose.again({"metric": bound})
    assert tight.met and tight.measured["metric"] <= bound and tight.search.seconds >= loose.search.seconds
    assert largest(tight.module) == pytest.approx(tight.measured["metric"])
    assert tight.runs <= 5


def test_all_budgets_must_hold():
    def far(expected: Tensor, made: Tensor) -> float:
        return float((expected - made).abs().max())

    found = pa.search(Mlp(), rows(64, 64), budget={"relative_l2": 1e-1, "sqnr": 60, far: 1e-2})
    assert found.met and found.measured["sqnr"] >= 60 and found.measured["far"] <= 1e-2
    assert [each.name for each in found.search.bounds] == ["relative_l2", "sqnr", "far"]


def test_flips_are_counted():
    model, args = Mlp(), rows(512, 64)
    found = pa.search(model, args, budget={"argmax_flip": 1e-3})
    with torch.no_grad():
        flips = (model(*args).argmax(-1) != found.module(*args).argmax(-1)).float().mean()
    assert found.met and found.measured["argmax_flip"] == pytest.approx(float(flips)) and float(flips) <= 1e-3


class Floored(nn.Module):
    """No gradient passes the floor."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.before, self.after = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.after(torch.floor(8 * self.before(x)))
        return y


def test_what_no_gradient_tells_is_measured_or_high():
    model, args = Floored(), rows(256, 64)
    found = pa.search(model, args, budget={"relative_l2": 1e-3})
    assert found.met and error_of(found.module, model, *args) <= 1e-3
    assert states(found)["before/linear#0"] == "fp32", "a step of the floor is more than the budget"
    why = {place.op: place.why for place in found.search.high}["before/linear#0"]
    assert "unknown" in why or "rule PA" in why


def test_the_users_model_is_not_changed_and_the_random_state_neither():
    model = transformer()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    pa.search(model, rows(2, 8, 32), budget={"relative_l2": 1e-3})
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_the_same_search_gives_the_same_report():
    texts = [
        pa.report.render(pa.search(transformer(), rows(2, 8, 32), budget={"relative_l2": 1e-3}).report, form)
        for form in ("json", "json")
    ]
    assert texts[0] == texts[1]


def test_a_found_plan_can_be_written_and_applied(tmp_path):
    model, args = transformer(), rows(2, 16, 32)
    found = pa.search(model, args, budget={"relative_l2": 5e-2}, built_only=True)
    plan_file.write(found.plan, tmp_path / "plan.yaml")
    made = pa.convert(model, args, policy=found.plan.policy, apply_plan=tmp_path / "plan.yaml", device="h100")
    assert torch.equal(made.module(*args), found.module(*args))


def test_fp8_is_chosen_where_it_pays_and_the_budget_allows_it():
    model, args = transformer(64), rows(2, 64, 64)
    loose = pa.search(model, args, budget={"relative_l2": 0.1}, built_only=True)
    assert loose.plan.swaps and loose.met and loose.search.swapped and loose.search.emulated == ("fp8",)
    assert error_of(loose.module, model, *args) == pytest.approx(loose.measured["relative_l2"], rel=1e-3)
    some = loose.again({"relative_l2": loose.measured["relative_l2"] * 0.7})
    assert 0 < len(some.plan.swaps) < len(loose.plan.swaps) and some.met
    none = loose.again({"relative_l2": 3e-4})
    assert not none.plan.swaps and none.met
    assert loose.search.seconds < some.search.seconds < none.search.seconds


def test_fp4_is_planned_emulated_and_said(monkeypatch):
    use(monkeypatch, BLACKWELL)
    model, args = transformer(64), rows(2, 64, 64)
    found = pa.search(model, args, budget={"relative_l2": 0.5})
    assert {swap.recipe for swap in found.plan.swaps} == {"nvfp4"} and found.search.emulated == ("nvfp4",)
    assert error_of(found.module, model, *args) == pytest.approx(found.measured["relative_l2"], rel=1e-3)
    assert "nvfp4 emulated" in pa.report.render(found.report, "full")
    linear, by_table = nn.Linear(64, 64), dict(found.module.named_modules())["0.attention.q"]
    linear.load_state_dict({"weight": by_table.weight.detach(), "bias": by_table.bias.detach()})
    x = rows(32, 64)[0].bfloat16()
    expected = quantise.product(x, linear.weight.detach().bfloat16(), linear.bias.detach(), "nvfp4").float()
    assert float((by_table(x).detach().float() - expected).norm() / expected.norm()) < 1e-2, (
        "our emulation and torchao's"
    )


def test_fp4_that_the_device_lacks_is_not_planned():
    found = pa.search(transformer(64), rows(2, 64, 64), budget={"relative_l2": 0.5})
    assert found.plan.swaps and not any("fp4" in swap.recipe for swap in found.plan.swaps)


@pytest.mark.parametrize("policy", ["search-bf16", "search-bf16-training"])
def test_costs_in_the_report_are_those_of_the_search(policy):
    found = pa.search(transformer(), rows(2, 16, 32), budget={"relative_l2": 2e-2}, policy=policy)
    cost = found.report.cost
    assert cost.seconds - cost.update_seconds == pytest.approx(found.search.seconds)
    assert cost.seconds_high - cost.update_seconds == pytest.approx(found.search.seconds_high)
    assert bool(cost.update_seconds) == (policy == "search-bf16-training")


def test_training_mode_keeps_outputs_to_the_budget_and_gradients_are_verified_by_convert(tmp_path):
    model, args = transformer(), rows(2, 16, 32)
    found = pa.search(model, args, budget={"relative_l2": 5e-3}, policy="search-bf16-training")
    assert found.met and found.measured["relative_l2"] <= 5e-3 and found.module.training
    assert {each.dtype for each in found.module.parameters()} == {torch.float32}
    assert any("gradients" in note for note in found.search.notes)
    (towards,) = rows(2, 16, 32, seed=3)
    (model(*args) * towards).sum().backward()
    (found.module(*args) * towards).sum().backward()
    made = dict(found.module.named_parameters())
    expected = torch.cat([each.grad.flatten() for _, each in model.named_parameters()])
    gradients = torch.cat([made[name].grad.flatten() for name, _ in model.named_parameters()])
    assert float((gradients - expected).norm() / expected.norm()) < 2**-3, "a rounding of e5m2 each"
    plan_file.write(found.plan, tmp_path / "plan.yaml")
    done = pa.convert(model, args, policy=found.plan.policy, apply_plan=tmp_path / "plan.yaml", device="h100")
    assert done.report.verification.gradients and all(each.passed for each in done.report.verification.gradients)


def later(first: float, then: Any):
    """A metric that is a number of the captured model, and then something else."""
    asked = []

    def metric(model: nn.Module) -> float:
        asked.append(model)
        if len(asked) == 1:
            return first
        if isinstance(then, Exception):
            raise then
        return then

    return metric


@pytest.mark.parametrize(
    ("then", "said"),
    [(RuntimeError("disk full"), "raised RuntimeError: disk full"), (math.nan, "metric of a plan that")],
)
def test_a_metric_that_fails_on_a_plan_rules_the_plan_out_and_is_said(then, said):
    found = pa.search(Mlp(), rows(8, 64), budget={"metric": 1.0}, metric=later(1.0, then))
    assert found.search.outcome == "nothing low" and found.met and found.measured["metric"] == 1.0
    assert any(said in note for note in found.search.notes)


def test_a_metric_that_returns_text_on_a_plan_is_refused():
    with pytest.raises(InputError, match="metric returned a str; expected a number"):
        pa.search(Mlp(), rows(8, 64), budget={"metric": 1.0}, metric=later(1.0, "good"))


def test_a_function_that_the_model_itself_does_not_keep():
    def one(expected: Tensor, made: Tensor) -> float:
        return 1.0

    found = pa.search(Mlp(), rows(8, 64), budget={one: 0.5})
    assert not found.met and found.measured == {"one": 1.0}


def test_a_recipe_that_the_device_lacks_is_said():
    rule = "name: linears, op: linear, class: fp8-eligible, backend: torchao_quantize, recipe: nvfp4"
    text = policy(rule, "name: rest, class: follow")
    found = pa.search(Mlp(), rows(64, 64), budget={"relative_l2": 0.5}, policy=policies.parse(text))
    assert not found.plan.swaps and found.met
    assert any("linears: nvfp4 needs compute capability 10.0" in note for note in found.search.notes)
