"""Normalisation layers by name, and static batch normalisation.

"none" no normalisation · "bn" batch norm · "sbn" static batch norm · "gn" group norm.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

NormKind = Literal["none", "bn", "sbn", "gn"]
_AT_A_TIME = 500
"""Samples at most, of which statistics are computed"""


class _StaticStatistics(nn.modules.batchnorm._BatchNorm):
    """Trains on batch statistics and leaves no trace in the buffers, so that clients have none to average;
    in eval mode it uses the buffers that `refresh_statistics` computed last (SemiFL)."""

    def __init__(self, num_features: int) -> None:
        super().__init__(num_features, momentum=None)  # None: cumulative average while collecting
        self.collecting = False

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or self.collecting:
            return super().forward(input)
        self._check_input_dim(input)  # type: ignore[no-untyped-call]
        return functional.batch_norm(input, None, None, self.weight, self.bias, training=True, eps=self.eps)


class StaticBatchNorm2d(_StaticStatistics, nn.BatchNorm2d):
    pass


class StaticBatchNorm1d(_StaticStatistics, nn.BatchNorm1d):
    pass


def make_norm(kind: NormKind, channels: int, *, spatial: bool = True) -> nn.Module:
    if kind == "gn":
        # Without positions a group of two units would be normalised to ±1 and pass no gradient.
        return nn.GroupNorm(num_groups(channels) if spatial else 1, channels)
    if kind == "bn":
        return nn.BatchNorm2d(channels) if spatial else nn.BatchNorm1d(channels)
    if kind == "sbn":
        return StaticBatchNorm2d(channels) if spatial else StaticBatchNorm1d(channels)
    return nn.Identity()


def num_groups(channels: int) -> int:
    """The largest divisor up to min(32, channels).

    Narrow layers so become instance norm, which starts faster: ResNet9 of width 8 on MNIST (600 labels, 12
    epochs, two seeds) tests at 92 % with it, at 77 % with two channels a group at least, at 26 % with four;
    after 36 epochs (one seed) it is 97.3 % against 96.8 % with two."""
    return max(groups for groups in range(1, min(32, channels) + 1) if channels % groups == 0)


def freeze_statistics(model: nn.Module) -> None:
    """Batch norm uses the statistics that it holds, and leaves them as they are, until the next `model.train()`."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()


def refresh_statistics(model: nn.Module, raw_N: Tensor, view: Callable[[Tensor], Tensor]) -> None:
    """Recompute the buffers of static batch norm in one pass over what `view` makes of the samples. A network without
    static batch norm is left alone."""
    layers = [module for module in model.modules() if isinstance(module, _StaticStatistics)]
    if not layers:
        return
    was_training = model.training
    model.eval()  # dropout must not blur the statistics
    for layer in layers:
        layer.reset_running_stats()
        layer.train()
        layer.collecting = True
    try:
        with torch.no_grad():
            # Parts of one size: each counts the same, and batch norm has nothing to say about a single sample.
            for part in raw_N.tensor_split(-(-len(raw_N) // _AT_A_TIME)):
                model(view(part))
    finally:
        for layer in layers:
            layer.collecting = False
        model.train(was_training)
