"""Updates in fewer bytes, from the worker's side."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from broker_config.protocol.messages import LEDGER_KIND
from broker_config.protocol.wire import decode_arrays
from client_worker.training import Trainer
from fedil_model.methods import make_method
from fedil_model.methods.interface import Activation, ClientResult
from fedil_model.training.codecs import decode
from tests.federation import RUN
from tests.unit.client_worker.bench import Bench, serve_one

WIDE = {"name": "mlp", "width": 300}


def ledger_of(bench: Bench) -> dict[str, np.ndarray]:
    _, body = bench.federation.store.latest(RUN)[0]
    return dict(decode_arrays(body, LEDGER_KIND)[1])


def test_an_update_is_whole_numbers_and_what_they_lose_is_kept_for_the_next_one(tmp_path: Path) -> None:
    bench = Bench(tmp_path, network=WIDE)
    plain = bench.trainer().train(bench.task(client=1)).tensors["delta.params"]
    first = bench.trainer().train(bench.task(wire="int8")).tensors
    assert first["delta.params"].dtype == np.int8
    assert first["delta.params"].size == plain.size
    kept = ledger_of(bench)["wire.delta.params"]
    assert kept.dtype == np.float16
    assert kept.size == plain.size
    assert kept.any()


def test_a_task_done_twice_gives_the_same_update_and_the_next_one_has_what_was_lost(tmp_path: Path) -> None:
    bench = Bench(tmp_path, network=WIDE)
    trainer = bench.trainer()
    trainer.train(bench.task(wire="int8"))
    lost = ledger_of(bench)["wire.delta.params"].astype(np.float32)
    one, two = (trainer.train(bench.task(activation=2, wire="int8")).tensors for _ in range(2))
    for name in one:
        assert np.array_equal(one[name], two[name])
    still_lost = ledger_of(bench)["wire.delta.params"].astype(np.float32)
    trained = bench.trainer().train(bench.task(activation=2)).tensors["delta.params"]
    sent = decode(one, 1 << 30)["delta.params"]
    np.testing.assert_allclose(sent + still_lost, trained + lost, atol=1e-4)


class Curious:
    """The real method, which remembers what it gets"""

    def __init__(self, *arguments: Any) -> None:
        self._method, self.micro_batch = make_method(*arguments), None
        seen.clear()

    def client_step(self, activation: Activation) -> ClientResult:
        seen.append(sorted(activation.state or {}))
        return self._method.client_step(activation)


seen: list[list[str]] = []


def test_the_method_does_not_see_what_the_codec_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("client_worker.training.make_method", Curious)
    bench = Bench(tmp_path, network=WIDE)
    trainer: Trainer = bench.trainer()
    for activation in (1, 2):
        trainer.train(bench.task(activation=activation, wire="fp16"))
    assert seen[0] == []
    assert "streaks" in seen[1]
    assert not any(name.startswith("wire.") for name in seen[1])


def test_a_codec_that_the_worker_does_not_know_is_refused_by_name(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.put(bench.task(wire="int4"))
    serve_one(bench)
    refusal = bench.refusal()
    assert refusal.reason == "SettingError"
    assert refusal.detail == "federation.wire is 'int4', which this worker does not know: update it"
