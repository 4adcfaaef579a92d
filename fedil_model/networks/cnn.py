"""A small network for tiny images, from 8×8 digits to 32×32: 26 k parameters at width 64."""

from torch import nn

from fedil_model.networks.classifier import Classifier, initialise, need_images
from fedil_model.networks.normalisation import NormKind
from fedil_model.networks.resnet9 import conv_block

SMALLEST_SIDE = 4


class Cnn(Classifier):
    """`width` is the number of channels of the last convolution; the first two have a quarter and a half."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, width: int, norm: NormKind) -> None:
        super().__init__()
        need_images("cnn", input_shape, SMALLEST_SIDE)
        quarter, half = max(1, width // 4), max(1, width // 2)
        self.features = nn.Sequential(
            conv_block(input_shape[0], quarter, norm),
            conv_block(quarter, half, norm, pool=True),
            conv_block(half, width, norm, pool=True),
            nn.AdaptiveAvgPool2d(2),  # 2×2 keeps where a stroke was; 1×1 would not
            nn.Flatten(),
        )
        self.fc = nn.Linear(4 * width, num_classes)
        initialise(self, self.fc)
