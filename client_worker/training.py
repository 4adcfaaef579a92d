"""From a task to an update: fetches what the method's client step needs, and commits what it keeps."""

import gc
import json
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor

from broker_config.protocol.buffers import digest
from broker_config.protocol.errors import LedgerMissing, MessageRejected, ModelMissing
from broker_config.protocol.messages import LEDGER_KIND, MODEL_KIND, ModelEntry, TrainTask, Update
from broker_config.protocol.wire import decode_arrays, encode_arrays
from broker_config.stores.interface import Store
from broker_config.transports.interface import Transport
from client_worker.device_cache import DeviceCache
from client_worker.limits import Limits
from client_worker.shards import Shards
from fedil_model.data.datasets import open_dataset
from fedil_model.errors import LearningError, SettingError
from fedil_model.methods import make_learning, make_method, plugins_named
from fedil_model.methods.hostile import hostile_step, is_hostile
from fedil_model.methods.interface import Activation, ClientResult, Method
from fedil_model.networks import build_network
from fedil_model.seeding import derive_seed
from fedil_model.settings import Codec, Learning
from fedil_model.training.codecs import CODECS, encode
from fedil_model.training.flat_model import from_arrays, to_arrays
from fedil_model.training.precision import is_out_of_memory


class OutOfMemory(Exception):
    """This task did not fit on the device; the next one is trained in smaller parts."""


class DoesNotFit(LearningError):
    """Not even one sample at a time."""


class ModelRewritten(ModelMissing):
    """The log holds another model under this version: a server that was replaced wrote it, and sends this task
    again with what it wrote."""


class Trainer:
    """Keeps the last method, the last model version and some shards, so that a worker builds a network once per
    run and reads a model once per round, however many clients it serves."""

    def __init__(
        self,
        transport: Transport,
        ledgers: Store,
        shards: Shards,
        device: torch.device,
        plugins: Collection[str] = (),
        *,
        limits: Limits | None = None,
        cache_bytes: int = 0,
        interruptible: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._transport, self._ledgers, self._shards, self._device = transport, ledgers, shards, device
        self._plugins, self._limits = frozenset(plugins), limits or Limits()
        self._interruptible = interruptible
        self._cache = DeviceCache(device, cache_bytes)
        self._method: tuple[str, Method] | None = None
        self._model: tuple[str, Mapping[str, np.ndarray]] | None = None
        self._broadcast: Mapping[str, Tensor] | None = None
        self._micro_batch: int | None = None
        self._extras: dict[str, Mapping[str, np.ndarray]] = {}

    def train(self, task: TrainTask) -> Update:
        """Commits the client's new ledger. Doing a task again gives the same update and the same ledger; but for
        the last bits when the device's memory makes the batches come in parts."""
        learning = self._learning_of(task)
        self._limits.check_task(task, learning)
        try:
            return self._train(task, learning)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            said = str(error).partition("\n")[0]
        # Only out here are the frames gone that held the tensors.
        self.rest()
        size = self._micro_batch or learning.client.batch_size
        if size == 1:
            raise DoesNotFit(
                f"{self._device} is out of memory with one sample at a time ({said}): "
                "use a larger device, fewer --processes on it or a smaller network"
            )
        self._micro_batch = size // 2
        raise OutOfMemory(
            f"{self._device} is out of memory ({said}): from now on {self._micro_batch} samples at a time"
        )

    def has_committed(self, task: TrainTask) -> bool:
        try:
            self._ledgers.read(task.run, task.client, task.activation + 1, at_least=task.activation)
        except LedgerMissing:
            return False
        return True

    def rest(self) -> None:
        """Give the device's memory back. The model stays where the host has it: it is read once per version."""
        self._method = self._broadcast = None
        self._cache.clear()
        if self._device.type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()

    def _client_step(self, method: Method, activation: Activation, learning: Learning) -> ClientResult:
        if not is_hostile(learning, activation.client):
            return method.client_step(activation)
        dataset = open_dataset(learning.data)
        shape, num_classes = dataset.input_shape, len(dataset.class_names)
        make = partial(build_network, learning.network, shape, num_classes, seed=0)
        return hostile_step(method, activation, learning, make)

    def _train(self, task: TrainTask, learning: Learning) -> Update:
        began, cpu_began = time.perf_counter(), time.process_time()
        method, broadcast = self._method_for(task, learning), self._broadcast_for(task)
        kept = self._ledgers.read(task.run, task.client, task.activation, at_least=task.ledger_at_least)
        ledger = _ledger_in(kept, task) if kept is not None else None
        inputs = self._cache.get(task.client, lambda: self._shards.inputs(task.client))
        self._limits.check_samples(len(inputs))
        activation = Activation(task.client, task.round, broadcast, inputs, ledger, self._extras_for(task))
        fetched = time.perf_counter()
        with self._interruptible():
            result = self._client_step(method, activation, learning)
            tensors = to_arrays(result.update)
            self._limits.bound(tensors, task)
            # From a seed, so that a task that is done again gives the same update.
            seed = derive_seed(learning.seed, "wire", task.client, task.activation)
            tensors = encode(tensors, _codec_of(task), np.random.default_rng(seed))
        trained = time.perf_counter()
        body = b"".join(encode_arrays(LEDGER_KIND, {}, result.state))
        self._ledgers.commit(task.run, task.client, task.activation, body)
        metrics = {
            "seconds_train": trained - fetched,
            "seconds_fetch": fetched - began,
            "seconds_cpu": time.process_time() - cpu_began,
            "images_per_second": len(inputs) * learning.client.epochs / max(trained - fetched, 1e-9),
        }
        if self._micro_batch:
            metrics["micro_batch"] = float(self._micro_batch)
        return Update(
            run=task.run,
            round=task.round,
            client=task.client,
            activation=task.activation,
            base_version=task.model.address.version,
            num_samples=len(inputs),
            num_steps=result.num_steps,
            tensors=tensors,
            metrics=dict(result.metrics) | metrics,
        )

    def _method_for(self, task: TrainTask, learning: Learning) -> Method:
        if self._method is None or self._method[0] != task.learning:
            self._method = (task.learning, make_method(learning, open_dataset(learning.data), self._device))
        method = self._method[1]
        method.micro_batch = self._micro_batch
        return method

    def _learning_of(self, task: TrainTask) -> Learning:
        """A task names code to run; only what the site's owner has allowed is imported."""
        try:
            values = json.loads(task.learning)
            refused = [name for name in plugins_named(values) if name not in self._plugins]
            if refused:
                raise SettingError(
                    f"this worker does not run {refused[0]}: start it with --plugin {refused[0]} to allow it"
                )
            return make_learning(values)
        except (ValidationError, ValueError, AttributeError) as error:
            raise MessageRejected("schema", f"settings: {error}") from error

    def _broadcast_for(self, task: TrainTask) -> Mapping[str, Tensor]:
        if self._model is None or self._model[0] != task.model.digest:
            self._model = self._broadcast = None
            self._model = (task.model.digest, self._read(task.model))
        if self._broadcast is None:
            self._broadcast = from_arrays(self._model[1], self._device)
        return self._broadcast

    def _extras_for(self, task: TrainTask) -> dict[str, Mapping[str, Tensor]]:
        """Read once however many clients of this worker name them, as long as tasks go on naming them."""
        wanted = {entry.digest for entry in task.extras.values()}
        self._extras = {digest: arrays for digest, arrays in self._extras.items() if digest in wanted}
        for entry in task.extras.values():
            if entry.digest not in self._extras:
                self._extras[entry.digest] = self._read(entry)
        return {
            name: from_arrays(self._extras[entry.digest], self._device) for name, entry in task.extras.items()
        }

    def _read(self, entry: ModelEntry) -> Mapping[str, np.ndarray]:
        body = self._transport.read_model(entry.address)
        found = digest([body])
        if found != entry.digest:
            raise ModelRewritten(f"model {entry.address.version} is {found}, not {entry.digest}")
        return decode_arrays(body, MODEL_KIND)[1]


def _codec_of(task: TrainTask) -> Codec:
    if task.wire not in CODECS:
        raise SettingError(
            f"federation.wire is {task.wire!r:.80}, which this worker does not know: update it"
        )
    return CODECS[task.wire]


def _ledger_in(kept: bytes, task: TrainTask) -> Mapping[str, np.ndarray]:
    try:
        return decode_arrays(kept, LEDGER_KIND)[1]
    except MessageRejected as error:
        raise LedgerMissing(
            f"run {task.run!r}, client {task.client}: what the store holds is no ledger ({error}): restore it, or "
            "start a new run"
        ) from error
