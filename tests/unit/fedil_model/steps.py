"""A small problem for methods, and their pure steps without any loop around them."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedil_model.data.augment import TensorViews
from fedil_model.data.datasets.interface import Samples
from fedil_model.methods import make_learning
from fedil_model.methods.interface import Activation, Answer, Arrays, ClientResult, Method, MethodContext
from fedil_model.settings import Learning

CPU = torch.device("cpu")


def cloud(num_samples: int, seed: int) -> Samples:
    """Four classes around four corners, with noise."""
    labels = torch.arange(num_samples) % 4
    noise = torch.randn(num_samples, 8, generator=torch.Generator().manual_seed(seed))
    return Samples(torch.eye(8)[:4][labels] * 3.0 + noise, labels)


LABELLED, UNLABELLED = cloud(20, 1), cloud(60, 2).inputs


def context_of(values: Mapping[str, Any] | Learning) -> MethodContext:
    learning = values if isinstance(values, Learning) else make_learning(values)
    return MethodContext(learning, (8,), 4, TensorViews(), CPU)


def broadcast_of(method: Method) -> Mapping[str, Tensor]:
    return method.server_step(method.initial_state(LABELLED), LABELLED, 1).broadcast


def activate(
    method: Method,
    broadcast: Mapping[str, Tensor],
    state: Arrays | None = None,
    *,
    inputs: Tensor = UNLABELLED,
    round_number: int = 1,
    client: int = 0,
    extras: Mapping[str, Mapping[str, Tensor]] | None = None,
) -> ClientResult:
    return method.client_step(Activation(client, round_number, broadcast, inputs, state, extras or {}))


def answer(
    update: Mapping[str, Tensor],
    num_steps: int = 1,
    base_version: int = 1,
    weight: float = 1.0,
    *,
    client: int = 0,
    num_samples: int = len(UNLABELLED),
    metrics: Mapping[str, float] | None = None,
) -> Answer:
    return Answer(client, update, base_version, num_samples, num_steps, metrics or {}, weight)


def answered(result: ClientResult, base_version: int = 1, client: int = 0) -> Answer:
    return answer(result.update, result.num_steps, base_version, client=client, metrics=result.metrics)
