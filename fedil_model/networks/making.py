"""What the functions that make a network share."""

from collections.abc import Callable
from typing import Any

from fedil_model.errors import NetworkError
from fedil_model.plugins import call_with_options
from fedil_model.settings import NetworkSettings


def made(
    network: Callable[..., Any], size_in: int | tuple[int, ...], num_classes: int, settings: NetworkSettings
) -> Any:
    return call_with_options(
        "network.options",
        network,
        size_in,
        num_classes,
        settings.width,
        settings.norm,
        options=settings.options,
    )


def need_images(name: str, input_shape: tuple[int, ...], smallest_side: int) -> None:
    if len(input_shape) != 3 or min(input_shape[1:]) < smallest_side:
        instead = "cnn" if len(input_shape) == 3 and name != "cnn" else "mlp"
        raise NetworkError(
            f"{name} needs images of at least {smallest_side}×{smallest_side} (channels×height×width), "
            f'the data has {"×".join(map(str, input_shape))}: use network.name = "{instead}"'
        )
