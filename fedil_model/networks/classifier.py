"""What the networks here share."""

from torch import Tensor, nn

from fedil_model.errors import NetworkError


class Classifier(nn.Module):
    """Features, and logits from them"""

    features: nn.Module
    fc: nn.Module

    def embed(self, x: Tensor) -> Tensor:
        features_BF: Tensor = self.features(x)
        return features_BF

    def forward(self, x: Tensor) -> Tensor:
        logits_BK: Tensor = self.fc(self.embed(x))
        return logits_BK


def initialise(network: nn.Module, last: nn.Linear) -> None:
    """As SemiFL does"""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    if last.bias is not None:
        nn.init.zeros_(last.bias)


def need_images(name: str, input_shape: tuple[int, ...], smallest_side: int) -> None:
    if len(input_shape) != 3 or min(input_shape[1:]) < smallest_side:
        instead = "cnn" if len(input_shape) == 3 and name != "cnn" else "mlp"
        raise NetworkError(
            f"{name} needs images of at least {smallest_side}×{smallest_side} (channels×height×width), "
            f'the data has {"×".join(map(str, input_shape))}: use network.name = "{instead}"'
        )
