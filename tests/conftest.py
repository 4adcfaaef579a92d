"""One torch thread a process, as the workers have: several would fight over the cores, and the bits are fixed."""

import torch

torch.set_num_threads(1)
