"""Clients that send wrong updates on purpose: what does a method do about them?

flipped: the update with the opposite sign. noise: Gaussian noise of the update's length. stale: the client's first
update, again and again. permuted: the trained model with its classes numbered one further, as after training on labels
that are off by one.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from fedil_model.errors import SettingError
from fedil_model.methods.interface import Activation, ClientResult, Method, Tensors
from fedil_model.seeding import derive_seed
from fedil_model.settings import Learning
from fedil_model.training.flat_model import FlatModel, Weights

_KEPT = "hostile."
"""Prefix of what a client with the kind "stale" keeps beside the method's own state"""


def is_hostile(learning: Learning, client: int) -> bool:
    """The same clients in every round, drawn by the run's seed"""
    clients, share = learning.split.clients, learning.hostile.share
    if share == 0.0:
        return False
    order = np.random.default_rng(derive_seed(learning.seed, "hostile")).permutation(clients)
    return client in order[: round(share * clients)]


def hostile_step(
    method: Method, activation: Activation, learning: Learning, make_network: Callable[[], nn.Module]
) -> ClientResult:
    """What `client_step` returns, with another update"""
    state = activation.state or {}
    kept = {name: array for name, array in state.items() if name.startswith(_KEPT)}
    own = {name: array for name, array in state.items() if name not in kept}
    result = method.client_step(replace(activation, state=own or None))
    kind = learning.hostile.kind
    if kind == "flipped":
        update: Tensors = {
            name: -tensor if tensor.is_floating_point() else tensor for name, tensor in result.update.items()
        }
    elif kind == "noise":
        seed = derive_seed(learning.seed, "hostile", activation.round_number, activation.client)
        update = _noise(result.update, torch.Generator().manual_seed(seed))
    elif kind == "permuted":
        update = _permuted(result.update, activation.broadcast, FlatModel(make_network(), method.device))
    else:
        # A client that had nothing to train on sent nothing: its first update is still to come.
        kept = kept or {_KEPT + name: tensor.cpu().numpy() for name, tensor in result.update.items()}
        update = _first(kept) if result.update else {}
    state = {**result.state, **(kept if kind == "stale" else {})}
    return replace(result, update=update, state=state)


def _noise(update: Tensors, generator: torch.Generator) -> Tensors:
    noisy = {}
    for name, tensor in update.items():
        if tensor.is_floating_point() and tensor.numel():
            drawn = torch.randn(tensor.shape, generator=generator).to(tensor.device)
            # By rows: a matrix in an update is a list of points.
            size, drawn_size = (torch.linalg.vector_norm(x, dim=-1, keepdim=True) for x in (tensor, drawn))
            tensor = drawn * (size / drawn_size)
        noisy[name] = tensor
    return noisy


def _first(kept: Mapping[str, np.ndarray]) -> Tensors:
    return {name.removeprefix(_KEPT): torch.from_numpy(array.copy()) for name, array in kept.items()}


def _permuted(update: Tensors, broadcast: Tensors, model: FlatModel) -> Tensors:
    if not update:
        return update  # a client that had nothing to train on
    if "delta.params" not in update or "global.params" not in broadcast:
        raise SettingError('hostile.kind = "permuted" is for methods that send θ* − θ′')
    received = Weights.named(broadcast, "global").to(model.device)
    delta = Weights.named(update, "delta").to(model.device)
    model.load(Weights(received.params + delta.params, received.buffers))
    linear = [module for module in model.module.modules() if isinstance(module, nn.Linear)][-1]
    with torch.no_grad():
        for parameter in linear.parameters():
            parameter.copy_(parameter.roll(1, 0))
    return {**update, "delta.params": model.params - received.params}
