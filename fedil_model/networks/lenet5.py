"""LeNet-5 with ReLU and max-pooling, which many federated experiments on CPUs use: 62 k parameters for CIFAR-10 at
width 16, and a fiftieth of the arithmetic of ResNet9 at that width."""

from torch import Tensor, nn

from fedil_model.networks.classifier import Classifier, need_images
from fedil_model.networks.normalisation import NormKind, make_norm
from fedil_model.networks.pooling import MaxPool2x2

SMALLEST_SIDE = 16


class LeNet5(Classifier):
    """`width` is the number of channels of the second convolution: 16 in the original, whose other layers have 6
    channels, 120 and 84 units."""

    fc: nn.Sequential

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, width: int, norm: NormKind) -> None:
        super().__init__()
        need_images("lenet5", input_shape, SMALLEST_SIDE)
        channels, height, side = input_shape[0], input_shape[1], input_shape[2]
        first, hidden, last = max(1, width * 3 // 8), width * 15 // 2, width * 21 // 4
        self.features = nn.Sequential(
            nn.Conv2d(channels, first, kernel_size=5, bias=norm == "none"),
            make_norm(norm, first),
            MaxPool2x2(),
            nn.ReLU(inplace=True),
            nn.Conv2d(first, width, kernel_size=5, bias=norm == "none"),
            make_norm(norm, width),
            MaxPool2x2(),
            nn.ReLU(inplace=True),
            nn.Flatten(),
        )
        positions = _left_of(height) * _left_of(side)
        self.fc = nn.Sequential(
            nn.Linear(width * positions, hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, last),
            nn.ReLU(inplace=True),
            nn.Linear(last, num_classes),
        )

    def embed(self, x: Tensor) -> Tensor:
        features_BF: Tensor = self.fc[:-1](self.features(x))
        return features_BF

    def forward(self, x: Tensor) -> Tensor:
        logits_BK: Tensor = self.fc(self.features(x))
        return logits_BK


def _left_of(side: int) -> int:
    """Of a side, after two convolutions without padding and two poolings."""
    return ((side - 4) // 2 - 4) // 2
