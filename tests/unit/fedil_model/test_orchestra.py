"""Orchestra: clusters of the server as targets of the clients, and clients' centroids as points of the server."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fedil_model.data.augment import ImageViews, TensorViews
from fedil_model.methods import find_method, make_learning
from fedil_model.methods.interface import ACCEPTED, INVALID, ClientResult, MethodContext, ServerStep
from fedil_model.methods.orchestra import Orchestra, cluster_loss
from fedil_model.networks.heads import WithHeads
from fedil_model.training.clustering import fit_centroids
from fedil_model.training.flat_model import Weights
from tests.unit.fedil_model.steps import (
    CPU,
    LABELLED,
    SMALL,
    UNLABELLED,
    activate,
    answer,
    answered,
    broadcast_of,
    cloud,
    copied,
    make,
    same,
)
from tests.unit.fedil_model.test_byol import ONE_STEP

SIZES = {"hidden": 12, "output": 6, "clusters": 5, "local_clusters": 4, "memory": 40, "server_steps": 20}


def method(**changes: Any) -> Orchestra:
    made = make("orchestra", method={**SIZES, **changes.pop("method", {})}, **changes)
    assert isinstance(made, Orchestra)
    return made


def with_plain_views(made: Orchestra) -> Orchestra:
    made._first_view = lambda raw, _: raw.clone()
    made._second_view = lambda raw, _: -raw
    return made


def online(made: Orchestra, broadcast: Mapping[str, Tensor]) -> tuple[Any, WithHeads]:
    model = made._network()
    model.load(Weights.named(broadcast, "online"))
    assert isinstance(model.module, WithHeads)
    return model, model.module.train()


def unit_rows(rows: Tensor) -> Tensor:
    units: Tensor = rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return units


def test_the_loss_is_the_cross_entropy_of_softened_clusters() -> None:
    online_BF = torch.tensor([[2.0, 0.0], [0.0, 1.0]], requires_grad=True)
    target_BF = torch.tensor([[0.0, 3.0], [1.0, 1.0]], requires_grad=True)
    centroids = torch.eye(2)
    loss = cluster_loss(online_BF, target_BF, centroids, 0.5)
    wanted = np.exp(np.array([[0.0, 2.0], [2**0.5, 2**0.5]]))
    got = np.exp(np.array([[2.0, 0.0], [0.0, 2.0]]))
    wanted, got = wanted / wanted.sum(1, keepdims=True), got / got.sum(1, keepdims=True)
    assert loss.item() == pytest.approx(-(wanted * np.log(got)).sum(1).mean(), rel=1e-5)
    loss.backward()  # type: ignore[no-untyped-call]
    assert target_BF.grad is None
    assert online_BF.grad is not None
    assert float(online_BF.grad.abs().max()) > 0.0


def test_one_step_moves_projections_of_one_view_to_the_targets_clusters_of_another() -> None:
    made = with_plain_views(method(client=ONE_STEP))
    broadcast = {**broadcast_of(made)}
    broadcast["target"] = broadcast["target"] * 1.1  # other weights than the online network's
    result = activate(made, broadcast)

    model, module = online(made, broadcast)
    follower = made._network()
    start_P = Weights.named(broadcast, "online").params
    follower.load(
        Weights(0.996 * broadcast["target"] + 0.004 * start_P, Weights.named(broadcast, "online").buffers)
    )
    assert isinstance(follower.module, WithHeads)
    with torch.no_grad():
        targets = unit_rows(follower.module.train().project(UNLABELLED))
    projections = module.project(-UNLABELLED)  # samples of a table are not turned
    wanted = (targets @ broadcast["centroids"].T / 0.1).softmax(1)
    log_got = (unit_rows(projections) @ broadcast["centroids"].T / 0.1).log_softmax(1)
    loss = -(wanted * log_got).sum(1).mean()
    grads = model.grads
    loss.backward()  # type: ignore[no-untyped-call]
    assert result.metrics["loss_cluster"] == pytest.approx(loss.item(), rel=1e-4)
    assert result.metrics["loss_rotation"] == 0.0
    assert result.update["delta.params"].numpy() == pytest.approx((-0.1 * grads).numpy(), abs=1e-5)
    assert float(grads.abs().max()) > 1e-3
    assert made._teacher._grads is None


def image_method(**changes: Any) -> Orchestra:
    values = {
        **SMALL,
        "network": {"name": "cnn", "width": 8, "norm": "gn"},
        "method": {"name": "orchestra", **SIZES, **changes},
    }
    learning = make_learning({**values, "client": ONE_STEP})
    views = ImageViews((0.5,), (0.25,))
    made = find_method("orchestra").make(MethodContext(learning, (1, 8, 8), 4, views, CPU))
    assert isinstance(made, Orchestra)
    return made


IMAGES = torch.randint(0, 256, (24, 1, 8, 8), generator=torch.Generator().manual_seed(7)).byte()


def image_broadcast(made: Orchestra) -> Mapping[str, Tensor]:
    labelled = type(LABELLED)(IMAGES[:8], torch.arange(8) % 4)
    return made.server_step(made.initial_state(labelled), labelled, 1).broadcast


def test_images_are_turned_and_the_turns_are_told() -> None:
    made = image_method()
    seen = []
    turn = made._turn

    def recorded(views_B: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        turned_B, turns_B = turn(views_B, generator)
        seen.append((views_B, turned_B, turns_B))
        return turned_B, turns_B

    made._turn = recorded  # type: ignore[method-assign]
    made._second_view = lambda raw, _: raw.float() / 100
    broadcast = image_broadcast(made)
    result = activate(made, broadcast, inputs=IMAGES)
    ((views_B, turned_B, turns_B),) = seen
    assert {1, 2, 3} <= set(turns_B.tolist()) <= {0, 1, 2, 3}
    for view, turned, turns in zip(views_B, turned_B, turns_B.tolist(), strict=True):
        assert torch.equal(torch.rot90(view, turns, (1, 2)), turned)
    # The order of samples does not matter to batch norm.
    _, module = online(made, broadcast)
    with torch.no_grad():
        expected = functional.cross_entropy(module.predictor(module.project(turned_B)), turns_B)
    assert result.metrics["loss_rotation"] == pytest.approx(expected.item(), rel=1e-4)


def test_without_its_weight_the_turns_teach_nothing() -> None:
    made = image_method(weight_rotation=0.0)
    moved_P = activate(made, image_broadcast(made), inputs=IMAGES).update["delta.params"]
    places = made._student.places_of(made._heads.predictor)
    assert not any(bool(moved_P[place].any()) for place in places)
    made = image_method()
    moved_P = activate(made, image_broadcast(made), inputs=IMAGES).update["delta.params"]
    assert any(bool(moved_P[place].any()) for place in places)


@pytest.mark.parametrize("num_samples", [1, 2, 60])
@pytest.mark.parametrize("micro_batch", [None, 1])
def test_a_client_sends_unit_centroids_and_keeps_nothing(num_samples: int, micro_batch: int | None) -> None:
    made = method()
    made.micro_batch = micro_batch
    result = activate(made, broadcast_of(made), inputs=UNLABELLED[:num_samples])
    centroids_LF = result.update["centroids"]
    assert centroids_LF.shape == (4, 6)
    assert centroids_LF.norm(dim=1).tolist() == pytest.approx([1.0] * 4, abs=1e-3)
    assert result.state == {}
    assert 0.0 < result.metrics["used_share"] <= 1.0


def test_the_first_clusters_are_unit_vectors_of_the_servers_samples() -> None:
    made = method()
    state = made.initial_state(LABELLED)
    assert state["centroids"].norm(dim=1).tolist() == pytest.approx([1.0] * 5)
    other_labels = type(LABELLED)(LABELLED.inputs, LABELLED.labels.flip(0))
    assert same(state, made.initial_state(other_labels)), "labels are not used"
    assert torch.equal(state["target"], state["online.params"])


def opened() -> tuple[Orchestra, ServerStep, list[ClientResult]]:
    made = method()
    step = made.server_step(made.initial_state(LABELLED), LABELLED, 1)
    results = [
        activate(made, step.broadcast, inputs=cloud(60, 10 + client).inputs, client=client)
        for client in range(3)
    ]
    return made, step, results


def test_the_fold_averages_networks_fits_clusters_and_moves_the_target_by_the_middle_clients_steps() -> None:
    made, step, results = opened()
    fold = made.open_fold(step.state, {1: step.broadcast}, 1, LABELLED)
    steps = [5, 10**9, 7]
    for client in (2, 0, 1):
        result = results[client]
        assert fold.add(answer(result.update, steps[client], client=client)).outcome == ACCEPTED
    folded = fold.close()
    mean_P = torch.stack([result.update["delta.params"] for result in results]).mean(0)
    online_P = step.broadcast["online.params"] + mean_P
    assert folded.state["online.params"].numpy() == pytest.approx(online_P.numpy(), abs=1e-6)
    kept = 0.996**7
    expected = kept * step.broadcast["target"] + (1 - kept) * online_P
    assert folded.state["target"].numpy() == pytest.approx(expected.numpy(), abs=1e-6)
    points_NF = torch.cat([result.update["centroids"] for result in results])
    centroids_KF, agreement = fit_centroids(points_NF, step.state["centroids"], 0.1, 20)
    assert torch.equal(folded.state["centroids"], centroids_KF)
    assert folded.metrics["agreement"] == agreement
    assert not torch.equal(centroids_KF, step.state["centroids"])


def spoilt_centroids(result: ClientResult) -> list[tuple[dict[str, Tensor], str]]:
    good = result.update["centroids"]
    without = copied(result.update)
    del without["centroids"]
    with_nan = good.clone()
    with_nan[1, 2] = float("nan")
    changes = [
        (good * 2.0, "lengths of centroids differ from 1"),
        (with_nan, "lengths of centroids differ from 1"),
        (good[:2], "not \\(4, 6\\)"),
        (good.double(), "float64"),
    ]
    return [
        (without, "no centroids"),
        *(({**copied(result.update), "centroids": each}, why) for each, why in changes),
    ]


def test_centroids_that_are_none_are_refused_and_change_nothing() -> None:
    made, step, results = opened()
    alone = made.open_fold(step.state, {1: step.broadcast}, 1, LABELLED)
    alone.add(answered(results[0]))
    fold = made.open_fold(step.state, {1: step.broadcast}, 1, LABELLED)
    fold.add(answered(results[0]))
    for update, why in spoilt_centroids(results[1]):
        verdict = fold.add(answer(update, client=1))
        assert verdict.outcome == INVALID
        assert re.search(why, verdict.detail), verdict.detail
    bad = {
        **copied(results[2].update),
        "delta.params": torch.full_like(results[2].update["delta.params"], 1e30),
    }
    assert fold.add(answer(bad, client=2)).outcome == INVALID
    assert same(fold.close().state, alone.close().state)


def test_a_round_without_an_update_leaves_clusters_and_target_as_they_are() -> None:
    made, step, _ = opened()
    folded = made.open_fold(step.state, {1: step.broadcast}, 1, LABELLED).close()
    assert same(folded.state, step.state)
    assert folded.notes == ("no update was accepted",)


def test_rounds_lower_the_loss_and_use_several_clusters() -> None:
    made = method(client={"epochs": 3, "lr": 0.05})
    state, found = made.initial_state(LABELLED), list[Mapping[str, float]]()
    for number in range(1, 9):
        step = made.server_step(state, LABELLED, number)
        fold = made.open_fold(step.state, {number: step.broadcast}, number, LABELLED)
        for client in range(3):
            inputs = cloud(60, 10 + client).inputs
            result = activate(made, step.broadcast, inputs=inputs, round_number=number, client=client)
            assert fold.add(answered(result, number, client)).counts
            found.append(result.metrics)
        state = made.end_round(fold.close().state, step.broadcast, LABELLED, number).state
    first, last = found[:3], found[-3:]
    assert np.mean([one["loss_cluster"] for one in last]) < np.mean([one["loss_cluster"] for one in first])
    assert np.mean([one["used_share"] for one in last]) > 0.5


def test_views_of_tables_are_not_turned() -> None:
    made = method()
    assert isinstance(made._views, TensorViews)
    views_B = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    turned_B, turns_B = made._turn(views_B, torch.Generator().manual_seed(2))
    assert torch.equal(turned_B, views_B)
    assert turns_B.tolist() == [0] * 4


def test_the_profile_paper_has_the_published_settings() -> None:
    learning = make_learning({"method": {"name": "orchestra"}, "profile": "paper"})
    client = learning.client
    assert (client.epochs, client.batch_size, client.lr, client.momentum) == (10, 16, 0.003, 0.9)
    assert (client.weight_decay, client.nesterov, client.clip_norm) == (1e-4, False, 0.0)
    settings = learning.method.model_dump()
    assert (settings["hidden"], settings["output"], settings["momentum"]) == (512, 512, 0.996)
    assert (settings["local_clusters"], settings["memory"], settings["server_steps"]) == (16, 128, 500)
