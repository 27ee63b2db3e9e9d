"""What all tests share: one thread each, since the suite runs a process per core; and measurements that fail are bugs
here, while a user gets a note. What was imported and collected is not looked through again by the garbage collector,
which otherwise is a tenth of the time of a capture."""

import gc
import os

import pytest
import torch

from precision_audit import analyse

torch.set_num_threads(1)
os.environ.setdefault("PRECISION_AUDIT_LOCAL", "cpu-amx")
analyse.STRICT = True


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.collect()
    gc.freeze()
