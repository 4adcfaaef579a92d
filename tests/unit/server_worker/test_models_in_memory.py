"""Models are large: none stays in the server's memory for longer than somebody needs it."""

import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedil_model.data.augment.tensors import TensorViews
from fedil_model.data.datasets.interface import Samples
from fedil_model.methods.fedil.method import FedIL
from fedil_model.methods.interface import ServerStep
from fedil_model.training.flat_model import FlatModel, Weights
from server_worker.round.evaluation import BackgroundEvaluator
from tests.federation import Diary, Federation, blobs_recipe
from tests.unit.server_worker.test_evaluation import LargestInput, weights_with


class Watching(Diary):
    def __init__(self, made: dict[int, "weakref.ref[Tensor]"]) -> None:
        super().__init__()
        self.made, self.there = made, dict[int, list[int]]()

    def phase(self, round_number: int, name: str) -> None:
        if name == "wait":
            self.there[round_number] = [n for n, ref in self.made.items() if ref() is not None]


@pytest.mark.parametrize("resume_after", [None, 2])
def test_while_answers_are_awaited_only_that_rounds_server_model_is_there(
    tmp_path: Path, resume_after: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[int, weakref.ref[Tensor]] = {}
    step = FedIL.server_step

    def remembered(method: FedIL, state: Any, labelled: Samples, round_number: int) -> ServerStep:
        done = step(method, state, labelled, round_number)
        made[round_number] = weakref.ref(done.broadcast["server.params"])
        return done

    monkeypatch.setattr(FedIL, "server_step", remembered)
    diary = Watching(made)
    federation = Federation(blobs_recipe(rounds=4), tmp_path, diary=diary)
    if resume_after:
        federation.diary.on_update = lambda number, _: (
            federation.stop.set() if number > resume_after else None
        )
        assert federation.play() is None
        federation = Federation(blobs_recipe(rounds=4), tmp_path, federation.broker, diary)
        diary.on_update = lambda *_: None
    assert federation.play() is not None
    assert diary.there == {number: [number] for number in range(1, 5)}


def test_where_clients_start_the_servers_step_is_not_copied(tmp_path: Path) -> None:
    federation = Federation(blobs_recipe(), tmp_path)
    coordinator = federation.coordinator()
    method, labelled = coordinator._method, coordinator._labelled
    state = method.initial_state(labelled)
    broadcast = method.server_step(state, labelled, 1).broadcast
    assert broadcast["global.params"] is state["global.params"]
    assert not torch.equal(broadcast["server.params"], broadcast["global.params"])


def test_a_model_goes_as_soon_as_it_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, labels = torch.eye(3), torch.arange(3)
    model = FlatModel(LargestInput(), torch.device("cpu"))
    evaluator = BackgroundEvaluator(model, Samples(inputs, labels), TensorViews(), classes=3)
    models = {name: weights_with([0.0] * 3) for name in ("global", "server", "ema")}
    refs = {name: weakref.ref(weights.params) for name, weights in models.items()}
    there: list[list[str]] = []
    measure = evaluator._right

    def looking(name: str, weights: Weights) -> Tensor:
        there.append([name for name, ref in refs.items() if ref() is not None])
        return measure(name, weights)

    monkeypatch.setattr(evaluator, "_right", looking)
    ready, begin = threading.Event(), threading.Event()

    def wait() -> None:
        ready.set()
        begin.wait(60)

    evaluator._thread.submit(wait)
    assert ready.wait(60)
    future = evaluator.submit(models)
    del models
    begin.set()
    found = future.result(timeout=60)
    evaluator.close()
    assert there == [["global", "server", "ema"], ["global", "ema"], ["global"]]
    assert list(found.accuracy) == ["global", "server", "ema"]
    assert [name for name, ref in refs.items() if ref() is not None] == []
    assert model.params.numel() == 0
