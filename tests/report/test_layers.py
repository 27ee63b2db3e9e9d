"""The table of linears, from layers written by hand."""

from __future__ import annotations

from dataclasses import replace

from precision_audit.records import Cost, Layer, Memory, Padding, Report
from precision_audit.report import as_full, as_markdown, layers
from tests.report import sample

MEMORY = Memory(1, 1)


def layer(module: str, k: int = 4096, n: int = 8192, **fields: object) -> Layer:
    made = Layer(f"{module}/linear#0", module, "torchao", "rowwise", k, n, 2048, True, "", 1e-4, 1.5e-4, True)
    return replace(made, **fields)  # type: ignore[arg-type]


FOUND = (
    layer("blocks.0.up", auto_filter="convert", constraints=("B % 16 == 0 in backward",)),
    layer("blocks.1.up", auto_filter="convert", constraints=("B % 16 == 0 in backward",)),
    layer("small", 32, 32, not_worth="not worth it: predicted 9 µs with rowwise", swapped=False, auto_filter="skip"),
    layer(
        "odd",
        8192,
        8190,
        eligible=False,
        reason="N=8190 is not a multiple of 16",
        seconds=0.0,
        swapped=False,
        padding=Padding(8192, 8192, 2048, 8192 * 8192 * 4, 1.2e-4, True),
    ),
    layer("head", kept="mine.yaml:7 head: safe-in-bf16", swapped=False),
)


def report(found: tuple[Layer, ...] = FOUND) -> Report:
    cost = Cost("h100", False, 3.0, 2.0, 1.0, 0.1, 0.5, MEMORY, MEMORY, MEMORY, 0, layers=found)
    return replace(sample.report(), cost=cost)


def test_rows_group_what_differs_in_nothing_but_its_place() -> None:
    assert layers.rows(report()) == [
        ("blocks.*.up x2", "4096 -> 8192", "2048", "rowwise", "if", "yes", "1.50x", "convert", "yes"),
        ("small", "32 -> 32", "2048", "rowwise", "yes", "no", "1.50x", "skip", "no"),
        ("odd", "8192 -> 8190", "2048", "rowwise", "no", "-", "-", "-", "no"),
        ("head", "4096 -> 8192", "2048", "rowwise", "yes", "yes", "1.50x", "-", "kept"),
    ]
    assert all(len(row) == len(layers.HEADER) for row in layers.rows(report()))


def test_counts_and_remarks_say_why() -> None:
    assert layers.counts(report()) == (
        "5 linears under rowwise: 4 may be swapped, 3 of them worth it (predicted), 2 swapped; "
        "padding would make 1 more eligible, 1 of them worth it"
    )
    assert layers.remarks(report()) == [
        "blocks.*.up x2: if B % 16 == 0 in backward",
        "small: not worth it: predicted 9 µs with rowwise",
        "odd: N=8190 is not a multiple of 16",
        "odd: padding N 8190 to 8192 makes it eligible: weight 256.00 MiB, predicted 120 µs against 150 µs unpadded in "
        "the low format, worth it",
        "head: kept: mine.yaml:7 head: safe-in-bf16",
    ]


def test_the_screen_shows_them_with_v_and_a_comment_the_counts() -> None:
    assert "4 may be swapped" not in as_full.render(report())
    text = as_full.render(report(), verbose=True)
    assert "torchao's filter" in text and "4096 -> 8192" in text and "padding N 8190 to 8192" in text
    assert "5 linears under rowwise: 4 may be swapped" in as_markdown.render(report())
    assert "may be swapped" not in as_full.render(report(()), verbose=True)
