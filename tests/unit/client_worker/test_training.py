"""Memory: what a trainer keeps, what it gives back, and what it does when there is not enough."""

import logging
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import client_worker.training
from broker_config.protocol.buffers import aligned_buffer
from broker_config.protocol.messages import Update
from broker_config.protocol.wire import decode_arrays, encode_arrays
from broker_config.transports.interface import ModelAddress
from client_worker.device_cache import DeviceCache, cache_bytes
from client_worker.training import DoesNotFit, OutOfMemory, Trainer
from fedil_model.methods import make_method
from fedil_model.methods.interface import Activation, ClientResult, Method
from fedil_model.training.flat_model import FlatModel, Weights, from_arrays, to_arrays
from server_worker.run.inputs import network_of
from tests.unit.client_worker.bench import CPU, TASKS, UPDATES, Bench, serve_one


class Hungry:
    """The real method on a device whose memory runs out."""

    def __init__(self, method: Method, failures: list[Exception], seen: list[int | None]) -> None:
        self._method, self._failures, self._seen = method, failures, seen
        self.micro_batch: int | None = None

    def client_step(self, *arguments: Any) -> ClientResult:
        self._seen.append(self.micro_batch)
        if self._failures:
            raise self._failures.pop(0)
        self._method.micro_batch = self.micro_batch
        return self._method.client_step(*arguments)


@pytest.fixture
def seen() -> list[int | None]:
    """The micro-batch of every attempt"""
    return []


def short_of_memory(monkeypatch: pytest.MonkeyPatch, seen: list[int | None], *failures: Exception) -> None:
    left = list(failures)

    def make(*arguments: Any) -> Hungry:
        return Hungry(make_method(*arguments), left, seen)

    monkeypatch.setattr(client_worker.training, "make_method", make)


OUT = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore lines")


@pytest.mark.parametrize(
    "error",
    [
        OUT,
        RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError(
            "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
        ),
    ],
    ids=lambda error: str(error)[:20],
)
def test_a_task_that_does_not_fit_goes_back_and_comes_in_smaller_parts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    seen: list[int | None],
    error: Exception,
) -> None:
    short_of_memory(monkeypatch, seen, error, error)
    bench = Bench(tmp_path)
    participant = bench.participant()
    bench.put(bench.task())
    for _ in range(2):
        serve_one(bench, participant)
        assert bench.receive(UPDATES) is None
    assert "cpu is out of memory" in caplog.text
    assert "from now on 8 samples at a time; the task goes back" in caplog.text
    serve_one(bench, participant)
    assert bench.update().metrics["micro_batch"] == 4.0
    assert seen == [None, 8, 4]
    assert bench.receive(TASKS) is None

    bench.put(bench.task(client=1))
    serve_one(bench, participant)
    assert seen[-1] == 4, "what did not fit once is not tried again"


def test_what_does_not_fit_one_sample_at_a_time_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: list[int | None]
) -> None:
    short_of_memory(monkeypatch, seen, *[OUT] * 5)
    bench = Bench(tmp_path)
    participant = bench.participant()
    bench.put(bench.task())
    for _ in range(5):
        serve_one(bench, participant)
    refusal = bench.refusal()
    assert refusal.reason == "DoesNotFit"
    assert "out of memory with one sample at a time (CUDA out of memory. Tried to allocate 2.00 GiB.)" in (
        refusal.detail
    )
    assert seen == [None, 8, 4, 2, 1]
    assert bench.receive(TASKS) is None


def test_another_error_is_no_reason_for_smaller_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: list[int | None]
) -> None:
    short_of_memory(monkeypatch, seen, RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    bench = Bench(tmp_path)
    participant = bench.participant()
    for _ in range(2):
        bench.put(bench.task())
        serve_one(bench, participant)
    assert "shapes" in bench.refusal().detail
    assert bench.update().activation == 1
    assert seen == [None, None]


def test_without_memory_nothing_is_kept_on_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: list[int | None]
) -> None:
    short_of_memory(monkeypatch, seen, OUT)
    bench = Bench(tmp_path)
    trainer = bench.trainer(cache_bytes=10**6)
    with pytest.raises(OutOfMemory) as raised:
        trainer.train(bench.task())
    assert (trainer._method, trainer._broadcast, dict(trainer._cache._kept)) == (None, None, {})
    # The frames of the failed attempt hold its tensors.
    assert raised.value.__context__ is None


def test_does_not_fit_is_a_learning_error_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: list[int | None]
) -> None:
    short_of_memory(monkeypatch, seen, OUT)
    trainer = (bench := Bench(tmp_path)).trainer()
    trainer._micro_batch = 1
    with pytest.raises(DoesNotFit, match="use a larger device, fewer --processes on it or a smaller network"):
        trainer.train(bench.task())


def delta(update: Update) -> np.ndarray:
    return update.tensors["delta.params"]


def test_a_trainer_that_has_rested_gives_the_same_update_and_reads_no_model_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path)
    trainer, fresh = bench.trainer(cache_bytes=10**6), bench.trainer()
    reads, read = [], trainer._transport.read_model

    def counted(address: ModelAddress) -> memoryview:
        reads.append(address)
        return read(address)

    monkeypatch.setattr(trainer._transport, "read_model", counted)
    before = trainer.train(bench.task())
    trainer.rest()
    after = trainer.train(bench.task())
    assert delta(before).tobytes() == delta(after).tobytes() == delta(fresh.train(bench.task())).tobytes()
    assert len(reads) == 1


def test_training_in_bfloat16_works_and_differs_only_in_precision(tmp_path: Path) -> None:
    full = Bench(tmp_path / "full")
    half = Bench(tmp_path / "half", autocast="bf16")
    exact, rough = delta(full.trainer().train(full.task())), delta(half.trainer().train(half.task()))
    assert rough.dtype == np.float32
    assert not np.array_equal(exact, rough)
    assert np.linalg.norm(exact - rough) < 0.1 * np.linalg.norm(exact)


# ---- the cache ---------------------------------------------------------------------------------------------------


class Source:
    """Shards of 100 bytes each; remembers which were read."""

    def __init__(self, cache: DeviceCache) -> None:
        self._cache, self.reads = cache, list[int]()

    def get(self, client: int) -> Tensor:
        def load() -> Tensor:
            self.reads.append(client)
            return torch.full((100,), client, dtype=torch.uint8)

        return self._cache.get(client, load)


def test_the_shards_used_last_stay_within_the_bytes_allowed() -> None:
    source = Source(DeviceCache(CPU, limit_bytes=250))
    for client in (0, 1, 0, 2, 0, 1):
        assert source.get(client).tolist() == [client] * 100
    assert source.reads == [0, 1, 2, 1], "client 1 made room for 2, since 0 was used after it"


def test_a_shard_larger_than_the_cache_pushes_nothing_out() -> None:
    cache = DeviceCache(CPU, limit_bytes=150)
    source = Source(cache)
    source.get(0)
    assert len(cache.get(9, lambda: torch.zeros(1000))) == 1000
    source.get(0)
    assert source.reads == [0]


def test_without_a_cache_every_task_reads_its_shard() -> None:
    source = Source(DeviceCache(CPU, limit_bytes=0))
    source.get(0)
    source.get(0)
    assert source.reads == [0, 0]


def test_a_cache_that_was_cleared_is_empty() -> None:
    cache = DeviceCache(CPU, limit_bytes=250)
    source = Source(cache)
    source.get(0)
    cache.clear()
    source.get(0)
    assert source.reads == [0, 0]


class Properties:
    total_memory = 16 * 10**9


@pytest.mark.parametrize(
    ("device", "asked", "sharing", "expected"),
    [
        ("cpu", None, 1, 0),
        ("cpu", 500, 1, 0),
        ("cuda:0", None, 1, 4 * 10**9),
        ("cuda:0", None, 4, 10**9),
        ("cuda:0", 500, 4, 500 * 10**6),
        ("cuda:0", 0, 1, 0),
    ],
)
def test_the_cache_is_a_part_of_a_gpu_and_nothing_on_a_cpu(
    monkeypatch: pytest.MonkeyPatch, device: str, asked: int | None, sharing: int, expected: int
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Properties)
    assert cache_bytes(torch.device(device), asked, sharing) == expected


def test_training_with_a_cache_gives_the_same_bits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench(tmp_path)
    with_cache: Trainer = bench.trainer(cache_bytes=10**6)
    first, again = with_cache.train(bench.task()), with_cache.train(bench.task())
    assert delta(first).tobytes() == delta(again).tobytes()
    assert delta(first).tobytes() == delta(bench.trainer().train(bench.task())).tobytes()


def test_a_worker_that_has_trained_holds_what_it_received_once_and_lets_go_of_it(tmp_path: Path) -> None:
    """The teacher looks into the received model, and must not keep it when another comes."""
    bench = Bench(tmp_path)
    learning = bench.federation.recipe.learning()
    method = make_method(learning, bench.federation.dataset, torch.device("cpu"))
    start = FlatModel(network_of(bench.federation.recipe, bench.federation.dataset)).weights()
    tensors = start.tensors("global") | Weights(start.params + 0.01, start.buffers).tensors("server")
    body = aligned_buffer(1 << 16)
    pieces = b"".join(encode_arrays("model", {}, to_arrays(tensors)))
    view = body[: len(pieces)]
    view[:] = pieces
    received = weakref.ref(body.obj)
    arrays = decode_arrays(view, "model")[1]
    broadcast = from_arrays(arrays)
    assert all(tensor.data_ptr() % 64 == 0 for tensor in broadcast.values() if len(tensor))
    result = method.client_step(Activation(0, 1, broadcast, bench.federation.train.inputs[:40], None))
    assert result.num_steps > 0
    assert torch.equal(from_arrays(arrays)["server.params"], start.params + 0.01)  # nobody wrote into it
    del body, view, arrays, broadcast, tensors
    assert received() is None
