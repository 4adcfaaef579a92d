"""ResNet9 of FedMatch and FedIL: David Page's DAWNBench net.

The activation sits inside each conv block and not after the addition. Channels: w, 2w, 4w, 8w.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedil_model.networks.classifier import Classifier, initialise, need_images
from fedil_model.networks.normalisation import NormKind, make_norm
from fedil_model.networks.pooling import MaxPool2x2

SMALLEST_SIDE = 24
"""Three poolings leave a map of 3×3; less is too little for two more convolutions."""


def conv_block(in_channels: int, channels: int, norm: NormKind, *, pool: bool = False) -> nn.Sequential:
    layers = [
        nn.Conv2d(in_channels, channels, kernel_size=3, padding=1, bias=False),
        make_norm(norm, channels),
    ]
    # ReLU is monotone: pooling first gives the same result with a quarter of the work.
    pooling = [MaxPool2x2()] if pool else []
    return nn.Sequential(*layers, *pooling, nn.ReLU(inplace=True))


class Residual(nn.Module):
    def __init__(self, channels: int, norm: NormKind) -> None:
        super().__init__()
        self.block = nn.Sequential(conv_block(channels, channels, norm), conv_block(channels, channels, norm))

    def forward(self, x_BCHW: Tensor) -> Tensor:
        out: Tensor = x_BCHW + self.block(x_BCHW)
        return out


class ResNet9(Classifier):
    def __init__(self, input_shape: tuple[int, ...], num_classes: int, width: int, norm: NormKind) -> None:
        super().__init__()
        need_images("resnet9", input_shape, SMALLEST_SIDE)
        w = width
        self.features = nn.Sequential(
            conv_block(input_shape[0], w, norm),
            conv_block(w, 2 * w, norm, pool=True),
            Residual(2 * w, norm),
            conv_block(2 * w, 4 * w, norm, pool=True),
            conv_block(4 * w, 8 * w, norm, pool=True),
            Residual(8 * w, norm),
        )
        self.fc = nn.Linear(8 * w, num_classes, bias=norm != "none")
        # Faster with batch norm (bf16 on a CPU: by a third), slower with group norm.
        self._layout = torch.channels_last if norm in ("bn", "sbn") else torch.contiguous_format
        initialise(self, self.fc)

    def embed(self, x: Tensor) -> Tensor:
        features = self.features(x.contiguous(memory_format=self._layout))
        # Over the whole map: the layout's "maxpool 4" for 32×32 inputs, and right for others: padding 28×28
        # digits to 32×32 first would cost three tenths more time.
        return functional.max_pool2d(features, features.shape[-2:]).flatten(1)
