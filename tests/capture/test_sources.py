"""Lines of the user's in stack traces."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from precision_audit.capture import capture, sources
from precision_audit.loader import load
from precision_audit.records import Source

TORCH = f'  File "{Path(torch.__file__).parent}{os.sep}nn/modules/module.py", line 5, in _call\n    return x'


@pytest.mark.parametrize(
    ("trace", "found"),
    [
        ('  File "net.py", line 11, in forward\n    return x + y\n', Source("net.py", 11, "forward", "return x + y")),
        ('  File "net.py", line 11, in forward', Source("net.py", 11, "forward", "")),
        ('  File "net.py", line 11, in forward\n  File "b.py", line 2, in g', Source("b.py", 2, "g", "")),
        (f'  File "net.py", line 11, in forward\n    y = x()\n{TORCH}', Source("net.py", 11, "forward", "y = x()")),
        ('  File "<stdin>", line 1, in <module>', None),
        (TORCH, None),
    ],
    ids=["with text", "without text", "two without text", "before torch", "typed in", "torch alone"],
)
def test_the_last_frame_of_the_users(trace: str, found: Source | None) -> None:
    assert sources.source_of(trace) == found
    assert bool(sources.frames_of(trace)) == (found is not None)


MODEL = """
import torch
class Net(torch.nn.Module):
    def forward(self, x):
        return x.{}()
{}example_inputs = (torch.randn(4, 8),)
"""


def test_a_file_of_the_same_name_elsewhere_is_not_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sin", "exp"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "net.py").write_text(MODEL.format(name, "# more\n" * len(name)))
        monkeypatch.chdir(folder)
        loaded = load("net.py")
        (op,) = (op for op in capture(loaded.model, loaded.args).graph.ops if op.source)
        assert op.source is not None and (op.source.line, op.source.text) == (5, f"return x.{name}()")
