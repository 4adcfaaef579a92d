"""FedU and FedEMA: BYOL at the clients, and what a client begins with."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fedil_model.data.augment import TensorViews
from fedil_model.errors import NetworkError, StateError
from fedil_model.methods import find_method, make_learning
from fedil_model.methods.byol import MOST_DIVERGENCE, Byol, byol_loss
from fedil_model.methods.interface import ACCEPTED, INVALID, ClientResult
from fedil_model.networks.heads import WithHeads, mlp_head
from fedil_model.training.evaluate import accuracy
from fedil_model.training.fitting import fit_model
from fedil_model.training.flat_model import FlatModel, Weights
from tests.unit.fedil_model.steps import (
    LABELLED,
    UNLABELLED,
    activate,
    answer,
    answered,
    broadcast_of,
    cloud,
    context_of,
    copied,
    make,
    same,
)

BOTH = ["fedu", "fedema"]
ONE_STEP = {
    "epochs": 1,
    "batch_size": 64,
    "lr": 0.1,
    "lr_schedule": "constant",
    "clip_norm": 0.0,
    "momentum": 0.0,
    "nesterov": False,
    "weight_decay": 0.0,
}
SMALL_HEADS = {"hidden": 12, "output": 6}


def method(name: str, **changes: Any) -> Byol:
    made = make(name, method={**SMALL_HEADS, **changes.pop("method", {})}, **changes)
    assert isinstance(made, Byol)
    return made


class PlainViews(TensorViews):
    """The first view of a batch is plain, the second negative, and so on."""

    calls = 0

    def strong(self, raw: Tensor, generator: torch.Generator) -> Tensor:
        PlainViews.calls += 1
        return self.plain(raw) if PlainViews.calls % 2 else -self.plain(raw)


def with_plain_views(made: Byol) -> Byol:
    PlainViews.calls = 0
    made._view = PlainViews().strong
    return made


def heads_of(made: Byol, weights: Weights) -> tuple[FlatModel, WithHeads]:
    model = made._network()
    model.load(weights)
    assert isinstance(model.module, WithHeads)
    return model, model.module


def received(broadcast: Mapping[str, Tensor]) -> Weights:
    return Weights.named(broadcast, "online")


def trained(broadcast: Mapping[str, Tensor], result: ClientResult) -> Tensor:
    return received(broadcast).params + result.update["delta.params"]


# ---- BYOL -----------------------------------------------------------------------------------------------------------


def test_the_loss_is_the_squared_distance_of_unit_vectors() -> None:
    predictions, projections = torch.tensor([[3.0, 0.0], [1.0, 1.0]]), torch.tensor([[0.0, 2.0], [5.0, 5.0]])
    assert float(byol_loss(predictions, projections)) == pytest.approx((2.0 + 0.0) / 2)


@pytest.mark.parametrize("name", BOTH)
def test_one_step_is_that_of_both_views_predicting_the_target_of_the_other(name: str) -> None:
    made = with_plain_views(method(name, client=ONE_STEP))
    broadcast = broadcast_of(made)
    result = activate(made, broadcast)

    model, module = heads_of(made, received(broadcast))
    module.train()
    both = torch.cat([UNLABELLED, -UNLABELLED])
    predictions, projections = module.predict(both), module.project(both).detach()
    first, second = functional.normalize(predictions, dim=1).chunk(2)
    target_first, target_second = functional.normalize(projections, dim=1).chunk(2)
    loss = ((first - target_second) ** 2).sum(1).mean() + ((second - target_first) ** 2).sum(1).mean()
    grads = model.grads
    loss.backward()  # type: ignore[no-untyped-call]
    assert result.metrics["loss_byol"] == pytest.approx(loss.item(), rel=1e-5)
    assert result.update["delta.params"].numpy() == pytest.approx((-0.1 * grads).numpy(), abs=1e-6)
    assert float(grads.abs().max()) > 1e-3


@pytest.mark.parametrize("name", BOTH)
def test_the_target_follows_every_step_and_gets_no_gradient(name: str) -> None:
    made = method(name, client=ONE_STEP, method={"momentum": 0.75})
    broadcast = broadcast_of(made)
    result = activate(made, broadcast)
    is_f = ~made._predictor_marks
    before_P, after_P = received(broadcast).params, trained(broadcast, result)
    expected = (0.75 * before_P + 0.25 * after_P)[is_f]
    assert result.state["target.params"] == pytest.approx(expected.numpy(), abs=1e-6)
    assert made._teacher._grads is None


@pytest.mark.parametrize("name", BOTH)
def test_parts_of_a_batch_add_up_to_its_samples(name: str) -> None:
    made, whole = method(name), method(name)
    broadcast = broadcast_of(made)
    made.micro_batch = 1
    in_parts, at_once = activate(made, broadcast), activate(whole, broadcast)
    assert in_parts.num_steps == at_once.num_steps
    assert all(bool(tensor.isfinite().all()) for tensor in in_parts.update.values())


@pytest.mark.parametrize("name", BOTH)
def test_the_last_layer_of_the_network_gets_no_gradient_and_heads_do(name: str) -> None:
    made = method(name, client=ONE_STEP)
    result = activate(made, broadcast_of(made))
    moved_P, module = result.update["delta.params"], made._heads
    fc = [moved_P[place] for place in made._student.places_of(module.network.fc)]  # type: ignore[arg-type]
    assert all(not part.any() for part in fc)
    for part in (module.network, module.projector, module.predictor):
        assert any(bool(moved_P[place].any()) for place in made._student.places_of(part))


@pytest.mark.parametrize("name", BOTH)
def test_the_network_that_ships_has_no_heads_and_the_first_weights_of_every_method(name: str) -> None:
    made, other = method(name), make("fedavg_fixmatch")
    state = made.initial_state(LABELLED)
    end = made.end_round(state, {}, LABELLED, 1)
    assert set(end.models) == {model.name for model in find_method(name).display.models}
    assert torch.equal(
        end.models["global"].params, Weights.named(other.initial_state(LABELLED), "global").params
    )
    assert {model.name: model.fit for model in find_method(name).display.models} == {
        "global": "fine_tune",
        "probed": "linear_probe",
    }


@pytest.mark.parametrize("name", BOTH)
def test_rounds_lower_the_loss_and_leave_features_that_tell_classes(name: str) -> None:
    """Features that had collapsed would tell one class in four."""
    made = method(name, client={"epochs": 3, "lr": 0.05})
    state, kept = made.initial_state(LABELLED), dict[int, Any]()
    losses = []
    for number in range(1, 7):
        step = made.server_step(state, LABELLED, number)
        fold = made.open_fold(step.state, {number: step.broadcast}, number, LABELLED)
        for client in range(3):
            inputs = cloud(60, 10 + client).inputs
            result = activate(
                made, step.broadcast, kept.get(client), inputs=inputs, round_number=number, client=client
            )
            kept[client] = result.state
            assert fold.add(answered(result, number, client)).outcome == ACCEPTED
            losses.append(result.metrics["loss_byol"])
        end = made.end_round(fold.close().state, step.broadcast, LABELLED, number)
        state = end.state
    assert np.mean(losses[-3:]) < 0.8 * np.mean(losses[:3])
    network = make("semifl")._network()  # type: ignore[attr-defined]
    learning = context_of({"method": {"name": name}}).learning
    fitted = fit_model("linear_probe", network, end.models["probed"], LABELLED, TensorViews(), learning, 1)
    network.load(fitted)
    assert accuracy(network.module, cloud(200, 99), TensorViews()) > 0.6


@pytest.mark.parametrize("name", BOTH)
def test_what_a_client_kept_of_another_network_is_named(name: str) -> None:
    made = method(name)
    broadcast = broadcast_of(made)
    kept = dict(activate(made, broadcast).state)
    with pytest.raises(StateError, match="the network needs sizes"):
        activate(made, broadcast, {**kept, "target.params": np.zeros(3, np.float32)}, round_number=2)
    with pytest.raises(StateError, match="the network needs sizes"):
        activate(made, broadcast, {**kept, "surplus": np.zeros(3, np.float32)}, round_number=2)
    del kept["divergence"]
    with pytest.raises(StateError, match="the network needs sizes"):
        activate(made, broadcast, kept, round_number=2)


@pytest.mark.parametrize("name", BOTH)
def test_a_divergence_that_a_client_claims_is_bounded_and_decides_nothing(name: str) -> None:
    made = method(name)
    state = made.initial_state(LABELLED)
    step = made.server_step(state, LABELLED, 1)
    result = activate(made, step.broadcast)
    closed = []
    for claimed in (0.1, 1e30, -5.0):
        fold = made.open_fold(step.state, {1: step.broadcast}, 1, LABELLED)
        verdict = fold.add(answer(result.update, result.num_steps, metrics={"divergence": claimed}))
        assert verdict.values["divergence"] == min(max(claimed, 0.0), MOST_DIVERGENCE)
        closed.append(fold.close().state)
    assert same(closed[0], closed[1])
    fold = made.open_fold(step.state, {1: step.broadcast}, 1, LABELLED)
    assert fold.add(answer({"delta.params": torch.zeros(3)})).outcome == INVALID


@pytest.mark.parametrize("name", BOTH)
def test_the_divergence_is_the_mean_norm_over_weight_tensors_without_the_last_layer(name: str) -> None:
    made = method(name)
    broadcast = broadcast_of(made)
    result = activate(made, broadcast)
    before, after = (
        heads_of(made, Weights(params, received(broadcast).buffers))[1]
        for params in (received(broadcast).params, trained(broadcast, result))
    )
    pairs = zip(before.network.named_parameters(), after.network.named_parameters(), strict=True)
    norms = [
        float((new - old).detach().norm())
        for (key, old), (_, new) in pairs
        if old.ndim > 1 and not key.startswith("fc.")
    ]
    assert len(norms) == 2
    assert result.metrics["divergence"] == pytest.approx(sum(norms) / 2, rel=1e-4)


def test_a_network_without_features_is_named() -> None:
    values = {"method": {"name": "fedu"}, "network": {"name": "tests.unit.fedil_model.test_byol:no_features"}}
    with pytest.raises(NetworkError, match="gives no features, which this method needs"):
        find_method("fedu").make(context_of(values))


def no_features(input_shape: tuple[int, ...], num_classes: int) -> torch.nn.Module:
    return torch.nn.Linear(input_shape[0], num_classes)


def test_heads_have_no_buffers_and_two_samples_are_enough() -> None:
    head = mlp_head(4, 8, 2)
    assert not list(head.buffers())
    assert head(torch.randn(2, 4)).shape == (2, 2)


@pytest.mark.parametrize("name", BOTH)
def test_statistics_of_batch_norm_are_averaged_and_a_negative_variance_is_refused(name: str) -> None:
    made = method(name, network={"norm": "bn"})
    state = made.initial_state(LABELLED)
    step = made.server_step(state, LABELLED, 1)
    result = activate(made, step.broadcast)
    fold = made.open_fold(step.state, {1: step.broadcast}, 1, LABELLED)
    bad = {**copied(result.update), "delta.buffers": result.update["delta.buffers"] - 100.0}
    assert fold.add(answer(bad)).outcome == INVALID
    assert fold.add(answered(result)).counts
    network = made.end_round(fold.close().state, step.broadcast, LABELLED, 1).models["global"]
    fits = make("semifl", network={"norm": "bn"})._network()  # type: ignore[attr-defined]
    fits.load(network)
    assert not torch.equal(network.buffers, received(step.broadcast).buffers)


# ---- FedU -----------------------------------------------------------------------------------------------------------


def start_of(made: Byol, broadcast: Mapping[str, Tensor], kept: Mapping[str, Any]) -> Any:
    return made._begin(received(broadcast), made._read(kept))


def test_fedu_keeps_its_own_predictor_only_after_training_that_moved_the_network_far() -> None:
    far, near = method("fedu", method={"max_divergence": 0.0}), method("fedu", method={"max_divergence": 9.0})
    broadcast = broadcast_of(far)
    kept_far, kept_near = activate(far, broadcast).state, activate(near, broadcast).state
    assert "predictor" in kept_far
    assert "predictor" not in kept_near

    later = {name: tensor + 0.01 for name, tensor in broadcast.items()}
    is_h = far._predictor_marks
    start = start_of(far, later, kept_far)
    assert torch.equal(start.online.params[~is_h], received(later).params[~is_h]), "f is the average"
    assert np.array_equal(start.online.params[is_h].numpy(), kept_far["predictor"])
    assert np.array_equal(start.target.params[~is_h].numpy(), kept_far["target.params"]), "f_t stays"
    assert start.own_share == 1.0
    start = start_of(near, later, kept_near)
    assert torch.equal(start.online.params, received(later).params)
    assert start.own_share == 0.0
    assert activate(far, later, kept_far, round_number=2).metrics["own_share"] == 1.0


def test_fedu_sends_the_difference_from_what_it_received_also_with_its_own_predictor() -> None:
    made = method("fedu", method={"max_divergence": 0.0}, client={**ONE_STEP, "lr": 1e-12})
    broadcast = broadcast_of(made)
    kept = dict(activate(made, broadcast).state)
    kept["predictor"] = kept["predictor"] + np.float32(0.5)
    moved_P = activate(made, broadcast, kept, round_number=2).update["delta.params"]
    assert moved_P[made._predictor_marks].tolist() == pytest.approx([0.5] * made._num_predictor, abs=1e-5)
    assert float(moved_P[~made._predictor_marks].abs().max()) < 1e-5


@pytest.mark.parametrize(("max_age", "is_used"), [(1, False), (2, False), (3, True), (None, True)])
def test_what_a_client_kept_is_used_up_to_an_age(max_age: int | None, is_used: bool) -> None:
    made = method("fedu", method={"max_divergence": 0.0, "max_age": max_age})
    broadcast = broadcast_of(made)
    kept = activate(made, broadcast, round_number=4).state
    again = activate(made, broadcast, kept, round_number=7)
    assert again.metrics["own_share"] == float(is_used)
    fresh = activate(made, broadcast, round_number=7)
    assert same(again.update, fresh.update) == (not is_used)


# ---- FedEMA ---------------------------------------------------------------------------------------------------------


def test_fedema_blends_by_the_divergence_on_the_scale_of_the_first() -> None:
    made = method("fedema", method={"first_share": 0.6})
    broadcast = broadcast_of(made)
    first = activate(made, broadcast, round_number=1)
    scale = 0.6 / first.metrics["divergence"]
    assert float(first.state["scale"][0]) == pytest.approx(scale, rel=1e-5)

    later = {name: tensor + 0.01 for name, tensor in broadcast.items()}
    start = start_of(made, later, first.state)
    own_P = torch.from_numpy(first.state["online"])
    assert start.own_share == pytest.approx(0.6, rel=1e-5)
    expected = 0.6 * own_P + 0.4 * received(later).params
    assert start.online.params.numpy() == pytest.approx(expected.numpy(), abs=1e-6)
    assert torch.equal(start.online.buffers, received(later).buffers)

    second = activate(made, later, first.state, round_number=2)
    assert second.metrics["own_share"] == pytest.approx(0.6, rel=1e-5)
    assert np.array_equal(second.state["scale"], first.state["scale"]), "λ is that of the first divergence"
    third = activate(made, later, second.state, round_number=3)
    assert third.metrics["own_share"] == pytest.approx(
        min(1.0, scale * second.metrics["divergence"]), rel=1e-4
    )


def test_fedemas_share_is_at_most_one() -> None:
    made = method("fedema")
    broadcast = broadcast_of(made)
    kept = {**activate(made, broadcast).state, "divergence": np.array([1e6], np.float32)}
    start = start_of(made, broadcast, kept)
    assert start.own_share == 1.0
    assert start.online.params.numpy() == pytest.approx(kept["online"], abs=1e-6)


def test_fedema_blends_only_after_training_in_the_round_before_and_keeps_its_scale() -> None:
    made = method("fedema")
    broadcast = broadcast_of(made)
    first = activate(made, broadcast, round_number=1)
    later = activate(made, broadcast, first.state, round_number=3)
    assert later.metrics["own_share"] == 0.0
    assert same(later.update, activate(made, broadcast, round_number=3).update)
    assert np.array_equal(later.state["scale"], first.state["scale"])


@pytest.mark.parametrize(("name", "kept"), [("fedu", 1), ("fedema", 2)])
def test_bytes_that_a_client_keeps_are_as_the_module_says(name: str, kept: int) -> None:
    """f_t, and of FedEMA also f and h: 4 bytes for each parameter."""
    made = method(name, method={"max_divergence": 9.0} if name == "fedu" else {})
    state = activate(made, broadcast_of(made)).state
    num_params, num_h = made._student.num_params, made._num_predictor
    expected = 4 * (kept * num_params - num_h)
    assert sum(array.nbytes for array in state.values()) == pytest.approx(expected, abs=4 * 3)


@pytest.mark.parametrize("name", BOTH)
def test_the_profile_paper_has_the_published_settings(name: str) -> None:
    learning = make_learning({"method": {"name": name}, "profile": "paper"})
    client = learning.client
    assert (client.epochs, client.batch_size, client.lr, client.momentum) == (5, 128, 0.032, 0.9)
    assert (client.weight_decay, client.nesterov, client.lr_schedule) == (5e-4, False, "cosine")
    settings = learning.method.model_dump()
    assert (settings["hidden"], settings["output"], settings["momentum"]) == (4096, 2048, 0.99)
    assert settings["max_divergence"] == 0.4 if name == "fedu" else settings["first_share"] == 0.7
