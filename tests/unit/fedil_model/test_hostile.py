"""Clients that send wrong updates: which ones do, what they send, and that a run carries it out."""

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from fedil_model.errors import SettingError
from fedil_model.methods.base import MethodBase
from fedil_model.methods.hostile import _noise, hostile_step, is_hostile
from fedil_model.methods.interface import Activation, ClientResult, Method
from fedil_model.settings import Learning
from fedil_model.training.flat_model import FlatModel, Weights
from tests.federation import Federation, blobs_recipe
from tests.unit.fedil_model.steps import UNLABELLED, activate, broadcast_of, context_of, make


def learning_of(kind: str, share: float = 0.4, clients: int = 20, seed: int = 0) -> Learning:
    split = {"labelled": 20, "clients": clients}
    values = {"hostile": {"kind": kind, "share": share}, "split": split, "seed": seed}
    return context_of(values).learning


def step(kind: str, state: Any = None, round_number: int = 1) -> tuple[ClientResult, ClientResult, Any]:
    method = make("fedavg_fixmatch", server={"pretrain_epochs": 20})
    assert isinstance(method, MethodBase)
    broadcast = broadcast_of(method)
    activation = Activation(0, round_number, broadcast, UNLABELLED, state)
    honest = activate(method, broadcast, round_number=round_number)
    network = method._network().module
    hostile = hostile_step(method, activation, learning_of(kind), lambda: network)
    return honest, hostile, (method, broadcast)


def test_a_share_of_the_clients_is_hostile_the_same_in_every_call() -> None:
    learning = learning_of("flipped", 0.4, 20)
    hostile = [client for client in range(20) if is_hostile(learning, client)]
    assert len(hostile) == 8
    assert hostile == [client for client in range(20) if is_hostile(learning, client)]
    other = learning_of("flipped", 0.4, 20, seed=1)
    assert hostile != [client for client in range(20) if is_hostile(other, client)]
    assert not any(is_hostile(learning_of("flipped", 0.0), client) for client in range(20))


def test_flipped_is_the_update_with_the_opposite_sign() -> None:
    honest, hostile, _ = step("flipped")
    assert torch.equal(hostile.update["delta.params"], -honest.update["delta.params"])
    assert hostile.metrics == honest.metrics


def test_noise_has_the_length_of_the_update_and_another_direction() -> None:
    honest, hostile, _ = step("noise")
    there, sent = honest.update["delta.params"].double(), hostile.update["delta.params"].double()
    assert float(sent.norm()) == pytest.approx(float(there.norm()), rel=1e-4)
    assert abs(float(there @ sent / (there.norm() * sent.norm()))) < 0.3
    assert torch.equal(step("noise")[1].update["delta.params"], hostile.update["delta.params"])


def test_stale_sends_the_first_update_again() -> None:
    _, first, _ = step("stale")
    honest, second, _ = step("stale", first.state, round_number=2)
    assert torch.equal(second.update["delta.params"], first.update["delta.params"])
    assert not torch.equal(honest.update["delta.params"], first.update["delta.params"])
    assert np.array_equal(first.state["hostile.delta.params"], second.state["hostile.delta.params"])


class Unsure:
    """Of a method whose client had nothing to train on: an update without tensors."""

    device = torch.device("cpu")

    def client_step(self, activation: Activation) -> ClientResult:
        return ClientResult({}, {}, 0, {"sure_share": 0.0})


@pytest.mark.parametrize("kind", ["flipped", "noise", "stale", "permuted"])
def test_a_client_that_had_nothing_to_train_on_sends_nothing(kind: str) -> None:
    """Such as a client of semifl or fl2 in the first rounds."""
    network, unsure = torch.nn.Linear(8, 4), cast(Method, Unsure())
    broadcast = FlatModel(network).weights().tensors("global")
    activation = Activation(0, 1, broadcast, UNLABELLED, None)
    sent = hostile_step(unsure, activation, learning_of(kind), lambda: network)
    assert (sent.update, sent.state, sent.num_steps) == ({}, {}, 0)


def test_stale_remembers_its_first_update_through_a_round_without_one() -> None:
    _, first, (_, broadcast) = step("stale")
    activation = Activation(0, 2, broadcast, UNLABELLED, first.state)
    between = hostile_step(
        cast(Method, Unsure()), activation, learning_of("stale"), lambda: torch.nn.Linear(8, 4)
    )
    assert between.update == {}
    _, third, _ = step("stale", between.state, round_number=3)
    assert torch.equal(third.update["delta.params"], first.update["delta.params"])


def test_permuted_exchanges_classes_of_the_trained_model() -> None:
    honest, hostile, (method, broadcast) = step("permuted")
    received, model = Weights.named(broadcast, "global"), method._network()

    def logits(update: Any) -> torch.Tensor:
        model.load(Weights(received.params + update["delta.params"], received.buffers))
        with torch.no_grad():
            out: torch.Tensor = model.module.eval()(UNLABELLED)
        return out

    assert torch.allclose(logits(hostile.update), logits(honest.update).roll(1, 1), atol=1e-5)


def test_permuted_needs_an_update_of_the_whole_model() -> None:
    method = make("fedmatch")
    assert isinstance(method, MethodBase)
    activation = Activation(0, 1, broadcast_of(method), UNLABELLED, None)
    with pytest.raises(SettingError, match="permuted"):
        hostile_step(method, activation, learning_of("permuted"), lambda: method._network().module)


@pytest.mark.parametrize(("loss_margin", "counted"), [(0.0, True), (0.5, False)])
def test_a_run_with_hostile_clients(loss_margin: float, counted: bool, tmp_path: Path) -> None:
    """With a third of them permuted, the test on labels rejects what averaging takes in."""
    recipe = blobs_recipe(
        rounds=4,
        hostile={"share": 0.34, "kind": "permuted"},
        method={"loss_margin": loss_margin, "cosine_filter": False},
    )
    run = Federation(recipe, tmp_path)
    assert run.play() is not None
    learning = recipe.learning()
    found = [
        outcome.counts
        for record in run.diary.records[1:]
        for outcome in record.outcomes
        if is_hostile(learning, outcome.client)
    ]
    assert found
    assert all(found) if counted else not any(found)


def test_noise_leaves_points_of_an_update_as_long_as_they_are() -> None:
    """Orchestra's centroids have length 1, and others are invalid."""
    points = torch.nn.functional.normalize(torch.arange(12.0).view(3, 4) - 5.0)
    noise = _noise({"centroids": points}, torch.Generator().manual_seed(1))["centroids"]
    assert torch.allclose(noise.norm(dim=1), torch.ones(3))
    assert not torch.allclose(noise, points, atol=0.1)
