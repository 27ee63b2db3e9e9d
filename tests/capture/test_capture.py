"""Capture: what the records say about small models whose graphs are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from precision_audit.capture import Captured, capture, private_copy
from precision_audit.records import InputError
from precision_audit.rewrite import unchanged


class Convnet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.fc = nn.Linear(144, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn(self.conv(x)), inplace=True)
        return F.dropout(self.fc(x.flatten(1)), 0.5, self.training)


def captured(model: nn.Module, *args: Any, **options: Any) -> Captured:
    return capture(private_copy(model), args, **options)


def keys(result: Captured) -> list[str]:
    return [op.key for op in result.graph.ops if "/" in op.key]


def op(result: Captured, key: str) -> Any:
    return next(each for each in result.graph.ops if each.key == key)


def test_keys_name_module_op_and_occurrence() -> None:
    result = captured(Convnet(), torch.randn(2, 1, 8, 8))
    assert keys(result) == [
        "conv/conv2d#0", "bn/batch_norm#0", "/relu#0", "/flatten#0", "fc/linear#0", "/dropout#0",
    ]  # fmt: skip


def test_keys_survive_an_unrelated_layer() -> None:
    class Longer(Convnet):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(1, 1, 1)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(self.stem(x))

    short = captured(Convnet(), torch.randn(2, 1, 8, 8))
    longer = captured(Longer(), torch.randn(2, 1, 8, 8))
    assert [key for key in keys(longer) if not key.startswith("stem")] == keys(short)


def test_source_is_the_line_of_the_user() -> None:
    result = captured(Convnet(), torch.randn(2, 1, 8, 8))
    source = op(result, "bn/batch_norm#0").source
    assert source.file == __file__
    assert source.text == "x = F.relu(self.bn(self.conv(x)), inplace=True)"
    assert source.function == "forward"


def test_a_bare_sequential_has_no_line_but_a_path() -> None:
    result = captured(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(2, 4))
    assert op(result, "0/linear#0").source is None
    assert op(result, "1/relu#0").module == "1"


def test_modes_differ_where_the_model_does() -> None:
    training = captured(Convnet(), torch.randn(2, 1, 8, 8), mode="training")
    assert op(training, "bn/add#0").fixed == "integer"  # num_batches_tracked += 1
    assert dict(op(training, "/dropout#0").attributes)["train"] is True
    assert dict(op(captured(Convnet(), torch.randn(2, 1, 8, 8)), "/dropout#0").attributes)["train"] is False


def test_in_place_ops_share_a_class_with_what_they_write() -> None:
    result = captured(Convnet(), torch.randn(2, 1, 8, 8))
    assert ("bn/batch_norm#0", "/relu#0", "/flatten#0") in result.graph.aliases
    assert op(result, "/relu#0").mutates == "self"


def test_calls_of_one_module_are_told_apart() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.fc(x))

    assert keys(captured(Twice(), torch.randn(2, 4))) == ["fc/linear#0", "fc/linear#1"]


def test_named_dimensions_stay_symbolic_with_their_name() -> None:
    shapes = {"x": {0: torch.export.Dim("B")}}
    result = captured(Convnet(), torch.randn(6, 1, 8, 8), dynamic_shapes=shapes)
    assert op(result, "fc/linear#0").outputs[0].shape == ("B", 16)
    assert op(result, "fc/linear#0").outputs[0].hint == (6, 16)
    assert result.graph.symbols == (("B", 6),)
    assert unchanged({"inference": result})(torch.randn(3, 1, 8, 8)).shape == (3, 16)


def test_derived_sizes_are_expressions_of_the_names() -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x.reshape(-1, 4))

    shapes = {"x": {0: torch.export.Dim("B"), 1: torch.export.Dim("T")}}
    result = captured(Flat(), torch.randn(6, 5, 4), dynamic_shapes=shapes)
    assert op(result, "fc/linear#0").outputs[0].shape == ("B*T", 4)


class Literals(nn.Module):
    """One literal that follows the example's format and one of each kind that is the user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.fc(x)
        follows = y.masked_fill(y > 0, torch.finfo(y.dtype).min)
        own = y.masked_fill(y > 0, -1e9)
        zeros = torch.zeros(2, 4, dtype=x.dtype)
        return follows, own, zeros, y.to(x.dtype) * 2, y.to(torch.float32) * 2


def test_literals_follow_only_where_they_change_with_the_example() -> None:
    result = captured(Literals(), torch.randn(2, 4))
    seen = {each.key: each.follows for each in result.graph.ops if "/" in each.key}
    assert seen["/masked_fill#0"] and not seen["/masked_fill#1"]
    assert seen["/zeros#0"] and seen["/to#0"] and not seen["/to#1"]
    assert op(result, "/to#1").fixed == "explicit cast"
    assert op(result, "/to#0").fixed == ""


def test_a_model_that_asks_for_its_format_is_taken_as_written() -> None:
    class Asks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x = x.to(x.dtype)
            return x.exp() if x.dtype == torch.float32 else x

    result = captured(Asks(), torch.randn(2, 4))
    assert not any(each.follows for each in result.graph.ops)
    assert any("another path in fp64" in note for note in result.graph.notes)


class Regions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = self.a(x)
            with torch.autocast("cpu", enabled=False):
                z = self.b(x)
        with torch.no_grad():
            self.seen.add_(z.mean(0))
        return self.c(y.float() + z)


def test_regions_are_named_inside_and_kept() -> None:
    model, x = Regions(), torch.randn(2, 4)
    result = captured(model, x, mode="training")
    assert op(result, "a/linear#0").region == "autocast cpu bf16"
    assert op(result, "b/linear#0").region == "autocast cpu off"
    assert op(result, "c/linear#0").region == ""
    assert op(result, "a/linear#0").fixed == op(result, "b/linear#0").fixed == "region"
    assert op(result, "/add#0").fixed == "state"
    again = unchanged({"training": result})
    left, right = model.train()(x), again(x)
    assert torch.equal(left, right)
    left.sum().backward()
    right.sum().backward()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.grad, again.get_parameter(name).grad), name
    assert torch.equal(model.seen, again.get_buffer("seen"))


def test_tied_parameters_are_found_by_storage() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(8, 4)
            self.head = nn.Linear(4, 8, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.embed(ids))

    result = captured(Tied(), torch.randint(0, 8, (2, 3)))
    again = unchanged({"inference": result})
    assert again.get_parameter("embed.weight") is again.get_parameter("head.weight")
    assert set(again.state_dict()) == set(Tied().state_dict())


@dataclass
class Output:
    logits: Tensor
    extra: dict[str, Tensor]


def test_dataclass_and_dict_outputs_keep_their_structure() -> None:
    class Structured(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Output:
            return Output(self.fc(x), {"twice": x * 2})

    x = torch.randn(2, 4)
    out = unchanged({"inference": captured(Structured(), x)})(x)
    assert isinstance(out, Output) and torch.equal(out.extra["twice"], x * 2)


def test_multi_output_values_are_numbered() -> None:
    class Chunks(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            left, right = x.chunk(2, -1)
            values, indices = left.max(-1)
            return values, indices, right

    result = captured(Chunks(), torch.randn(2, 4))
    assert op(result, "/max#0").operands[0].value == "/chunk#0:0"
    assert result.graph.outputs == ("/max#0:0", "/max#0:1", "/chunk#0:1")
    assert [tensor.format for tensor in op(result, "/max#0").outputs] == ["fp32", "int64"]


def test_vmap_internals_stay_as_captured() -> None:
    class Mapped(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.vmap(lambda row: row * 2 + row.sum())(x)

    x = torch.randn(3, 4)
    result = captured(Mapped(), x)
    assert op(result, "/mul#0").fixed == "region"
    assert torch.equal(unchanged({"inference": result})(x), Mapped()(x))


def test_a_model_that_cannot_be_captured_names_the_line() -> None:
    class Numpy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.from_numpy(x.detach().numpy() + 1)

    with pytest.raises(InputError, match=r"test_capture\.py:\d+: return torch.from_numpy") as caught:
        captured(Numpy(), torch.randn(2))
    assert "\n" not in str(caught.value)


def test_the_users_module_is_not_changed() -> None:
    model = Convnet().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    capture(private_copy(model), (torch.randn(2, 1, 8, 8),), mode="inference")
    assert model.training and all(module.training for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("like", "fixed"), [("x", ""), ("w", ""), ("softmax", "explicit cast"), ("exact", "explicit cast")]
)
def test_a_cast_to_the_format_of_another_value_is_the_users_where_that_format_is(like: str, fixed: str) -> None:
    class Like(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(3))
            self.register_buffer("exact", torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            wide = x.float() + x.softmax(-1, dtype=torch.float32)
            others = {"x": x, "w": self.w, "softmax": x.softmax(-1, dtype=torch.float32), "exact": self.exact}
            return x.exp().type_as(others[like]) + wide

    assert op(captured(Like(), torch.randn(3)), "/type_as#0").fixed == fixed


class WideNorm(nn.Module):
    """As in transformers: the norm takes its input to fp32, which in an fp32 model is no cast at all."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kind = x.dtype
        wide = x.to(torch.float32)
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(kind)


def test_a_stream_is_read_itself_not_by_a_cast_that_changed_nothing() -> None:
    class Blocks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.fc, self.wide = WideNorm(), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            stream = self.wide(x)
            stream = stream + self.fc(self.norm(stream))
            own = stream.float()
            return stream, own, own * 2

    found = captured(Blocks(), torch.randn(2, 4))
    reads = {each.key: [operand.value for operand in each.operands] for each in found.graph.ops}
    assert reads["norm/to#0"] == ["wide/linear#0"]
    assert reads["/add#0"][0] == "wide/linear#0"  # not norm/to#0, which holds the same tensor in fp32
    assert reads["norm/pow#0"] == ["norm/to#0"]
    assert reads["/mul#0"] == ["/to#0"]  # what the code reads after the cast stays there
    assert found.graph.outputs == ("/add#0", "/to#0", "/mul#0")


def test_a_double_written_by_the_user_keeps_its_readers() -> None:
    class Own(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            wide = x.double()
            return x + (wide * 2).float()

    reads = {each.key: [o.value for o in each.operands] for each in captured(Own(), torch.randn(3)).graph.ops}
    assert reads["/add#0"] == ["x", "/to#1"]
    assert reads["/mul#0"] == ["/to#0"]


def square(x: torch.Tensor) -> torch.Tensor:
    return x * x


def test_an_op_in_a_function_of_the_users_is_found_where_it_is_written() -> None:
    class Helped(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.relu(square(x)) + 1

    sources = {each.key: each.source for each in captured(Helped(), torch.randn(3)).graph.ops}
    found = {key: (source.function, source.text) for key, source in sources.items() if source}
    assert found == {
        "/mul#0": ("square", "return x * x"),
        "/relu#0": ("forward", "return nn.functional.relu(square(x)) + 1"),
        "/add#0": ("forward", "return nn.functional.relu(square(x)) + 1"),
    }


def test_a_tensor_made_in_forward_follows_the_input_where_the_code_says_so() -> None:
    class Made(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.plain = torch.tensor([5.0, 6.0])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * torch.tensor([1.0, 0.5], dtype=x.dtype) + torch.tensor([3.0, 4.0]) + self.plain

    follows = {each.key: each.follows for each in captured(Made(), torch.randn(3, 2)).graph.ops}
    constants = {key: value for key, value in follows.items() if "/" not in key and key != "x"}
    assert constants == {"lifted_tensor_0": True, "lifted_tensor_1": False, "plain": False}
