"""Sizes of what a recipe sends and keeps, measured: two small rounds of its method with a single client."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from broker_config.protocol.buffers import ALIGNMENT, size
from broker_config.protocol.messages import LEDGER_KIND, MODEL_KIND, ModelEntry, TrainTask, Update
from broker_config.protocol.wire import encode_arrays, encode_message
from broker_config.transports.interface import ModelAddress
from fedil_model.data.augment import ImageViews, TensorViews
from fedil_model.data.datasets import open_dataset
from fedil_model.data.datasets.interface import Dataset, Samples
from fedil_model.errors import SettingError
from fedil_model.methods import make_method
from fedil_model.methods.interface import Activation, Answer, Arrays, ClientResult, Method, Tensors
from fedil_model.settings import Codec
from fedil_model.training.codecs import encode
from fedil_model.training.flat_model import FlatModel, num_bytes, to_arrays
from fedil_model.training.precision import repeatable_on
from server_worker.run.inputs import network_of
from server_worker.run.recipe import Recipe

_RUN, _CLIENT = "00000000-trial-of-sizes", 100
_FEW, _MORE = 16, 272
"""Samples: from two sizes of what a client keeps follows how it grows"""
_EPOCHS = 10
_FEWER: Mapping[Codec, int] = {"fp32": 1, "fp16": 2, "int8": 4}
_WORKER_METRICS = ("seconds_train", "seconds_fetch", "seconds_cpu", "images_per_second")


@dataclass(frozen=True)
class Sizes:
    """In bytes. Of bodies, without the broker's own headers"""

    network: int
    """W: parameters and buffers, four bytes each"""
    model: int
    """A version in the model log, written once a round"""
    extras: int
    """What one client receives besides"""
    task: int
    update: int
    """With the recipe's codec"""
    ledger_head: int
    ledger_arrays: tuple[tuple[float, float], ...]
    """Bytes of each array that a client keeps: (at least, for each sample)"""
    state: int
    """What the server keeps between rounds, as a checkpoint holds it"""
    is_bound: bool = False
    """What clients send or receive depends on what they learn: `update` and `extras` are the most to expect."""

    def ledger_of(self, samples: int) -> int:
        arrays = [fixed + per_sample * samples for fixed, per_sample in self.ledger_arrays]
        return self.ledger_head + _laid_out(arrays)


def measure_sizes(recipe: Recipe) -> Sizes:
    """Takes seconds, and needs the recipe's data only if its views are the user's own."""
    if not recipe.spec.asks_clients:
        raise SettingError(
            f"method {recipe.method.name} asks no clients: nothing is sent, and there is no size"
        )
    repeatable_on(torch.device("cpu"))
    small = _shortened(recipe)
    dataset = open_dataset(small.data)
    labelled = _few_samples(dataset)
    method = make_method(small, dataset, torch.device("cpu"))
    step = method.server_step(method.initial_state(labelled), labelled, 1)
    result = _client_step(method, step.broadcast, labelled, _FEW, 1, None)
    fold = method.open_fold(step.state, {1: step.broadcast}, 1, labelled)
    fold.add(Answer(_CLIENT, result.update, 1, _FEW, result.num_steps, result.metrics))
    # From the second round on momentum is kept, and what some clients receive besides is there.
    state = method.end_round(fold.close().state, step.broadcast, labelled, 1).state
    step = method.server_step(state, labelled, 2)
    extras = {name: method.extra(step.state, name) for name in method.extras_for(step.state, 2, _CLIENT)}
    result = _client_step(method, step.broadcast, labelled, _FEW, 2, result.state, extras)
    more = _client_step(method, step.broadcast, labelled, _MORE, 2, None, extras)
    arrays = tuple(_growth(array, more.state[name]) for name, array in result.state.items())
    held = _laid_out([array.nbytes for array in result.state.values()])
    network = FlatModel(network_of(recipe, dataset)).weights()
    return _bounded(
        recipe,
        Sizes(
            network=num_bytes({"params": network.params, "buffers": network.buffers}),
            model=_model_bytes(step.broadcast),
            extras=sum(map(_model_bytes, extras.values())),
            task=_task_bytes(recipe, extras),
            update=_update_bytes(result, recipe.federation.wire),
            ledger_head=size(encode_arrays(LEDGER_KIND, {}, result.state)) - held,
            ledger_arrays=arrays,
            state=num_bytes(state),
        ),
    )


def _bounded(recipe: Recipe, sizes: Sizes) -> Sizes:
    """A few samples tell little of an update that holds only what has changed much."""
    sent, helpers = sizes.network / _FEWER[recipe.federation.wire], recipe.spec.extras_per_client
    if sizes.update > sent / 2 and (sizes.extras or not helpers):
        return sizes
    update = sizes.update if sizes.update > sent / 2 else sizes.model
    return replace(sizes, update=update, extras=sizes.extras or helpers * sizes.network, is_bound=True)


def _shortened(recipe: Recipe) -> Recipe:
    """Its tensors have the same shapes. The server learns enough to be sure: some methods send nothing otherwise."""
    client, server = recipe.client, recipe.server
    return recipe.model_copy(
        update={
            "client": client.model_copy(update={"epochs": 1}),
            "server": server.model_copy(update={"epochs": _EPOCHS, "pretrain_epochs": 0}),
        }
    )


def _few_samples(dataset: Dataset) -> Samples:
    """All of one class, which is learned at once: noise where the views are ours, so that no data need be there"""
    labels = torch.zeros(_FEW, dtype=torch.int64)
    shape, noise = (_FEW, *dataset.input_shape), torch.Generator().manual_seed(0)
    if isinstance(dataset.views, ImageViews):
        return Samples(torch.randint(0, 256, shape, generator=noise, dtype=torch.uint8), labels)
    if isinstance(dataset.views, TensorViews):
        return Samples(torch.randn(shape, generator=noise), labels)
    inputs = dataset.load_train().inputs
    return Samples(inputs[torch.arange(_FEW) % len(inputs)], labels)


def _client_step(
    method: Method,
    broadcast: Tensors,
    samples: Samples,
    count: int,
    round_number: int,
    kept: Arrays | None,
    extras: Mapping[str, Tensors] | None = None,
) -> ClientResult:
    inputs = samples.inputs[torch.arange(count) % len(samples.inputs)]
    return method.client_step(Activation(_CLIENT, round_number, broadcast, inputs, kept, extras or {}))


def _model_bytes(tensors: Tensors) -> int:
    return size(encode_arrays(MODEL_KIND, {"run": _RUN, "version": 1000}, to_arrays(tensors)))


def _growth(few: np.ndarray, more: np.ndarray) -> tuple[float, float]:
    per_sample = (more.nbytes - few.nbytes) / (_MORE - _FEW)
    return few.nbytes - per_sample * _FEW, per_sample


def _laid_out(arrays: Sequence[float]) -> int:
    """Bytes of arrays one after the other in a body, where each but the last is padded"""
    padded = sum(ALIGNMENT * math.ceil(num_bytes / ALIGNMENT) for num_bytes in arrays[:-1])
    return padded + sum(math.ceil(num_bytes) for num_bytes in arrays[-1:])


def _task_bytes(recipe: Recipe, extras: Mapping[str, Tensors]) -> int:
    entry = ModelEntry(ModelAddress(_RUN, 1000, 1000), "0" * 32)
    task = TrainTask(
        run=_RUN,
        round=1000,
        client=_CLIENT,
        activation=1000,
        model=entry,
        learning=recipe.learning().model_dump_json(),
        extras=dict.fromkeys(extras, entry),
        wire=recipe.federation.wire,
    )
    return size(encode_message(task))


def _update_bytes(result: ClientResult, codec: Codec) -> int:
    tensors = encode(to_arrays(result.update), codec, np.random.default_rng(0))
    make = partial(Update, run=_RUN, round=1000, client=_CLIENT, activation=1000, base_version=1000)
    metrics = dict(result.metrics) | dict.fromkeys(_WORKER_METRICS, 1.0)
    update = make(num_samples=_FEW, num_steps=result.num_steps, tensors=tensors, metrics=metrics)
    return size(encode_message(update))
