"""Updates in fewer bytes, from the worker's side."""

from pathlib import Path

import numpy as np

from fedil_model.training.codecs import decode
from tests.unit.client_worker.bench import Bench, serve_one

WIDE = {"name": "mlp", "width": 300}


def test_a_task_done_twice_gives_the_same_whole_numbers_and_they_are_near_the_update(tmp_path: Path) -> None:
    bench = Bench(tmp_path, network=WIDE)
    plain = bench.trainer().train(bench.task()).tensors["delta.params"]
    one, two = (bench.trainer().train(bench.task(wire="int8")).tensors for _ in range(2))
    assert one["delta.params"].dtype == np.int8
    for name in one:
        assert np.array_equal(one[name], two[name])
    off = decode(one, 1 << 30)["delta.params"] - plain
    assert 0 < np.linalg.norm(off) < 0.05 * np.linalg.norm(plain)


def test_a_codec_that_the_worker_does_not_know_is_refused_by_name(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.put(bench.task(wire="int4"))
    serve_one(bench)
    refusal = bench.refusal()
    assert refusal.reason == "SettingError"
    assert refusal.detail == "federation.wire is 'int4', which this worker does not know: update it"
