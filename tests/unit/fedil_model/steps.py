"""A small problem for methods, and their pure steps without any loop around them."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedil_model.data.augment import TensorViews
from fedil_model.data.datasets.interface import Samples
from fedil_model.methods import find_method, make_learning
from fedil_model.methods.base import MethodBase
from fedil_model.methods.interface import (
    Activation,
    Answer,
    Arrays,
    ClientResult,
    Method,
    MethodContext,
    State,
)
from fedil_model.settings import Learning, merge
from fedil_model.training.evaluate import accuracy
from fedil_model.training.flat_model import Weights

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


SMALL: Mapping[str, Any] = {
    "network": {"name": "mlp", "width": 16, "norm": "gn"},
    "client": {"epochs": 2, "batch_size": 16, "lr": 0.1, "clip_norm": 5.0},
    "server": {"epochs": 3, "batch_size": 10, "lr": 0.1, "clip_norm": 5.0},
}


def make(name: str, **changes: Any) -> Method:
    """The method in small, with labels that it learns in a few rounds."""
    values = merge(merge(SMALL, {"method": {"name": name}}), changes)
    return find_method(name).make(context_of(values))


def play(method: Method, rounds: int, num_clients: int = 3) -> tuple[State, dict[str, list[float]]]:
    """Rounds in which all clients take part. Returns the last state, and by model its accuracy after each round."""
    clients = [cloud(60, 10 + client).inputs for client in range(num_clients)]
    state, found = method.initial_state(LABELLED), defaultdict[str, list[float]](list)
    for number in range(1, rounds + 1):
        step = method.server_step(state, LABELLED, number)
        fold = method.open_fold(step.state, {number: step.broadcast}, number, LABELLED)
        for client, inputs in enumerate(clients):
            names = method.extras_for(step.state, number, client)
            extras = {name: method.extra(step.state, name) for name in names}
            result = activate(
                method, step.broadcast, inputs=inputs, round_number=number, client=client, extras=extras
            )
            fold.add(answered(result, number, client))
        end = method.end_round(fold.close().state, step.broadcast, LABELLED, number)
        state = end.state
        for name, weights in end.models.items():
            found[name].append(accuracy_of(method, weights))
    return state, dict(found)


def accuracy_of(method: Method, weights: Weights) -> float:
    assert isinstance(method, MethodBase)
    model = method._network()
    model.load(weights)
    return accuracy(model.module, cloud(200, 99), TensorViews())


def initial_accuracy(method: Method) -> float:
    assert isinstance(method, MethodBase)
    return accuracy_of(method, method._network().weights())


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def same(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
