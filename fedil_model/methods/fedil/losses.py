"""ξa and ξb (eq. 12); ξc (eq. 15) is cross-entropy. B batch, C classes."""

import torch
from torch import Tensor
from torch.nn import functional as F


def pseudo_label_loss(logits_strong_BC: Tensor, labels_B: Tensor, mask_B: Tensor) -> Tensor:
    """ξa: cross-entropy against pseudo-labels. The mean is over the whole batch: a sample that is not
    confident counts as zero, as in FixMatch."""
    losses_B = F.cross_entropy(logits_strong_BC, labels_B, reduction="none")
    return (losses_B * mask_B).mean()


def consistency_loss(logits_server_BC: Tensor, logits_BC: Tensor) -> Tensor:
    """ξb: KL(p_θ₀ ‖ p_θ) on the same weak view; the gradient goes through θ only."""
    target_BC = torch.log_softmax(logits_server_BC.detach(), dim=1)
    return F.kl_div(torch.log_softmax(logits_BC, dim=1), target_BC, reduction="batchmean", log_target=True)
