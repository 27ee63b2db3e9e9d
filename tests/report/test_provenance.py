"""Digests: equal for equal content, different for any other."""

from __future__ import annotations

import hashlib

import pytest
import torch

from precision_audit.records import Plan, Swap
from precision_audit.report.provenance import batches_digest, emulated, text_digest, versions, weights_digest

STATE = {"b": torch.tensor([1.0, 2.0]), "a": torch.ones(2, 2, dtype=torch.bfloat16)}


def test_weights_digest_is_the_sha256_of_names_formats_shapes_and_bytes() -> None:
    # bf16 one is 0x3f80, little end first
    a = hashlib.sha256(b"a torch.bfloat16 (2, 2)\n" + b"\x80\x3f" * 4).digest()
    b = hashlib.sha256(b"b torch.float32 (2,)\n" + b"\0\0\x80\x3f\0\0\0\x40").digest()
    assert weights_digest(STATE) == f"sha256:{hashlib.sha256(a + b).hexdigest()}"


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"b": torch.tensor([1.0, 2.0, 3.0, 4.0])[:2]}, True),
        ({"a": torch.ones(2, 2, dtype=torch.bfloat16).t()}, True),
        ({"b": torch.tensor([1.0, 2.5])}, False),
        ({"b": torch.tensor([[1.0, 2.0]])}, False),
        ({"b": torch.tensor([1.0, 2.0]).view(torch.int32)}, False),
        ({"c": torch.zeros(0)}, False),
        ({"b": torch.tensor([1.0, 2.0], device="meta")}, False),
    ],
)
def test_weights_digest_sees_every_change(change: dict[str, torch.Tensor], same: bool) -> None:
    assert (weights_digest(STATE | change) == weights_digest(STATE)) == same


def test_weights_digest_of_odd_tensors() -> None:
    odd = {"c": torch.tensor(True), "d": torch.ones(2, dtype=torch.complex64).conj(), "e": torch.tensor(3)}
    assert weights_digest(odd) == weights_digest(dict(reversed(odd.items())))


def test_text_digest_ignores_line_ends_only() -> None:
    assert text_digest("a\r\nb") == text_digest("a\nb") != text_digest("a\nc")


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ([((torch.ones(2), 3), {"k": None})], True),
        ([((torch.ones(2), 4), {"k": None})], False),
        ([((torch.zeros(2), 3), {"k": None})], False),
        ([((torch.ones(2), 3), {})], False),
        ([((torch.ones(2), 3), {"k": None})] * 2, False),
    ],
)
def test_batches_digest(other: list[tuple[tuple[object, ...], dict[str, object]]], same: bool) -> None:
    assert (batches_digest(other) == batches_digest([((torch.ones(2), 3), {"k": None})])) == same


def test_no_batch_has_no_digest() -> None:
    assert batches_digest([]) == ""


def test_versions_name_what_computes() -> None:
    found = dict(versions())
    assert found["torch"] == torch.__version__
    assert {"precision-audit", "python"} <= found.keys()


def test_fp8_is_emulated_on_a_cpu_only() -> None:
    swap = Swap("fc/linear#0", "fc", "torchao", "rowwise", 16, 16, 16)
    plan = Plan("p", "training", "fp32", "bf16", (), (), swaps=(swap,))
    assert emulated(plan) == ("fp8",)
    assert emulated(plan, "cuda") == ()
    assert emulated(Plan("p", "training", "fp32", "bf16", (), ())) == ()


def test_tensors_that_are_not_dense_are_digested_by_what_they_say() -> None:
    dense = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    for kind in (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc):
        one, same, other = (
            {"w": value.to_sparse(layout=kind)} for value in (dense, dense.clone(), dense * torch.tensor(2.0))
        )
        assert weights_digest(one) == weights_digest(same) != weights_digest(other)


def test_extra_state_counts_by_name_and_kind() -> None:
    assert weights_digest({**STATE, "_extra_state": {"a": 1}}) != weights_digest(STATE)
