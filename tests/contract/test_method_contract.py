"""What the engine relies on, for every registered method and for one from outside the package."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from broker_config.transports.memory.broker import EmbeddedBroker
from fedil_model.data.datasets import open_dataset
from fedil_model.data.datasets.interface import Samples
from fedil_model.errors import SettingError
from fedil_model.methods import METHODS, find_method, make_method
from fedil_model.methods.interface import (
    ACCEPTED,
    INVALID,
    Activation,
    Answer,
    ClientResult,
    Method,
    State,
    Tensors,
)
from fedil_model.settings import merge
from fedil_model.training.flat_model import to_arrays
from server_worker.run.recipe import Recipe, make_recipe
from server_worker.watch.events import MISSING, REFUSED, RoundRecord
from tests.federation import SOON, Federation, Over, at_work

OWN = "tests.contract.own_method:spec"
CPU = torch.device("cpu")
ROUNDS = 3
CLIENTS = 4

NAMES = [*METHODS, OWN]
every_method = pytest.mark.parametrize("name", NAMES)
with_clients = pytest.mark.parametrize("name", [name for name in NAMES if find_method(name).asks_clients])


def recipe_for(name: str, **changes: Any) -> Recipe:
    base = {
        "name": name.replace(":", "-"),
        "rounds": ROUNDS,
        "data": {"name": "tests.federation:blobs"},
        "split": {"labelled": 20, "clients": CLIENTS},
        "network": {"name": "mlp", "width": 16},
        "client": {"epochs": 2, "batch_size": 16, "lr": 0.05},
        "server": {"epochs": 2, "batch_size": 10, "pretrain_epochs": 30, "lr": 0.1},
        "method": {"name": name},
        "federation": {"clients_per_round": 3, "deadline_seconds": 600.0},
    }
    # Few server steps: Orchestra's default of 500 would be most of the time of this file.
    known = find_method(name).settings.model_fields
    fitting = {key: value for key, value in {"threshold": 0.6, "server_steps": 30}.items() if key in known}
    base = merge(base, {"method": fitting})
    return make_recipe(merge(base, changes))


class Bench:
    """The pure steps of a method on the first round of a small federation."""

    def __init__(self, name: str) -> None:
        recipe = recipe_for(name)
        dataset = open_dataset(recipe.data)
        samples = dataset.load_train()
        self.labelled = Samples(samples.inputs[:20], samples.labels[:20])
        self.inputs = samples.inputs[20:]
        self.learning, self.dataset = recipe.learning(), dataset
        self.method = self.fresh()
        self.state = self.method.initial_state(self.labelled)
        self.step = self.method.server_step(self.state, self.labelled, 1)

    def fresh(self) -> Method:
        return make_method(self.learning, self.dataset, CPU)

    def activation(
        self, client: int, kept: Mapping[str, np.ndarray] | None = None, number: int = 1
    ) -> Activation:
        shard = self.inputs[client :: 2 * CLIENTS]
        names = self.method.extras_for(self.step.state, number, client)
        extras = {name: self.method.extra(self.step.state, name) for name in names}
        return Activation(client, number, self.step.broadcast, shard, kept, extras)

    def answer(self, client: int, result: ClientResult) -> Answer:
        samples = len(self.activation(client).inputs)
        return Answer(client, result.update, 1, samples, result.num_steps, result.metrics)


def bits(tensors: Tensors) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in to_arrays(tensors).items()}


@with_clients
def test_training_moves_the_weights_and_leaves_everything_received_alone(name: str) -> None:
    bench = Bench(name)
    activation = bench.activation(1)
    received = bits(activation.broadcast), [bits(extra) for extra in activation.extras.values()]
    result = bench.method.client_step(activation)
    assert result.num_steps > 0
    assert (
        max(float(tensor.double().abs().max()) for tensor in result.update.values() if tensor.numel()) > 1e-6
    )
    assert received == (bits(activation.broadcast), [bits(extra) for extra in activation.extras.values()])


@every_method
def test_the_steps_are_functions_of_what_they_are_given(name: str) -> None:
    """A fresh method object gives the same bits, and torch's own generator is left alone."""
    bench = Bench(name)
    random_state = torch.random.get_rng_state()
    if find_method(name).asks_clients:
        first = bench.method.client_step(bench.activation(0))
        again = bench.fresh().client_step(bench.activation(0))
        assert bits(first.update) == bits(again.update)
        assert {key: array.tobytes() for key, array in first.state.items()} == {
            key: array.tobytes() for key, array in again.state.items()
        }
    assert bits(bench.fresh().server_step(bench.state, bench.labelled, 1).broadcast) == bits(
        bench.step.broadcast
    )
    assert torch.equal(random_state, torch.random.get_rng_state())


@every_method
def test_the_server_leaves_the_state_that_it_is_given_alone(name: str) -> None:
    bench = Bench(name)
    before = bits(bench.state)
    step = bench.method.server_step(bench.state, bench.labelled, 1)
    fold = bench.method.open_fold(step.state, {1: step.broadcast}, 1, bench.labelled)
    kept = bits(step.state)
    for client in range(2 if find_method(name).asks_clients else 0):
        fold.add(bench.answer(client, bench.method.client_step(bench.activation(client))))
    fold.close()
    assert bits(bench.state) == before
    assert bits(step.state) == kept


@with_clients
def test_the_fold_gives_the_same_bits_in_any_order(name: str) -> None:
    bench = Bench(name)
    answers = [
        bench.answer(client, bench.method.client_step(bench.activation(client))) for client in range(3)
    ]
    folded: list[tuple[dict[str, bytes], float]] = []
    for order in itertools.permutations(answers):
        fold = bench.method.open_fold(bench.step.state, {1: bench.step.broadcast}, 1, bench.labelled)
        verdicts = [fold.add(answer) for answer in order]
        assert any(verdict.counts for verdict in verdicts)
        closed = fold.close()
        folded.append((bits(closed.state), closed.delta_norm))
    assert all(one == folded[0] for one in folded)
    assert folded[0][1] > 0.0


@with_clients
def test_what_a_client_keeps_comes_back_from_bytes(name: str) -> None:
    bench = Bench(name)
    kept = bench.method.client_step(bench.activation(1)).state
    read = {
        key: np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape) for key, array in kept.items()
    }
    result = bench.method.client_step(bench.activation(1, read, number=2))
    assert result.num_steps > 0


@pytest.mark.parametrize("name", [name for name in METHODS if find_method(name).asks_clients])
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e30])
def test_poison_is_refused_and_changes_nothing(name: str, poison: float) -> None:
    bench = Bench(name)
    good = bench.method.client_step(bench.activation(0))
    spoilt = {
        key: torch.full_like(t, poison) if t.is_floating_point() else t for key, t in good.update.items()
    }
    bad = ClientResult(spoilt, good.state, good.num_steps, good.metrics)

    def closed(*results: ClientResult) -> State:
        fold = bench.method.open_fold(bench.step.state, {1: bench.step.broadcast}, 1, bench.labelled)
        verdicts = [fold.add(bench.answer(client, result)) for client, result in enumerate(results)]
        assert [verdict.outcome for verdict in verdicts[1:]] == [INVALID] * (len(results) - 1)
        return fold.close().state

    assert bits(closed(good, bad)) == bits(closed(good))


@every_method
def test_settings_refuse_unknown_keys_and_name_the_nearest(name: str) -> None:
    with pytest.raises(SettingError, match=r"unknown setting method\.naem; did you mean method\.name\?"):
        recipe_for(name, method={"naem": 1})
    with pytest.raises(SettingError, match="profile: Input should be"):
        recipe_for(name, profile="nobodys")


@every_method
def test_settings_survive_the_json_of_a_task_and_of_a_run_folder(name: str) -> None:
    recipe = recipe_for(name)
    assert make_recipe(recipe.model_dump(mode="json")) == recipe
    assert type(recipe.method) is find_method(name).settings


def check_record(name: str, record: RoundRecord) -> None:
    display = find_method(name).display
    assert set(record.series) == {series.name for series in display.series()}
    for series in display.series():
        value = record.series[series.name]
        assert (value is None) == (series.source == "label_set"), series.name
        assert value is None or np.isfinite(value)
    outcomes = {ACCEPTED, INVALID, MISSING, REFUSED, *(outcome.name for outcome in display.outcomes)}
    values = {value.name for value in display.client_values}
    for outcome in record.outcomes:
        assert outcome.outcome in outcomes
        assert set(outcome.values) <= values
    assert set(record.accuracy) <= {model.name for model in display.models}
    assert "global" in record.accuracy
    assert display.models[0].name == "global"


@every_method
def test_every_declared_series_appears_in_every_round(name: str, tmp_path: Path) -> None:
    federation = Federation(recipe_for(name), tmp_path)
    assert federation.play() is not None
    assert [record.round for record in federation.diary.records] == [1, 2, 3]
    for record in federation.diary.records:
        check_record(name, record)
    asks_clients = find_method(name).asks_clients
    assert any(record.accepted for record in federation.diary.records) == asks_clients
    assert any(record.selected for record in federation.diary.records) == asks_clients
    assert any(record.delta_norm > 0 for record in federation.diary.records)


class Killed(BaseException):
    pass


class Mortal:
    """A method of a server that dies when `lives` of its steps are done: nothing runs after that, no handler and no
    clean-up but that of the interpreter."""

    STEPS = ("initial_state", "server_step", "extra", "open_fold", "add", "close", "end_round")

    def __init__(self, inner: Any, lives: Iterator[int]) -> None:
        self._inner, self._lives = inner, lives

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        return partial(self._step, attribute) if name in self.STEPS else attribute

    def _step(self, step: Callable[..., Any], *given: Any) -> Any:
        done = step(*given)
        if next(self._lives, None) is None:
            raise Killed
        return Mortal(done, self._lives) if hasattr(done, "add") else done


@every_method
def test_a_run_killed_between_any_two_steps_of_its_server_ends_with_the_same_bits(
    name: str, tmp_path: Path
) -> None:
    """Every second time the broker dies with the server, as in a simulation. FedIL and the method that uses all of the
    contract die after each step; of the others each after one in three, not all of them after the same."""
    recipe = recipe_for(name, rounds=2)
    undisturbed = Federation(recipe, tmp_path / "undisturbed")
    assert undisturbed.play() is not None
    place = NAMES.index(name)
    for lives in itertools.count() if name in ("fedil", OWN) else itertools.count(place % 3, 3):
        folder = tmp_path / f"killed-{lives}"
        first = Federation(recipe, folder, wrap=partial(Mortal, lives=iter(range(lives))))
        try:
            assert first.play() is not None
        except Killed:
            broker = first.broker if lives % 2 else EmbeddedBroker()
            again = Federation(recipe, folder, broker=broker)
            assert again.play() is not None
            assert again.fingerprint() == undisturbed.fingerprint()
        else:
            break
    # Without clients: no add, and no extra.
    assert lives >= 1 + (7 if find_method(name).asks_clients else 4) * recipe.rounds


@every_method
def test_rabbitmq_and_redis_give_the_bits_of_the_embedded_broker(
    name: str, tmp_path: Path, over: Over
) -> None:
    undisturbed = Federation(recipe_for(name), tmp_path)
    undisturbed.play()
    federation = over(recipe_for(name))
    server = federation.serve()
    with at_work(federation.participant()):
        assert server.result(3 * SOON).rounds_done == ROUNDS
    assert federation.digests() == undisturbed.digests()


def test_buffered_mode_is_refused_for_a_method_that_cannot_use_older_versions() -> None:
    with pytest.raises(
        SettingError, match=r'federation\.mode: "buffered" is not supported by method .*own_method'
    ):
        recipe_for(
            OWN, federation={"mode": "buffered", "in_flight": 3, "buffer_size": 2, "clients_per_round": 3}
        )
