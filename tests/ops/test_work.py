"""The work of ops: FLOPs and reduction depth by hand arithmetic, FLOPs also by torch's own counter, bytes by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from precision_audit import ops
from precision_audit.ops import work as op_work
from precision_audit.records import Op, Operand, Tensor
from tests.op_records import recorded, tensor

aten = torch.ops.aten
BF16 = torch.bfloat16


def ids(*shape: int) -> torch.Tensor:
    return tensor(*shape, dtype=torch.int64)


NORM = (tensor(4, 6, 5), tensor(6), tensor(6), tensor(6), tensor(6))


def _weights(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [tensor(*shape) for shape in shapes]


# name, op, FLOPs or None (not checked), depth
WORK: list[tuple[str, tuple[Op, list[Tensor]], int | None, int | None]] = [
    ("linear", recorded(aten.linear.default, tensor(2, 3, 8), tensor(5, 8), tensor(5)), 2 * 2 * 3 * 5 * 8, 8),
    ("linear with a vector", recorded(aten.linear.default, tensor(3, 8), tensor(8)), 2 * 3 * 8, 8),
    ("addmm", recorded(aten.addmm.default, tensor(5), tensor(3, 8), tensor(8, 5)), 2 * 3 * 5 * 8, 8),
    ("mm", recorded(aten.mm.default, tensor(3, 8), tensor(8, 5)), 2 * 3 * 5 * 8, 8),
    ("bmm", recorded(aten.bmm.default, tensor(4, 3, 8), tensor(4, 8, 5)), 2 * 4 * 3 * 5 * 8, 8),
    ("addbmm", recorded(aten.addbmm.default, tensor(3, 5), tensor(4, 3, 8), tensor(4, 8, 5)), 2 * 4 * 3 * 5 * 8, 32),
    ("baddbmm", recorded(aten.baddbmm.default, tensor(1, 1, 5), tensor(4, 3, 8), tensor(4, 8, 5)), 2 * 4 * 120, 8),
    ("matmul broadcasts", recorded(aten.matmul.default, tensor(6, 1, 3, 8), tensor(4, 8, 5)), 2 * 24 * 120, 8),
    ("matmul of vectors", recorded(aten.matmul.default, tensor(8), tensor(8)), 16, 8),
    ("matmul with a vector", recorded(aten.matmul.default, tensor(2, 3, 8), tensor(8)), 2 * 6 * 8, 8),
    ("mv", recorded(aten.mv.default, tensor(3, 8), tensor(8)), 48, 8),
    ("dot", recorded(aten.dot.default, tensor(8), tensor(8)), 16, 8),
    ("inner", recorded(aten.inner.default, tensor(2, 3, 8), tensor(5, 8)), 2 * 6 * 5 * 8, 8),
    ("multi_dot", recorded(aten.linalg_multi_dot.default, _weights((10, 2), (2, 30), (30, 4))),
     2 * (2 * 30 * 4 + 10 * 2 * 4), 30),
    ("tensordot", recorded(aten.tensordot.default, tensor(3, 4, 5), tensor(4, 5, 6), [1, 2], [0, 1]), 2 * 3 * 20 * 6,
     20),
    ("bilinear", recorded(aten.bilinear.default, tensor(7, 3), tensor(7, 4), tensor(5, 3, 4)), 2 * 7 * 5 * 4 * 4, 12),
    ("einsum: batched matmul", recorded(aten.einsum.default, "bij,bjk->bik", _weights((2, 3, 4), (2, 4, 5))),
     2 * 2 * 60, 4),
    ("einsum: implicit result", recorded(aten.einsum.default, "ij,jk", _weights((3, 4), (4, 5))), 2 * 60, 4),
    ("einsum: two shared axes", recorded(aten.einsum.default, "bhid,bhjd->ij", _weights((2, 3, 4, 5), (2, 3, 6, 5))),
     2 * 2 * 3 * 4 * 6 * 5, 30),
    ("einsum: outer", recorded(aten.einsum.default, "i,j->ij", _weights((3,), (4,))), 12, None),
    ("einsum: transpose", recorded(aten.einsum.default, "ij->ji", _weights((3, 4))), 0, None),
    ("einsum: total", recorded(aten.einsum.default, "ij->", _weights((3, 4))), 12, 12),
    ("einsum: chain", recorded(aten.einsum.default, "ij,jk,kl->il", _weights((2, 3), (3, 4), (4, 5))),
     2 * (2 * 3 * 4 + 2 * 4 * 5), 12),
    ("einsum: ellipsis", recorded(aten.einsum.default, "...ij,...jk->...ik", _weights((6, 1, 2, 3), (5, 3, 4))),
     2 * 6 * 5 * 2 * 3 * 4, 3),
    ("conv1d", recorded(aten.conv1d.default, tensor(2, 4, 10), tensor(6, 4, 3)), 2 * 2 * 6 * 8 * 12, 12),
    ("conv2d", recorded(aten.conv2d.default, tensor(2, 4, 9, 9), tensor(6, 4, 3, 3), None, [2, 2]),
     2 * 2 * 6 * 16 * 36, 36),
    ("conv2d in groups", recorded(aten.conv2d.default, tensor(2, 4, 8, 8), tensor(4, 1, 3, 3), None, [1, 1], [1, 1],
     [1, 1], 4),
     2 * 2 * 4 * 64 * 9, 9),
    ("conv3d", recorded(aten.conv3d.default, tensor(1, 2, 4, 4, 4), tensor(3, 2, 2, 2, 2)), 2 * 3 * 27 * 16, 16),
    ("convolution", recorded(aten.convolution.default, tensor(2, 4, 10), tensor(6, 4, 3), None, [1], [0], [1], False,
     [0], 1),
     2 * 2 * 6 * 8 * 12, 12),
    ("conv_transpose2d", recorded(aten.conv_transpose2d.input, tensor(2, 4, 5, 5), tensor(4, 6, 3, 3)),
     2 * 2 * 4 * 25 * 54, 36),
    # with stride 2 a result meets two of four taps of the kernel on each axis
    ("conv_transpose2d, stride 2", recorded(aten.conv_transpose2d.input, tensor(2, 4, 5, 5), tensor(4, 6, 4, 4),
     None, [2, 2]),
     2 * 2 * 4 * 25 * 96, 4 * 2 * 2),
    ("conv_transpose1d in groups", recorded(aten.conv_transpose1d.default, tensor(1, 4, 5), tensor(4, 3, 3), None,
     [1], [0], [0], 2),
     2 * 4 * 5 * 9, 2 * 3),
    ("conv_tbc", recorded(aten.conv_tbc.default, tensor(7, 2, 4), tensor(3, 4, 5), tensor(5)), 2 * 5 * 2 * 5 * 12, 12),
    ("attention", recorded(aten.scaled_dot_product_attention.default, tensor(2, 3, 4, 8), tensor(2, 3, 6, 8),
     tensor(2, 3, 6, 5)),
     2 * 6 * 4 * 6 * (8 + 5), 6),
    ("grouped, rows in groups", recorded(aten._grouped_mm.default, tensor(32, 16, dtype=BF16),
                                         tensor(4, 16, 8, dtype=BF16), tensor(4, dtype=torch.int32)),
                                         2 * 32 * 16 * 8, 16),
    ("grouped, stacks", recorded(aten._grouped_mm.default, tensor(4, 8, 16, dtype=BF16),
                                 tensor(4, 16, 8, dtype=BF16)), 2 * 4 * 8 * 16 * 8, 16),
    ("lstm", recorded(aten.lstm.input, tensor(5, 3, 8), _weights((1, 3, 4), (1, 3, 4)), _weights((16, 8), (16, 4),
     (16,), (16,)),
                      True, 1, 0.0, False, False, False), 2 * 15 * (16 * 8 + 16 * 4), 8),
    ("gru", recorded(aten.gru.input, tensor(5, 3, 8), tensor(1, 3, 16), _weights((48, 8), (48, 16), (48,), (48,)),
     True, 1, 0.0,
                     False, False, False), 2 * 15 * (48 * 8 + 48 * 16), 16),
    ("rnn_tanh", recorded(aten.rnn_tanh.input, tensor(5, 3, 8), tensor(1, 3, 4), _weights((4, 8), (4, 4), (4,),
     (4,)), True, 1, 0.0,
                          False, False, False), 2 * 15 * 48, 8),
    ("gru_cell", recorded(aten.gru_cell.default, tensor(3, 8), tensor(3, 4), *_weights((12, 8), (12, 4), (12,), (12,))),
     2 * 3 * (12 * 8 + 12 * 4), 8),
    ("embedding_bag with offsets", recorded(aten.embedding_bag.default, tensor(10, 4), ids(7), ids(3)), 7 * 4, 7),
    ("embedding_bag of rows, by hand", (Op("/embedding_bag#0", "aten.embedding_bag.default", "embedding_bag",
     "gather_index", "",
        "", (Operand("w", "weight"), Operand("i", "indices")), (Tensor("fp32", (5, 4), (5, 4)),)),
        [Tensor("fp32", (10, 4), (10, 4)), Tensor("int64", (5, 3), (5, 3))]), 15 * 4, 3),
    ("sum over two axes", recorded(aten.sum.dim_IntList, tensor(2, 32, 32), [1, 2]), 2 * 32 * 32, 1024),
    ("sum of all", recorded(aten.sum.default, tensor(4, 5)), 20, 20),
    ("sum over no named axis", recorded(aten.sum.dim_IntList, tensor(4, 5), None), 20, 20),
    ("mean over the last", recorded(aten.mean.dim, tensor(4, 5), [-1]), 20, 5),
    ("var", recorded(aten.var.correction, tensor(4, 5, 6), [0, 2]), None, 24),
    ("vector norm", recorded(aten.linalg_vector_norm.default, tensor(4, 5)), None, 20),
    ("prod", recorded(aten.prod.dim_int, tensor(4, 5), 0), 20, 4),
    ("cumsum", recorded(aten.cumsum.default, tensor(4, 5), 1), 20, 5),
    ("logsumexp", recorded(aten.logsumexp.default, tensor(4, 5), [1]), None, 5),
    ("softmax", recorded(aten.softmax.int, tensor(4, 5), -1), None, 5),
    ("layer_norm", recorded(aten.layer_norm.default, tensor(2, 3, 4, 5), [4, 5]), None, 20),
    ("layer_norm of an image", recorded(aten.layer_norm.default, tensor(1, 512, 224, 224), [512, 224, 224]), None,
     512 * 224 * 224),
    ("rms_norm", recorded(aten.rms_norm.default, tensor(2, 3, 7), [7]), None, 7),
    ("group_norm", recorded(aten.group_norm.default, tensor(2, 6, 5, 5), 3), None, 2 * 25),
    ("batch_norm in training", recorded(aten.batch_norm.default, *NORM, True, 0.1, 1e-5, True), None, 4 * 5),
    ("batch_norm in evaluation", recorded(aten.batch_norm.default, *NORM, False, 0.1, 1e-5, True), None, None),
    ("instance_norm", recorded(aten.instance_norm.default, tensor(2, 3, 4, 5), None, None, None, None, True, 0.1,
     1e-5, True), None, 20),
    ("avg_pool2d", recorded(aten.avg_pool2d.default, tensor(2, 3, 8, 8), [2, 4]), 2 * 3 * 4 * 2 * 8, 8),
    ("avg_pool3d, one number", recorded(aten.avg_pool3d.default, tensor(1, 1, 4, 4, 4), [2]), 8 * 8, 8),
    ("adaptive_avg_pool2d", recorded(aten.adaptive_avg_pool2d.default, tensor(2, 3, 7, 8), [1, 1]), 2 * 3 * 56, 56),
    # windows of 7 in 3: [0,3) [2,5) [4,7)
    ("adaptive_avg_pool1d, uneven", recorded(aten.adaptive_avg_pool1d.default, tensor(2, 3, 7), [3]), 2 * 3 * 3 * 3, 3),
    ("max_pool2d", recorded(aten.max_pool2d.default, tensor(2, 3, 8, 8), [2, 2]), 2 * 3 * 16 * 4, None),
    ("mse_loss", recorded(aten.mse_loss.default, tensor(4, 5), tensor(4, 5)), None, 20),
    ("mse_loss, not reduced", recorded(aten.mse_loss.default, tensor(4, 5), tensor(4, 5), 0), None, None),
    ("cross entropy over classes", recorded(aten.cross_entropy_loss.default, tensor(4, 50), ids(4)), None, 50),
    ("cross entropy over rows", recorded(aten.cross_entropy_loss.default, tensor(4, 5, 100), ids(4, 100)), None, 400),
    ("nll", recorded(aten.nll_loss_nd.default, tensor(6, 5), ids(6)), None, 6),
    ("cosine_similarity", recorded(aten.cosine_similarity.default, tensor(4, 5, 6), tensor(4, 5, 6)), None, 5),
    ("cdist", recorded(aten.cdist.default, tensor(4, 7), tensor(5, 7)), 3 * 20 * 7, 7),
    ("scatter_add", recorded(aten.scatter_add.default, tensor(3, 4), 0, ids(9, 4), tensor(9, 4)), None, 9),
    ("index_put that writes", recorded(aten.index_put.default, tensor(5), [ids(3)], tensor(3)), 0, None),
    ("index_put that adds", recorded(aten.index_put.default, tensor(5), [ids(3)], tensor(3), True), 0, 3),
    ("fft", recorded(aten.fft_rfft.default, tensor(3, 64)), 5 * 3 * 64 * 6, 64),
    ("relu", recorded(aten.relu.default, tensor(4, 5)), 20, None),
    ("exp", recorded(aten.exp.default, tensor(4, 5)), 200, None),
    ("view", recorded(aten.view.default, tensor(4, 5), [20]), 0, None),
    ("embedding", recorded(aten.embedding.default, tensor(10, 4), ids(7)), 0, None),
]  # fmt: skip


@pytest.mark.parametrize(("made", "flops", "depth"), [each[1:] for each in WORK], ids=[each[0] for each in WORK])
def test_work_by_hand(made: tuple[Op, list[Tensor]], flops: int | None, depth: int | None) -> None:
    op, inputs = made
    assert flops is None or ops.flops(op, inputs) == flops
    assert ops.reduction_depth(op, inputs) == depth


COUNTED: list[tuple[Any, tuple[Any, ...]]] = [
    (aten.linear.default, (tensor(2, 3, 8), tensor(5, 8), tensor(5))),
    (aten.mm.default, (tensor(3, 8), tensor(8, 5))),
    (aten.addmm.default, (tensor(5), tensor(3, 8), tensor(8, 5))),
    (aten.bmm.default, (tensor(4, 3, 8), tensor(4, 8, 5))),
    (aten.baddbmm.default, (tensor(4, 3, 5), tensor(4, 3, 8), tensor(4, 8, 5))),
    (aten.matmul.default, (tensor(6, 4, 3, 8), tensor(4, 8, 5))),
    (aten.einsum.default, ("bhid,bhjd->bhij", [tensor(2, 3, 4, 5), tensor(2, 3, 6, 5)])),
    (aten.tensordot.default, (tensor(3, 4, 5), tensor(4, 5, 6), [1, 2], [0, 1])),
    (aten.linalg_multi_dot.default, ([tensor(10, 2), tensor(2, 30), tensor(30, 4)],)),
    (aten.conv1d.default, (tensor(2, 4, 10), tensor(6, 4, 3))),
    (aten.conv2d.default, (tensor(2, 4, 9, 9), tensor(6, 4, 3, 3), None, [2, 2], [1, 1], [2, 2])),
    (aten.conv2d.default, (tensor(2, 4, 8, 8), tensor(8, 2, 3, 3), None, [1, 1], [1, 1], [1, 1], 2)),
    (aten.conv3d.default, (tensor(1, 2, 4, 4, 4), tensor(3, 2, 2, 2, 2))),
    (aten.conv_transpose2d.input, (tensor(2, 4, 5, 5), tensor(4, 6, 3, 3), None, [2, 2])),
    (aten.scaled_dot_product_attention.default, (tensor(2, 3, 4, 8), tensor(2, 3, 6, 8), tensor(2, 3, 6, 8))),
]


@pytest.mark.parametrize(("overload", "args"), COUNTED, ids=[f"{i} {each[0]}" for i, each in enumerate(COUNTED)])
def test_flops_are_those_of_torch_s_counter(overload: Any, args: tuple[Any, ...]) -> None:
    with FlopCounterMode(display=False) as counter:
        overload(*args)
    op, inputs = recorded(overload, *args)
    assert ops.flops(op, inputs) == counter.get_total_flops() > 0


# bytes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "format", "expected"),
    [
        (recorded(aten.add.Tensor, tensor(4, 5), tensor(4, 5)), "fp32", 3 * 20 * 4),
        (recorded(aten.add.Tensor, tensor(4, 5), tensor(4, 5)), "bf16", 3 * 20 * 2),
        (recorded(aten.add.Tensor, tensor(4, 5), tensor(4, 5)), "", 3 * 20 * 4),
        (recorded(aten.view.default, tensor(4, 5), [20]), "bf16", 0),
        (recorded(aten.gather.default, tensor(4, 5), 1, ids(4, 2)), "bf16", 2 * 8 * 2 + 8 * 8),
        (recorded(aten.embedding.default, tensor(1000, 4), ids(7)), "fp32", 2 * 28 * 4 + 7 * 8),
        (recorded(aten.gt.Tensor, tensor(4), tensor(4)), "bf16", 2 * 4 * 2 + 4),
        (recorded(aten.zeros_like.default, tensor(4, 5)), "bf16", 40),
        (recorded(aten.dropout.default, tensor(4, 5), 0.5, False), "bf16", 0),
        (recorded(aten.dropout.default, tensor(4, 5), 0.5, True), "bf16", 80),
        (recorded(aten.to.dtype, tensor(4, 5), torch.float32), "bf16", 0),
        (recorded(aten.linear.default, tensor(3, 8), tensor(5, 8)), "bf16", 2 * (24 + 40 + 15)),
        (recorded(aten.add.Tensor, ids(4), ids(4)), "bf16", 3 * 4 * 8),
    ],
)
def test_bytes_moved(made: tuple[Op, list[Tensor]], format: str, expected: int) -> None:
    op, inputs = made
    assert ops.bytes_moved(op, inputs, format) == expected


def test_an_output_that_is_no_tensor_has_no_bytes() -> None:
    op, inputs = recorded(aten.relu.default, tensor(4))
    op = dataclasses.replace(op, outputs=(*op.outputs, Tensor("", (), ())))
    assert ops.bytes_moved(op, inputs, "fp32") == 2 * 4 * 4


@pytest.mark.parametrize("name", sorted(op_work.FLOPS))
def test_every_formula_is_used(name: str) -> None:
    assert any(row.flops == name for row in ops.OPS.values())
