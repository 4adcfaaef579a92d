"""A small network for tiny images, from 8×8 digits to 32×32: 26 k parameters at width 64."""

from torch import Tensor, nn

from fedil_model.networks.making import made, need_images
from fedil_model.networks.normalisation import NormKind
from fedil_model.networks.resnet9 import conv_block
from fedil_model.settings import NetworkSettings

SMALLEST_SIDE = 4


class Cnn(nn.Module):
    """`width` is the number of channels of the last convolution; the first two have a quarter and a half."""

    def __init__(self, in_channels: int, num_classes: int, width: int = 64, norm: NormKind = "gn") -> None:
        super().__init__()
        quarter, half = max(1, width // 4), max(1, width // 2)
        self.features = nn.Sequential(
            conv_block(in_channels, quarter, norm),
            conv_block(quarter, half, norm, pool=True),
            conv_block(half, width, norm, pool=True),
            nn.AdaptiveAvgPool2d(2),  # 2×2 keeps where a stroke was; 1×1 would not
            nn.Flatten(),
        )
        self.fc = nn.Linear(4 * width, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.fc.bias)

    def embed(self, x_BCHW: Tensor) -> Tensor:
        features_BF: Tensor = self.features(x_BCHW)
        return features_BF

    def forward(self, x_BCHW: Tensor) -> Tensor:
        logits_BK: Tensor = self.fc(self.embed(x_BCHW))
        return logits_BK


def make_cnn(input_shape: tuple[int, ...], num_classes: int, settings: NetworkSettings) -> Cnn:
    need_images("cnn", input_shape, SMALLEST_SIDE)
    network: Cnn = made(Cnn, input_shape[0], num_classes, settings)
    return network
