"""From settings to an initialised network that is known to fit the data."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedil_model.errors import NetworkError, SettingError
from fedil_model.networks.cnn import Cnn
from fedil_model.networks.lenet5 import LeNet5
from fedil_model.networks.mlp import Mlp
from fedil_model.networks.normalisation import NormKind
from fedil_model.networks.resnet9 import ResNet9
from fedil_model.plugins import call_with_options, is_plugin, load_callable, told, users_code
from fedil_model.settings import NetworkSettings

NETWORKS: dict[str, Callable[..., nn.Module]] = {"resnet9": ResNet9, "cnn": Cnn, "lenet5": LeNet5, "mlp": Mlp}
_SMALLEST_FOR_BATCH_NORM = 16


def build_network(
    settings: NetworkSettings, input_shape: tuple[int, ...], num_classes: int, seed: int
) -> nn.Module:
    if settings.norm == "auto":
        settings = settings.model_copy(update={"norm": _norm_for(input_shape)})
    # devices=[]: weights are drawn on the CPU, so that they do not depend on the machine's accelerators.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        network = _make(settings, input_shape, num_classes)
        _check_output(network, settings.name, input_shape, num_classes)
    return network


def _norm_for(input_shape: tuple[int, ...]) -> NormKind:
    """Batch norm learns more of photographs and handwriting, and faster; group norm of pictures of 8 pixels a side."""
    return "bn" if len(input_shape) == 3 and min(input_shape[1:]) >= _SMALLEST_FOR_BATCH_NORM else "gn"


def _make(settings: NetworkSettings, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    own: tuple[Any, ...] = ()
    if is_plugin(settings.name):
        make = load_callable("network.name", settings.name)
    elif settings.name in NETWORKS:
        make, own = NETWORKS[settings.name], (settings.width, settings.norm)
    else:
        known = ", ".join(sorted(NETWORKS))
        raise SettingError(
            f"network.name: unknown {settings.name!r}; known: {known}, or your own 'module:callable'"
        )
    with users_code("network.name", settings.name):
        network = call_with_options(
            "network.options", make, input_shape, num_classes, *own, options=settings.options
        )
    if not isinstance(network, nn.Module):
        raise SettingError(f"{settings.name!r} returned a {type(network).__name__}, not an nn.Module")
    return network


def _check_output(network: nn.Module, name: str, input_shape: tuple[int, ...], num_classes: int) -> None:
    """Batches of zeros through the network: it may behave otherwise while it trains, or with other batches."""
    # Evaluating comes first: what is lazy is made and drawn then.
    for training, batch_size in ((False, 2), (True, 3)):
        with _left_as_it_was(network):
            logits_BC = _logits_of_zeros(network.train(training), name, (batch_size, *input_shape))
        expected, when = (batch_size, num_classes), _when(training)
        if tuple(logits_BC.shape) != expected or not logits_BC.is_floating_point():
            raise NetworkError(
                f"network {name!r} turned an input of shape {(batch_size, *input_shape)} into {logits_BC.dtype} "
                f"of shape {tuple(logits_BC.shape)}{when}; expected floats of shape {expected}"
            )


@contextmanager
def _left_as_it_was(network: nn.Module) -> Iterator[None]:
    """Modes and buffers; the random state is the caller's to keep."""
    modes = {module: module.training for module in network.modules()}
    buffers = {key: buffer.clone() for key, buffer in network.named_buffers() if not is_lazy(buffer)}
    yield
    for module, training in modes.items():
        module.training = training
    with torch.no_grad():
        for key, before in buffers.items():
            buffer = network.get_buffer(key)
            if buffer.shape != before.shape:
                raise NetworkError(f"buffer {key} changes its shape as the network runs")
            buffer.copy_(before)


def _logits_of_zeros(network: nn.Module, name: str, shape: tuple[int, ...]) -> Tensor:
    when = _when(network.training)
    try:
        with torch.no_grad():
            logits = network(torch.zeros(shape))
    except Exception as error:  # a user's network may fail in any way: the shapes are what helps
        raise NetworkError(
            f"network {name!r} fails on an input of shape {shape}{when}: {told(error, name)}"
        ) from error
    if not isinstance(logits, Tensor):
        raise NetworkError(f"network {name!r} returned a {type(logits).__name__}{when}, expected logits")
    return logits


def _when(training: bool) -> str:
    return " while training" if training else ""
