"""Updates that are tried on the server's labels, and compared with the movement of earlier rounds."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedil_model.data.datasets.interface import Samples
from fedil_model.methods.fedil.gate import EXCESS_LOSSES, MOVEMENT, MOVEMENT_COSINES, NUM_KEPT, LabelGate
from fedil_model.methods.fedil.method import _some
from fedil_model.methods.fedil.settings import FedILSettings
from fedil_model.methods.interface import ClientResult, Method, ServerStep, State, Verdict
from fedil_model.training.flat_model import Weights
from tests.unit.fedil_model.steps import LABELLED, activate, answered, make

GATED = {"loss_margin": 0.5, "movement_filter": True, "client_init": "server", "threshold": 0.6}


def begin(**method: Any) -> tuple[Method, ServerStep]:
    made = make("fedil", profile="paper", method=GATED | {"pseudo_source": "server"} | method)
    return made, made.server_step(made.initial_state(LABELLED), LABELLED, 1)


def moved_by(result: ClientResult, step: ServerStep, factor: float) -> ClientResult:
    """With `factor` × the client's movement from θ₀"""
    start = step.broadcast["server.params"] - step.broadcast["global.params"]
    movement = result.update["delta.params"] - start
    return replace(result, update={**result.update, "delta.params": start + factor * movement})


def with_permuted_labels(made: Method, broadcast: Mapping[str, Tensor]) -> ClientResult:
    """A client that trains on labels shifted by one class: the rows of the last layer that it receives are shifted."""
    shifted = dict(broadcast)
    for side in ("global", "server"):
        params = broadcast[f"{side}.params"].clone()
        network = made._student  # type: ignore[attr-defined]
        offset = 0
        for parameter in network._parameters:
            rows = params[offset : offset + parameter.numel()].view(parameter.shape)
            if parameter.shape[0] == 4:
                rows.copy_(rows.roll(1, 0).clone())
            offset += parameter.numel()
        shifted[f"{side}.params"] = params
    result = activate(made, shifted)
    delta = result.update["delta.params"] + shifted["global.params"] - broadcast["global.params"]
    return replace(result, update={**result.update, "delta.params": delta})


def judge(made: Method, state: State, step: ServerStep, result: ClientResult, number: int = 1) -> Verdict:
    fold = made.open_fold(state, {number: step.broadcast}, number, LABELLED)
    return fold.add(answered(result, number))


def after_a_round(made: Method, step: ServerStep) -> State:
    fold = made.open_fold(step.state, {1: step.broadcast}, 1, LABELLED)
    assert fold.add(answered(activate(made, step.broadcast))).counts
    return fold.close().state


def test_an_honest_update_passes_and_shows_its_excess_loss() -> None:
    made, step = begin()
    verdict = judge(made, step.state, step, activate(made, step.broadcast))
    assert verdict.outcome == "accepted"
    assert verdict.values["excess_loss"] <= 0.5
    assert "movement_cosine" not in verdict.values, "the first round has nothing to compare with"


@pytest.mark.parametrize("client_init", ["server", "global"])
def test_permuted_labels_are_rejected_by_their_loss_and_change_nothing(client_init: str) -> None:
    made, step = begin(client_init=client_init, cosine_filter=False)
    poison, honest = with_permuted_labels(made, step.broadcast), activate(made, step.broadcast)
    states = []
    for results in ([honest], [poison, honest], [honest, poison]):
        fold = made.open_fold(step.state, {1: step.broadcast}, 1, LABELLED)
        verdicts = [fold.add(answered(result)) for result in results]
        assert {verdict.outcome for verdict in verdicts} <= {"accepted", "rejected_loss"}
        states.append(fold.close().state)
    assert verdicts[1].outcome == "rejected_loss"
    assert verdicts[1].detail.startswith("adds ")
    assert verdicts[1].values["excess_loss"] > 0.5
    for one, other in itertools.pairwise(states):
        assert all(torch.equal(one[name], other[name]) for name in one if name != EXCESS_LOSSES)


def test_a_reversed_movement_passes_the_cosine_alone_where_clients_start_from_the_servers_model() -> None:
    """Why the gate exists."""
    made, step = begin(loss_margin=0.0, movement_filter=False)
    poison = moved_by(activate(made, step.broadcast), step, -0.5)
    assert judge(made, step.state, step, poison).outcome == "accepted"


def test_a_negated_movement_is_rejected_from_the_second_round_on() -> None:
    made, step = begin(loss_margin=0.0)
    state = after_a_round(made, step)
    second = made.server_step(state, LABELLED, 2)
    honest = activate(made, second.broadcast, round_number=2)
    assert judge(made, second.state, second, honest, 2).values["movement_cosine"] > 0.0
    verdict = judge(made, second.state, second, moved_by(honest, second, -1.0), 2)
    assert verdict.outcome == "rejected_movement"
    assert verdict.values["movement_cosine"] < 0.0


def test_the_movement_is_that_of_the_clients_without_the_servers_step() -> None:
    made, step = begin()
    result = activate(made, step.broadcast)
    start = step.broadcast["server.params"] - step.broadcast["global.params"]
    movement = after_a_round(made, step)[MOVEMENT]
    assert torch.allclose(movement, result.update["delta.params"] - start, atol=1e-6)
    assert float(movement.abs().max()) > 1e-4


def test_the_movement_of_rescaled_updates_is_that_of_the_clients_too() -> None:
    made, step = begin(normalise="reference")
    delta = activate(made, step.broadcast).update["delta.params"]
    start = step.broadcast["server.params"] - step.broadcast["global.params"]
    scale = start.norm() / delta.norm()
    assert torch.allclose(after_a_round(made, step)[MOVEMENT], scale * (delta - start), atol=1e-6)


def test_without_the_tests_no_update_is_tried() -> None:
    made, step = begin(loss_margin=0.0, movement_filter=False)
    assert MOVEMENT not in step.state
    assert set(judge(made, step.state, step, activate(made, step.broadcast)).values) == {"cosine"}


def test_a_model_that_is_not_finite_is_invalid_and_not_a_matter_of_its_loss() -> None:
    made, step = begin()
    poison = moved_by(activate(made, step.broadcast), step, float("nan"))
    assert judge(made, step.state, step, poison).outcome == "invalid"


def limit_after(*excess_losses: float, margin: float = 0.5) -> float:
    """The largest excess loss that passes, to a hundredth, with four classes"""
    state = {EXCESS_LOSSES: torch.tensor(excess_losses, dtype=torch.float64)}
    start = Weights(torch.zeros(2), torch.zeros(0))
    passed = 0.0
    for hundredths in range(400):
        trained = Weights(torch.tensor([hundredths / 100, 1.0]), torch.zeros(0))
        gate = LabelGate(FedILSettings(loss_margin=margin), lambda model: float(model.params[0]), state, 4, 0)
        if gate.judge(trained, start, 1).outcome == "accepted":
            passed = hundredths / 100
    return passed


def test_the_limit_follows_what_earlier_updates_added() -> None:
    assert limit_after() == pytest.approx(math.log(4), abs=0.02)
    assert limit_after(margin=2.0) == pytest.approx(2.0, abs=0.02)
    assert limit_after(0.1, 0.1, 0.1) == pytest.approx(0.6, abs=0.02)
    assert limit_after(1.0, 1.2, 1.4, 1.6, 1.8) == pytest.approx(1.4 + 4 * 0.2, abs=0.02)


def least_cosine_after(*cosines: float) -> float:
    """The lowest movement cosine that passes, to a hundredth"""
    state = {
        MOVEMENT: torch.tensor([1.0, 0.0]),
        MOVEMENT_COSINES: torch.tensor(cosines, dtype=torch.float64),
    }
    start, passed = Weights(torch.zeros(2), torch.zeros(0)), 1.0
    for hundredths in range(99, -100, -1):
        x = hundredths / 100
        gate = LabelGate(FedILSettings(movement_filter=True), lambda _: 0.0, state, 4, 0)
        trained = Weights(torch.tensor([x, math.sqrt(1 - x * x)]), torch.zeros(0))
        if gate.judge(trained, start, 1).outcome == "accepted":
            passed = x
    return passed


def test_movement_that_is_mostly_noise_keeps_no_update_out() -> None:
    """As on MNIST, where honest cosines are between -0.1 and 0.1: with a limit of 0 a run stood still."""
    assert least_cosine_after() == pytest.approx(0.0, abs=0.01)
    assert least_cosine_after(0.2, 0.25, 0.3) == pytest.approx(0.0, abs=0.01)
    noise = [-0.08, -0.06, -0.05, -0.04, -0.03, -0.02, 0.0, 0.02]
    assert least_cosine_after(*noise * 5) <= -0.08


def test_two_of_five_negated_movements_hardly_lower_the_limit() -> None:
    honest = [0.05, 0.06, 0.08, 0.08, 0.09, 0.12]
    assert least_cosine_after(*honest * 4, *[-x for x in honest[1:5]] * 4) > -0.06


def test_two_of_five_hostile_updates_hardly_raise_the_limit() -> None:
    assert limit_after(*[0.02, 0.04, 0.06] * 8, *[1000.0] * 16) < 0.7


def test_the_last_updates_are_remembered_in_an_order_of_their_own() -> None:
    made, step = begin(movement_filter=False)
    results = [activate(made, step.broadcast, client=client) for client in range(3)]
    found = []
    for order in (results, results[::-1]):
        fold = made.open_fold(step.state, {1: step.broadcast}, 1, LABELLED)
        for result in order:
            fold.add(answered(result))
        found.append(fold.close().state[EXCESS_LOSSES])
    assert len(found[0]) == 3
    assert torch.equal(*found)
    many = {**step.state, EXCESS_LOSSES: torch.arange(NUM_KEPT, dtype=torch.float64)}
    fold = made.open_fold(many, {1: step.broadcast}, 1, LABELLED)
    fold.add(answered(results[0]))
    assert fold.close().state[EXCESS_LOSSES][0] == 1.0


def test_updates_are_tried_on_some_hundred_labels_with_every_class_in_its_share() -> None:
    labels = torch.tensor([0] * 4000 + [1] * 900 + [2] * 100)[torch.randperm(5000)]
    some = _some(Samples(torch.arange(5000.0)[:, None], labels))
    assert torch.bincount(some.labels).tolist() == [200, 45, 5]
    assert torch.equal(labels[some.inputs[:, 0].long()], some.labels)
    few = _some(LABELLED)
    assert sorted(few.labels.tolist()) == sorted(LABELLED.labels.tolist())


def test_a_large_round_is_remembered_by_values_of_every_size() -> None:
    """The largest ones would be those of hostile clients."""
    state = {EXCESS_LOSSES: torch.zeros(0, dtype=torch.float64)}
    gate = LabelGate(FedILSettings(loss_margin=0.5), lambda model: float(model.params[0]), state, 4, 7)
    start = Weights(torch.zeros(2), torch.zeros(0))
    for client in range(3 * NUM_KEPT):
        gate.judge(Weights(torch.tensor([client / 100, 1.0]), torch.zeros(0)), start, 1)
    kept = gate.seen()[EXCESS_LOSSES]
    assert len(kept) == NUM_KEPT
    assert float(kept.min()) < 0.2
    assert float(kept.median()) == pytest.approx(3 * NUM_KEPT / 200, abs=0.2)
