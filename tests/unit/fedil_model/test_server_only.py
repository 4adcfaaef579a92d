"""Training at the server alone, on the split's labels or on all."""

from typing import Any

import pytest
import torch

from fedil_model.methods import find_method, make_learning
from fedil_model.methods.interface import INVALID
from fedil_model.methods.server_only import ServerOnly
from tests.unit.fedil_model.steps import LABELLED, answer, cloud, copied, initial_accuracy, make, play, same

ALL = cloud(100, 7)


def method(name: str = "supervised", **changes: Any) -> ServerOnly:
    made = make(name, **changes)
    assert isinstance(made, ServerOnly)
    return made


def test_the_server_trains_like_that_of_fedavg() -> None:
    """The same budget, schedule and random draws: the same bits."""
    server = {"epochs": 2, "lr_schedule": "cosine", "strong_weight": 1.0}
    alone, beside = method("server_only", server=server), make("fedavg_fixmatch", server=server)
    state = alone.initial_state(LABELLED)
    for number in (1, 7):
        mine, other = (each.server_step(state, LABELLED, number) for each in (alone, beside))
        assert same(mine.broadcast, other.broadcast)
        assert mine.metrics == other.metrics


def test_pretraining_tells_each_epoch_and_is_no_other_for_it() -> None:
    told: list[tuple[int, int]] = []
    made = method("server_only", server={"pretrain_epochs": 3})
    made.on_epoch = lambda done, total: told.append((done, total))
    quiet = method("server_only", server={"pretrain_epochs": 3})
    assert same(made.initial_state(LABELLED), quiet.initial_state(LABELLED))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_the_new_model_is_what_the_servers_step_made() -> None:
    made = method("server_only")
    state = made.initial_state(LABELLED)
    before = copied(state)
    step = made.server_step(state, LABELLED, 1)
    folded = made.open_fold(step.state, {1: step.broadcast}, 1, LABELLED).close()
    assert same(folded.state, step.broadcast)
    assert same(before, state)
    assert folded.delta_norm == pytest.approx(step.metrics["server_norm"])
    assert folded.delta_norm > 0.1
    # 20 samples in batches of 10, three times
    assert folded.effort == pytest.approx(0.1 * 6)


def test_an_update_is_refused() -> None:
    made = method()
    step = made.server_step(made.initial_state(ALL), ALL, 1)
    fold = made.open_fold(step.state, {1: step.broadcast}, 1, ALL)
    verdict = fold.add(answer({"delta.params": torch.zeros(3)}))
    assert (verdict.outcome, verdict.detail) == (INVALID, "this method asks no clients")
    assert same(fold.close().state, step.broadcast)


def test_a_round_of_supervised_trains_on_a_fifth_that_is_drawn_anew() -> None:
    made = method()
    first, again, second = made._draw(ALL, 1), method()._draw(ALL, 1), made._draw(ALL, 2)
    assert len(first.labels) == 20
    assert torch.equal(first.inputs, again.inputs)
    assert not torch.equal(first.inputs, second.inputs)
    rows = [int((ALL.inputs == sample).all(1).nonzero()) for sample in first.inputs]
    assert len(set(rows)) == 20
    assert first.labels.tolist() == ALL.labels[rows].tolist()
    step = made.server_step(made.initial_state(ALL), ALL, 1)
    # 20 samples in batches of 10, three times
    effort = made.open_fold(step.state, {1: step.broadcast}, 1, ALL).close().effort
    assert effort == pytest.approx(0.1 * 6)


def test_the_smallest_part_is_one_sample() -> None:
    assert len(method(method={"part": 0.001})._draw(ALL, 1).labels) == 1


@pytest.mark.parametrize("norm", ["gn", "bn", "sbn"])
def test_it_learns(norm: str) -> None:
    made = method("server_only", network={"norm": norm})
    _, accuracies = play(made, 4, num_clients=0)
    assert accuracies.keys() == {"global"}
    assert accuracies["global"][-1] > 0.8 > 0.4 > initial_accuracy(made)


def test_profiles() -> None:
    floor, ceiling = (make_learning({"method": {"name": name}}) for name in ("server_only", "supervised"))
    assert (floor.profile, floor.server.strong_weight) == ("strong", 1.0)
    assert (floor.server.epochs, ceiling.server.epochs) == (5, 5)
    weak = make_learning({"profile": "weak", "method": {"name": "server_only"}})
    assert (weak.server.strong_weight, weak.server.pretrain_strong_weight) == (0.0, 0.0)


def test_the_floor_has_normalisation_epochs_and_views_of_fedils_server() -> None:
    floor, fedil = (make_learning({"method": {"name": name}}) for name in ("server_only", "fedil"))
    assert floor.network == fedil.network
    theirs = fedil.server.model_dump()
    rounds = {"epochs", "lr_schedule"}  # what a recipe says
    assert {name: value for name, value in floor.server if name not in rounds} == {
        name: value for name, value in theirs.items() if name not in rounds
    }


def test_the_published_profile() -> None:
    paper = make_learning({"profile": "paper", "method": {"name": "supervised"}}).server
    assert (paper.lr, paper.batch_size, paper.lr_schedule, paper.weight_decay) == (0.1, 250, "cosine", 5e-4)


def test_every_reported_number_is_declared() -> None:
    made = method()
    step = made.server_step(made.initial_state(ALL), ALL, 1)
    display = find_method("supervised").display
    assert set(step.metrics) == {series.name for series in display.series()}
    end = made.end_round(step.state, step.broadcast, ALL, 1)
    assert list(end.models) == [model.name for model in display.models]
