"""ResNet9 of FedMatch and FedIL (methods.md §1.1): David Page's DAWNBench net.

The activation sits inside each conv block and not after the addition. Channels: w, 2w, 4w, 8w.
"""

from torch import Tensor, nn
from torch.nn import functional

from fedil_model.errors import NetworkError
from fedil_model.hyperparameters import NetworkSettings
from fedil_model.networks.normalisation import NormKind, make_norm
from fedil_model.plugins import call_with_options

FULL_SIDE = 32
SMALLEST_SIDE = 24
"""Below this more than four in ten pixels of the padded input would be padding."""


def conv_block(in_channels: int, channels: int, norm: NormKind, *, pool: bool = False) -> nn.Sequential:
    layers = [
        nn.Conv2d(in_channels, channels, kernel_size=3, padding=1, bias=False),
        make_norm(norm, channels),
        nn.ReLU(inplace=True),
    ]
    return nn.Sequential(*layers, nn.MaxPool2d(2)) if pool else nn.Sequential(*layers)


class Residual(nn.Module):
    def __init__(self, channels: int, norm: NormKind) -> None:
        super().__init__()
        self.block = nn.Sequential(conv_block(channels, channels, norm), conv_block(channels, channels, norm))

    def forward(self, x_BCHW: Tensor) -> Tensor:
        out: Tensor = x_BCHW + self.block(x_BCHW)
        return out


class ResNet9(nn.Module):
    def __init__(self, in_channels: int, num_classes: int, width: int = 64, norm: NormKind = "bn") -> None:
        super().__init__()
        w = width
        self.features = nn.Sequential(
            conv_block(in_channels, w, norm),
            conv_block(w, 2 * w, norm, pool=True),
            Residual(2 * w, norm),
            conv_block(2 * w, 4 * w, norm, pool=True),
            conv_block(4 * w, 8 * w, norm, pool=True),
            Residual(8 * w, norm),
        )
        self.fc = nn.Linear(8 * w, num_classes, bias=norm != "none")
        self._initialise()

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")  # [SF init_param]
        if self.fc.bias is not None:
            nn.init.zeros_(self.fc.bias)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        features = self.features(pad_to_full_side(x_BCHW))
        # Over the whole map: the layout's "maxpool 4" for 32×32 inputs, and right for larger ones.
        pooled_BC = functional.max_pool2d(features, features.shape[-2:]).flatten(1)
        logits_BK: Tensor = self.fc(pooled_BC)
        return logits_BK


def pad_to_full_side(x_BCHW: Tensor) -> Tensor:
    """28×28 becomes 32×32, so that the last map is 4×4 (methods.md §1.2)."""
    rows, columns = (max(0, FULL_SIDE - side) for side in x_BCHW.shape[-2:])
    if rows == columns == 0:
        return x_BCHW
    return functional.pad(x_BCHW, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))


def make_resnet9(input_shape: tuple[int, ...], num_classes: int, settings: NetworkSettings) -> ResNet9:
    if len(input_shape) != 3 or min(input_shape[1:]) < SMALLEST_SIDE:
        instead = "cnn" if len(input_shape) == 3 else "mlp"
        raise NetworkError(
            f"resnet9 needs images of at least {SMALLEST_SIDE}×{SMALLEST_SIDE} (channels×height×width), "
            f'the data has {"×".join(map(str, input_shape))}: use network.name = "{instead}"'
        )
    network: ResNet9 = call_with_options(
        "network.options",
        ResNet9,
        input_shape[0],
        num_classes,
        settings.width,
        settings.norm,
        options=settings.options,
    )
    return network
