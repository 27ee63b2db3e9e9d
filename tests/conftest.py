"""What all tests share: one thread each, since the suite runs a process per core."""

import torch

torch.set_num_threads(1)
