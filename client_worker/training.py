"""From a task to an update: Algorithm 2 with what it needs fetched before and kept after."""

import time
from collections.abc import Collection, Mapping

import torch
from pydantic import ValidationError
from torch import Tensor

from broker_config.errors import MessageRejected
from broker_config.messages import LEDGER_KIND, MODEL_KIND, TrainTask, Update
from broker_config.stores.interface import Store
from broker_config.transports.interface import Transport
from broker_config.wire import decode_arrays, digest, encode_arrays
from client_worker.shards import Shards
from fedil_model.datasets import open_dataset
from fedil_model.errors import SettingError
from fedil_model.hyperparameters import Learning
from fedil_model.methods import make_method
from fedil_model.methods.interface import Method
from fedil_model.parameters import from_arrays, to_arrays
from fedil_model.plugins import is_plugin


class Trainer:
    """Keeps the last method and the last model version, so that a worker builds a network once per run and
    reads a model once per round, however many clients it serves."""

    def __init__(
        self,
        transport: Transport,
        store: Store,
        shards: Shards,
        device: torch.device,
        plugins: Collection[str] = (),
    ) -> None:
        self._transport, self._store, self._shards, self._device = transport, store, shards, device
        self._plugins = frozenset(plugins)
        self._method: tuple[str, Method] | None = None
        self._model: tuple[str, Mapping[str, Tensor]] | None = None

    def train(self, task: TrainTask) -> Update:
        """Commits the client's new ledger. Doing a task again gives the same update and the same ledger."""
        began = time.perf_counter()
        method, broadcast = self._method_for(task), self._model_for(task)
        kept = self._store.read(task.run, task.client, task.activation)
        ledger = decode_arrays(kept, LEDGER_KIND)[1] if kept is not None else None
        inputs = self._shards.inputs(task.client).to(self._device)
        fetched = time.perf_counter()
        result = method.client_step(broadcast, inputs, ledger, task.round, task.client)
        trained = time.perf_counter()
        body = b"".join(encode_arrays(LEDGER_KIND, {}, result.ledger))
        self._store.commit(task.run, task.client, task.activation, body)
        seconds = {"seconds_train": trained - fetched, "seconds_fetch": fetched - began}
        return Update(
            run=task.run,
            round=task.round,
            client=task.client,
            activation=task.activation,
            base_version=task.model.version,
            num_samples=len(inputs),
            num_steps=result.num_steps,
            tensors=to_arrays(result.update),
            metrics=dict(result.metrics) | seconds,
        )

    def _method_for(self, task: TrainTask) -> Method:
        if self._method is None or self._method[0] != task.learning:
            try:
                learning = Learning.model_validate_json(task.learning)
            except ValidationError as error:
                raise MessageRejected("schema", f"hyperparameters: {error}") from error
            self._check_plugins(learning)
            self._method = (task.learning, make_method(learning, open_dataset(learning.data), self._device))
        return self._method[1]

    def _check_plugins(self, learning: Learning) -> None:
        """A task names code to run; only what the site's owner has allowed is imported."""
        for name in (learning.data.name, learning.network.name):
            if is_plugin(name) and name not in self._plugins:
                raise SettingError(
                    f"this worker does not run {name}: start it with --plugin {name} to allow it"
                )

    def _model_for(self, task: TrainTask) -> Mapping[str, Tensor]:
        if self._model is None or self._model[0] != task.model_digest:
            body = self._transport.read_model(task.model)
            found = digest([body])
            if found != task.model_digest:
                raise MessageRejected(
                    "digest", f"model {task.model.version} is {found}, not {task.model_digest}"
                )
            self._model = (task.model_digest, from_arrays(decode_arrays(body, MODEL_KIND)[1], self._device))
        return self._model[1]
