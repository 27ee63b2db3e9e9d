"""What all tests share: one thread each, since the suite runs a process per core; and measurements that fail are bugs
here, while a user gets a note."""

import os

import torch

from precision_audit import analyse

torch.set_num_threads(1)
os.environ.setdefault("PRECISION_AUDIT_LOCAL", "cpu-amx")
analyse.STRICT = True
