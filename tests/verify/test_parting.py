"""The first op at which two runs part, on exported models and on hand-made records."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx, nn

from precision_audit.records import Graph, Op, Operand
from precision_audit.records import Tensor as Shape
from precision_audit.rewrite.converted import Converted, side
from precision_audit.verify.parting import Sketch, distance, find, first_parting, sketch, values

INF = float("inf")


@pytest.mark.parametrize("count", [1, 509, 510, 4096, 100_003])
@pytest.mark.parametrize("spoil", ["everywhere", "one column", "one element"])
def test_sketches_estimate_the_distance(count: int, spoil: str) -> None:
    generator = torch.Generator().manual_seed(count)
    value = torch.randn(count, generator=generator)
    change = torch.zeros(count)
    if spoil == "everywhere":
        change = torch.randn(count, generator=generator)
    elif spoil == "one column":
        change[::256] = 1
    else:
        change[0] = 1
    other = value + 0.01 * change
    truth = float((other.double() - value.double()).norm() / value.double().norm())
    # the estimate's relative deviation is √(2/509) in the square: five of them, 16 % in the root
    assert distance(sketch(value), sketch(other)) == pytest.approx(truth, rel=0.16)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.int64, torch.bool])
def test_equal_values_have_equal_sketches_in_every_format(dtype: torch.dtype) -> None:
    value = (torch.arange(3000) % 2).to(dtype)
    assert distance(sketch(value.float()), sketch(value)) == 0


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([1.0, INF], [1.0, INF], 0.0),
        ([1.0, float("nan")], [7.0, float("nan")], 6.0),  # the finite part still counts
        ([1.0, 1.0], [1.0, INF], INF),
        ([1.0, -INF], [1.0, -3e38], 0.0),
        ([1.0, INF, 1.0], [INF, 1.0, INF], 0.0),  # not finite in both, elsewhere: not the op's fault
    ],
)
def test_values_that_are_not_finite(one: list[float], other: list[float], expected: float) -> None:
    assert distance(sketch(torch.tensor(one)), sketch(torch.tensor(other))) == expected


def _graph(*rows: tuple[str, tuple[str, ...], str], aliases: tuple[tuple[str, ...], ...] = ()) -> Graph:
    shape = (Shape("fp32", (2,), (2,)),)
    ops = tuple(
        Op(
            key,
            "",
            key,
            "",
            "",
            "",
            tuple(Operand(value, f"a{i}") for i, value in enumerate(inputs)),
            shape,
            mutates=into,
        )
        for key, inputs, into in rows
    )
    return Graph(ops, (), "inference", aliases)


def _sketches(**apart: float) -> tuple[dict[str, Sketch], dict[str, Sketch]]:
    def of(difference: float) -> Sketch:
        return Sketch(torch.tensor([1.0 + difference]), 1.0, (0, 0))

    keys = {name.replace("_", "/"): difference for name, difference in apart.items()}
    return {key: of(0.0) for key in keys}, {key: of(difference) for key, difference in keys.items()}


IN_PLACE = (("x", (), ""), ("/a", ("x",), ""), ("/r", ("/a",), "a0"), ("/c", ("/a",), ""))
CHAIN = (("x", (), ""), ("/a", ("x",), ""), ("/b", ("/a",), ""), ("/c", ("/b",), ""))


@pytest.mark.parametrize(
    ("rows", "apart", "expected"),
    [
        (CHAIN, {"x": 0, "_a": 0, "_b": 0.5, "_c": 0.5}, "/b"),
        (CHAIN, {"x": 0, "_a": 0.04, "_b": 0.06, "_c": 0.5}, "/b"),  # errors that add up: where they pass the tolerance
        (CHAIN, {"x": 0, "_a": 0, "_b": 0, "_c": 0}, ""),
        (CHAIN, {"x": 0.5, "_a": 0.5, "_b": 0.5, "_c": 0.5}, "x"),  # a weight that overflowed when it was stored low
        (CHAIN, {"x": 0, "_c": 0.5}, "/c"),  # ops that were not recorded are as their inputs
        ((*CHAIN, ("/d", ("x",), "")), {"x": 0, "_a": 0.5, "_b": 0.5, "_d": 0.5}, "/a"),
        (IN_PLACE, {"x": 0, "_a": 0, "_r": 0.5, "_c": 0.5}, "/r"),
    ],
)  # fmt: skip
def test_first_parting(
    rows: tuple[tuple[str, tuple[str, ...], str], ...], apart: dict[str, float], expected: str
) -> None:
    reference, converted = _sketches(**apart)
    assert first_parting(_graph(*rows), reference, converted, tolerance=0.05) == expected


def test_an_in_place_op_taints_what_shares_memory_with_its_target() -> None:
    rows = (("x", (), ""), ("/v", ("x",), ""), ("/w", ("/v",), "a0"), ("/c", ("x",), ""))
    reference, converted = _sketches(x=0, _v=0, _w=0.5, _c=0.5)
    del reference["/w"], converted["/w"]  # seen only by its effect
    clean = first_parting(_graph(*rows), reference, converted, 0.05)
    assert clean == "/c"
    reference, converted = _sketches(x=0, _v=0, _w=0.5, _c=0.5)
    assert first_parting(_graph(*rows, aliases=(("x", "/v"),)), reference, converted, 0.05) == "/w"


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor, *, mask: Tensor, more: dict[str, Tensor]) -> dict[str, Tensor]:
        self.calls.add_(1)
        x = self.first(x).relu_() * mask
        left, right = torch.split(x + more["k"], 4, -1)
        return {"y": self.second(torch.dropout(torch.cat([right, left], -1), 0.5, True)), "left": left}


def _exported() -> tuple[fx.GraphModule, tuple[tuple[Tensor], dict[str, object]]]:
    torch.manual_seed(0)
    batch = ((torch.randn(3, 8),), {"more": {"k": torch.randn(8)}, "mask": torch.ones(3, 8)})
    example = {"mask": torch.ones(3, 8), "more": {"k": torch.ones(8)}}
    module = copy.deepcopy(torch.export.export(Model(), (torch.zeros(3, 8),), example, strict=False).module())
    for node in list(module.graph.nodes):
        if node.target == "_guards_fn":
            module.graph.erase_node(node)
        elif node.op != "output" and "getitem" not in node.name:
            node.meta["op_key"] = node.name if node.op in ("placeholder", "get_attr") else f"/{node.name}"
    module.recompile()
    return module, batch


def _records(module: fx.GraphModule) -> Graph:
    def value(node: fx.Node) -> str:
        if "getitem" in node.name:
            return f"{value(node.args[0])}:{node.args[1]}"
        return str(node.meta["op_key"])

    ops = []
    for node in module.graph.nodes:
        if "op_key" not in node.meta:
            continue
        number = 2 if node.name == "split" else 1
        operands = tuple(Operand(value(each), "self" if i == 0 else "") for i, each in enumerate(node.all_input_nodes))
        shapes = (Shape("fp32", (), ()),) * number
        ops.append(
            Op(value(node), "", "", "", "", "", operands, shapes, mutates="self" if node.name.endswith("_") else "")
        )
    return Graph(tuple(ops), (), "training")


def _spoil(name: str) -> Callable[[fx.GraphModule], None]:
    def change(module: fx.GraphModule) -> None:
        node = next(node for node in module.graph.nodes if node.name == name)
        with module.graph.inserting_after(node):
            spoilt = module.graph.call_function(torch.ops.aten.mul.Tensor, (node, 1.5))
        node.replace_all_uses_with(spoilt, delete_user_cb=lambda user: user is not spoilt)
        module.recompile()

    return change


@pytest.mark.parametrize(
    ("spoilt", "expected"),
    [("linear", "/relu_"), ("mul", "/add"), ("getitem_1", "/cat"), ("dropout", "/linear_1"), ("x", "/linear")],
)
def test_the_op_that_reads_a_spoilt_value_is_found(spoilt: str, expected: str) -> None:
    """The spoiling node has no key of its own, so the first op seen to differ is its reader."""
    module, batch = _exported()
    other = copy.deepcopy(module)
    _spoil(spoilt)(other)
    assert find(_records(module), module, other, batch=batch, tolerance=0.05) == expected
    assert float(module.calls) == 0


def test_equal_modules_do_not_part() -> None:
    module, batch = _exported()
    assert find(_records(module), module, copy.deepcopy(module), batch=batch, tolerance=0.0) == ""


def test_values_are_taken_before_they_change_in_place() -> None:
    module, batch = _exported()
    seen = values(module, batch)
    with torch.no_grad():
        before = nn.functional.linear(batch[0][0], module.first.weight, module.first.bias)
    assert torch.allclose(seen["/linear"].sums, before.reshape(-1).double())
    assert torch.allclose(seen["/relu_"].sums, before.relu().reshape(-1).double())
    assert {"/split:0", "/split:1"} <= seen.keys()


def test_a_converted_module_is_read_like_a_graph_module() -> None:
    module, batch = _exported()
    flat: dict[fx.Node, fx.Node] = {}
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, flat))
    codegen = module.graph._codegen.pytree_info
    converted = Converted(module, {"training": side(graph, codegen.in_spec, codegen.out_spec)})
    assert find(_records(module), module, converted, batch=batch, tolerance=0.0) == ""
    converted.second = copy.deepcopy(converted.second)
    with torch.no_grad():
        converted.second.weight[:] = 1
    assert find(_records(module), module, converted, batch=batch, tolerance=0.05) == "second_weight"


def test_an_op_that_cannot_run_parts() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x + 1) @ x

    reference = torch.export.export(Two(), (torch.ones(2, 2),)).module()
    assert isinstance(reference, fx.GraphModule)
    for node in reference.graph.nodes:
        if node.op == "call_function" and "guards" not in str(node.target):
            node.meta["op_key"] = f"/{node.name}#0"
    broken = copy.deepcopy(reference)
    wrong = next(node for node in broken.graph.nodes if node.target == torch.ops.aten.matmul.default)
    wrong.args = (wrong.args[0], 3)
    found = find(Graph((), (), "inference"), reference, broken, batch=((torch.ones(2, 2),), {}), tolerance=0.1)
    assert found == "/matmul#0"
