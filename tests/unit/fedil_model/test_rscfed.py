"""RSCFed: groups of models weighted by distance, clients with mean teachers."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedil_model.errors import StateError
from fedil_model.methods import find_method, make_learning
from fedil_model.methods.interface import INVALID, Folded, Verdict
from fedil_model.methods.rscfed import RSCFed, RSCFedSettings, consistency_loss, teacher_share, weigh_group
from fedil_model.training.flat_model import Weights
from tests.unit.fedil_model.steps import (
    LABELLED,
    activate,
    answer,
    answered,
    broadcast_of,
    copied,
    initial_accuracy,
    make,
    play,
    same,
)

SIZES = ([2, 1], [1])


def method(**changes: Any) -> RSCFed:
    made = make("rscfed", **changes)
    assert isinstance(made, RSCFed)
    return made


def weights(params: list[float], buffers: list[float]) -> Weights:
    return Weights(torch.tensor(params), torch.tensor(buffers))


# ---- clients --------------------------------------------------------------------------------------------------------


def test_the_loss_is_the_squared_distance_from_the_sharpened_prediction_of_the_teacher() -> None:
    teacher_BC = torch.tensor([[0.8, 0.2], [0.5, 0.5]]).log().requires_grad_()
    student_BC = torch.tensor([[0.6, 0.4], [0.1, 0.9]]).log().requires_grad_()
    loss = consistency_loss(student_BC, teacher_BC)
    torch.autograd.backward(loss)
    sharp = 0.64 / 0.68
    assert float(loss.detach()) == pytest.approx((2 * (0.6 - sharp) ** 2 + 2 * 0.4**2) / 2)
    assert teacher_BC.grad is None
    assert student_BC.grad is not None
    assert student_BC.grad.any(dim=1).all()


def test_the_teacher_follows_with_a_share_that_shrinks() -> None:
    assert [teacher_share(step, 0.999) for step in (0, 1, 3)] == pytest.approx([1.0, 0.5, 0.25])
    assert teacher_share(10**6, 0.999) == pytest.approx(0.001)
    assert teacher_share(1, 0.4) == pytest.approx(0.6)


@pytest.mark.parametrize("norm", ["gn", "bn"])
def test_a_kept_teacher_is_the_running_mean_of_the_students(norm: str) -> None:
    """With one step a task: the mean of the two students, since the shares are 1 and 1/2."""
    client = {"epochs": 1, "batch_size": 64}
    made = method(method={"teacher": "kept"}, client=client, network={"norm": norm})
    broadcast = broadcast_of(made)
    start = Weights.named(broadcast, "global")
    first = activate(made, broadcast)
    second = activate(made, broadcast, first.state, round_number=2)
    students = [
        Weights(start.params + result.update["delta.params"], start.buffers + result.update["delta.buffers"])
        for result in (first, second)
    ]
    assert first.state["teacher.params"] == pytest.approx(students[0].params.numpy(), abs=1e-6)
    assert second.state["teacher.params"] == pytest.approx(
        (students[0].params.numpy() + students[1].params.numpy()) / 2, abs=1e-6
    )
    assert second.state["teacher.buffers"] == pytest.approx(
        (students[0].buffers.numpy() + students[1].buffers.numpy()) / 2, abs=1e-6
    )
    assert second.state["steps"].tolist() == [2]
    view = find_method("rscfed").view_state
    assert view is not None
    assert view(second.state).counts == {"teacher_steps": 2}
    assert view({}).counts == {"teacher_steps": 0}


def test_by_default_a_client_keeps_nothing_and_moves_by_its_loss() -> None:
    made = method(client={"weight_decay": 0.0})
    broadcast = broadcast_of(made)
    before = copied(broadcast)
    result = activate(made, broadcast)
    assert result.state == {}
    assert float(result.update["delta.params"].norm()) > 1e-3
    assert result.metrics["loss_consistency"] > 0.0
    assert same(before, broadcast)
    still = activate(method(client={"weight_decay": 0.0}, method={"weight_consistency": 0.0}), broadcast)
    assert float(still.update["delta.params"].norm()) == 0.0


def test_a_kept_teacher_changes_what_is_learned() -> None:
    made = method(method={"teacher": "kept"})
    broadcast = broadcast_of(made)
    kept = activate(made, broadcast).state
    moved = {**kept, "teacher.params": kept["teacher.params"] + np.float32(0.1)}
    one, other = (activate(made, broadcast, state, round_number=2) for state in (kept, moved))
    assert not same(one.update, other.update)


def test_a_teacher_that_does_not_fit_is_an_error() -> None:
    made = method(method={"teacher": "kept"})
    broadcast = broadcast_of(made)
    kept = activate(made, broadcast).state
    with pytest.raises(StateError, match="do not fit"):
        activate(made, broadcast, {**kept, "teacher.params": kept["teacher.params"][1:]})


@pytest.mark.parametrize("norm", ["gn", "bn", "sbn"])
def test_a_client_of_one_sample_trains(norm: str) -> None:
    made = method(network={"norm": norm})
    result = activate(made, broadcast_of(made), inputs=LABELLED.inputs[:1])
    assert all(bool(torch.isfinite(tensor).all()) for tensor in result.update.values())


@pytest.mark.parametrize("micro_batch", [1, 7])
def test_gradients_of_parts_add_up_to_those_of_the_batch(micro_batch: int) -> None:
    client = {"epochs": 1, "batch_size": 64}
    whole, parts = method(client=client), method(client=client)
    parts.micro_batch = micro_batch
    broadcast = broadcast_of(whole)
    a, b = (activate(each, broadcast).update["delta.params"] for each in (whole, parts))
    assert float(a.norm()) > 1e-4
    assert torch.allclose(a, b, atol=1e-6)


# ---- the fold -------------------------------------------------------------------------------------------------------


def expected_weights(models: list[Weights], counts: list[float], factor: float, beta: float) -> list[float]:
    """In plain numbers, tensor by tensor."""
    flat = [[*model.params.tolist(), *model.buffers.tolist()] for model in models]
    first = [count * (factor if number == 0 else 1.0) for number, count in enumerate(counts)]
    mean = [sum(a * row[at] for a, row in zip(first, flat, strict=True)) / sum(first) for at in range(4)]
    second = []
    for number, (a, count, row) in enumerate(zip(first, counts, flat, strict=True)):
        gaps = [x - m for x, m in zip(row, mean, strict=True)]
        distance = math.hypot(gaps[0], gaps[1]) + abs(gaps[2]) + abs(gaps[3])
        second.append(a * (factor if number == 0 else 1.0) * math.exp(-beta * distance / count))
    return [one / sum(second) for one in second]


def test_the_weights_of_a_group_are_the_papers() -> None:
    models = [
        weights([1.0, 2.0, 0.5], [1.0]),
        weights([1.5, 1.0, 0.0], [1.5]),
        weights([0.0, 2.5, 3.0], [0.5]),
    ]
    counts = [50.0, 70.0, 60.0]
    found = weigh_group(models, counts, SIZES, labelled_factor=6.0, distance_factor=100.0)
    assert found == pytest.approx(expected_weights(models, counts, 6.0, 100.0), rel=1e-4)
    assert sum(found) == pytest.approx(1.0)
    assert found[0] > found[1] > found[2]
    # Far apart, where every exponential would be 0:
    far = weigh_group(models, counts, SIZES, labelled_factor=1.0, distance_factor=1e6)
    assert sum(far) == pytest.approx(1.0)


def fold_of(
    made: RSCFed, deltas: dict[int, Tensor], num_samples: int = 60
) -> tuple[list[Verdict], Folded, Any]:
    step = made.server_step(made.initial_state(LABELLED), LABELLED, 1)
    fold = made.open_fold(step.state, {1: step.broadcast}, 1, LABELLED)
    nothing_Q = torch.zeros_like(step.broadcast["global.buffers"])
    verdicts = [
        fold.add(
            answer(
                {"delta.params": delta, "delta.buffers": nothing_Q}, client=client, num_samples=num_samples
            )
        )
        for client, delta in deltas.items()
    ]
    return verdicts, fold.close(), step


def test_the_new_model_is_the_mean_of_the_groups() -> None:
    """Without distances and with as many labels as a client has samples, every member counts the same."""
    made = method(
        method={"distance_factor": 0.0, "labelled_factor": 1.0, "clients_per_group": 2, "groups": 1}
    )
    deltas = {
        client: torch.full((len(broadcast_of(made)["global.params"]),), 0.01 * client) for client in (1, 2)
    }
    _, folded, step = fold_of(made, deltas, num_samples=len(LABELLED.labels))
    start = step.broadcast["global.params"]
    expected = (step.state["server.params"] + 2 * start + 0.03) / 3
    assert torch.allclose(folded.state["global.params"], expected, atol=1e-6)
    assert folded.metrics["server_weight"] == pytest.approx(1 / 3)
    assert folded.delta_norm == pytest.approx(float((expected - start).norm()), rel=1e-4)


def test_groups_are_drawn_from_the_seed_and_the_round() -> None:
    made = method(method={"clients_per_group": 2})
    deltas = {
        client: torch.full_like(broadcast_of(made)["global.params"], 0.01 * client) for client in range(5)
    }
    _, first, _ = fold_of(made, deltas)
    _, again, _ = fold_of(method(method={"clients_per_group": 2}), dict(reversed(deltas.items())))
    assert same(first.state, again.state)
    _, other, _ = fold_of(method(seed=5, method={"clients_per_group": 2}), deltas)
    assert not same(first.state, other.state)


def test_a_far_model_counts_less_than_a_near_one() -> None:
    made = method(method={"clients_per_group": 2, "groups": 1})
    size = len(broadcast_of(made)["global.params"])
    far = {0: torch.zeros(size), 1: torch.full((size,), 0.3)}
    _, folded, step = fold_of(made, far)
    moved = (folded.state["global.params"] - step.broadcast["global.params"]).mean()
    assert float(moved) < 0.1 * 0.3


def test_a_sample_count_beyond_the_others_is_bounded() -> None:
    made = method(
        method={"distance_factor": 0.0, "labelled_factor": 1.0, "clients_per_group": 3, "groups": 1}
    )
    step = made.server_step(made.initial_state(LABELLED), LABELLED, 1)
    size = len(step.broadcast["global.params"])

    def moved(claimed: int) -> float:
        fold = made.open_fold(step.state, {1: step.broadcast}, 1, LABELLED)
        for client, samples in enumerate((60, 60, claimed)):
            delta = {
                "delta.params": torch.full((size,), 0.1 * (client == 2)),
                "delta.buffers": torch.zeros(0),
            }
            fold.add(answer(delta, client=client, num_samples=samples))
        return float((fold.close().state["global.params"] - step.broadcast["global.params"]).mean())

    assert moved(10**9) == pytest.approx(moved(240), rel=1e-5)
    assert moved(10**9) > moved(60)


def test_what_is_no_update_is_refused_and_without_any_the_servers_model_is_the_new_one() -> None:
    made = method()
    size = len(broadcast_of(made)["global.params"])
    bad = {0: torch.full((size,), math.nan), 1: torch.full((size,), 1e30), 2: torch.zeros(size - 1)}
    verdicts, folded, step = fold_of(made, bad)
    assert [verdict.outcome for verdict in verdicts] == [INVALID] * 3
    assert torch.allclose(folded.state["global.params"], step.state["server.params"], atol=1e-6)
    assert folded.notes == ("no update was accepted",)


def test_absurd_running_statistics_are_refused() -> None:
    made = method(network={"norm": "bn"})
    step = made.server_step(made.initial_state(LABELLED), LABELLED, 1)
    fold = made.open_fold(step.state, {1: step.broadcast}, 1, LABELLED)
    base = Weights.named(step.broadcast, "global")
    nothing_P = torch.zeros_like(base.params)
    for buffers_Q in (torch.full_like(base.buffers, 1e30), -3 * base.buffers):
        verdict = fold.add(answer({"delta.params": nothing_P, "delta.buffers": buffers_Q}))
        assert verdict.outcome == INVALID


# ---- the whole ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["gn", "bn", "sbn"])
def test_it_learns(norm: str) -> None:
    made = method(network={"norm": norm})
    state, accuracies = play(made, 4)
    assert set(state) == {"global.params", "global.buffers"}
    assert accuracies["global"][-1] > 0.8 > 0.4 > initial_accuracy(made)


def test_the_papers_profile() -> None:
    paper = make_learning({"profile": "paper", "method": {"name": "rscfed"}})
    settings = paper.method
    assert isinstance(settings, RSCFedSettings)
    assert (settings.groups, settings.labelled_factor, settings.distance_factor) == (3, 6.0, 100.0)
    assert (settings.weight_consistency, settings.teacher, settings.teacher_decay) == (0.02, "kept", 0.999)
    assert (paper.client.lr, paper.server.lr, paper.client.batch_size, paper.client.epochs) == (
        0.021,
        0.03,
        64,
        1,
    )

    # torch.optim.SGD(lr, momentum=0.9, weight_decay=5e-4), without nesterov
    for optimiser in (paper.client, paper.server):
        assert (optimiser.momentum, optimiser.nesterov, optimiser.weight_decay) == (0.9, False, 5e-4)


def test_labels_count_in_every_profile_as_published() -> None:
    for profile in find_method("rscfed").profiles:
        settings = make_learning({"profile": profile, "method": {"name": "rscfed"}}).method
        assert isinstance(settings, RSCFedSettings)
        assert (settings.labelled_factor, settings.distance_factor) == (6.0, 100.0)


def test_with_the_published_factor_the_servers_model_leads_its_groups_where_it_is_the_farther_one() -> None:
    """50 labels against shards of 70; the clients' models lie together. Without the factor it is an eighth at most."""
    models = [
        weights([0.3, 0.0, 0.3], [0.0]),
        *(weights([0.0, 0.01 * number, 0.0], [0.0]) for number in range(3)),
    ]
    counts = [50.0, 70.0, 70.0, 70.0]
    published, plain = (weigh_group(models, counts, SIZES, factor, 100.0)[0] for factor in (6.0, 1.0))
    assert plain < 1 / 8 < 1 / 2 < published


def test_every_reported_number_is_declared() -> None:
    made = method()
    step = made.server_step(made.initial_state(LABELLED), LABELLED, 1)
    result = activate(made, step.broadcast)
    fold = made.open_fold(step.state, {1: step.broadcast}, 1, LABELLED)
    fold.add(answered(result))
    folded = fold.close()
    display = find_method("rscfed").display
    assert {*step.metrics, *result.metrics, *folded.metrics} == {series.name for series in display.series()}
    models = made.end_round(folded.state, step.broadcast, LABELLED, 1).models
    assert list(models) == [model.name for model in display.models]
