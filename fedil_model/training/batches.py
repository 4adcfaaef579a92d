"""Positions of samples in random order, batch by batch."""

import torch
from torch import Tensor


def shuffled_batches(
    num_samples: int, batch_size: int, generator: torch.Generator, device: torch.device
) -> tuple[Tensor, ...]:
    """A last batch of one joins the one before it: batch normalisation has nothing to say about a single sample."""
    batches = torch.split(torch.randperm(num_samples, generator=generator).to(device), batch_size)
    if len(batches) > 1 and len(batches[-1]) == 1:
        return (*batches[:-2], torch.cat(batches[-2:]))
    return batches
