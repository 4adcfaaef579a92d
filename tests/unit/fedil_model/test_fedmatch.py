"""FedMatch: the server trains one part and clients the other; its losses, and helpers."""

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from fedil_model.errors import NumericError
from fedil_model.methods import find_method, make_learning
from fedil_model.methods.fedmatch import FedMatchSettings
from fedil_model.methods.fedmatch.method import FedMatch, helper_loss, vote
from fedil_model.methods.interface import ClientResult, State
from fedil_model.training.flat_model import Weights
from tests.unit.fedil_model.steps import (
    LABELLED,
    UNLABELLED,
    activate,
    answered,
    broadcast_of,
    cloud,
    copied,
    initial_accuracy,
    make,
    play,
    same,
)

ONE_STEP = {
    "epochs": 1,
    "batch_size": 64,
    "lr": 0.1,
    "lr_schedule": "constant",
    "clip_norm": 0.0,
    "momentum": 0.0,
    "nesterov": False,
}
NO_REGULARISERS = {"weight_sparsity": 0.0, "weight_distance": 0.0}


def method(**changes: Any) -> FedMatch:
    settings = {"threshold": 0.6, "weight_pseudo": 1.0, "weight_helpers": 1.0, **changes.pop("method", {})}
    made = make("fedmatch", method=settings, **changes)
    assert isinstance(made, FedMatch)
    return made


def dense(made: FedMatch, result: ClientResult) -> Tensor:
    delta_P = torch.zeros(made._student.num_params)
    delta_P[result.update["psi.indices"].long()] = result.update["psi.values"]
    return delta_P


def logits(*rows: tuple[float, ...]) -> Tensor:
    return torch.tensor(rows).log()


# Parts


def test_both_parts_add_up_to_the_initial_weights_and_norms_begin_in_the_servers() -> None:
    made = method()
    state, weights, decayed = (
        made.initial_state(LABELLED),
        made._network().weights(),
        made._student.num_decayed,
    )
    assert torch.allclose(state["sigma.params"] + state["psi.params"], weights.params, atol=1e-7)
    assert torch.allclose(state["psi.params"][:decayed], 0.2 * state["sigma.params"][:decayed], atol=1e-6)
    assert not state["psi.params"][decayed:].any()
    assert 0 < decayed < len(weights.params)


def test_the_server_moves_its_part_and_leaves_the_clients() -> None:
    made = method()
    state = made.initial_state(LABELLED)
    before = copied(state)
    step = made.server_step(state, LABELLED, 1)
    assert same(before, state)
    assert same(before, step.state)
    assert torch.equal(step.broadcast["psi.params"], state["psi.params"])
    moved = step.broadcast["sigma.params"] - state["sigma.params"]
    assert step.metrics["server_norm"] == pytest.approx(float(moved.norm()), rel=1e-5) != 0.0


@pytest.mark.parametrize("more", [{}, {"momentum": 0.9, "weight_decay": 0.01, "clip_norm": 0.5}])
def test_the_servers_loss_weighs_as_much_as_it_says(more: dict[str, float]) -> None:
    """10·CE at rate 0.01 without decay and clipping is CE at 0.1; with them, they are as large as they say."""
    server = {**ONE_STEP, "weight_decay": 0.0, "lr": 0.01, **more}
    ten = method(server=server, method={"weight_server": 10.0})
    scaled = {
        **server,
        "lr": 0.1,
        "weight_decay": server["weight_decay"] / 10,
        "clip_norm": server["clip_norm"] / 10,
    }
    one = method(server=scaled, method={"weight_server": 1.0})
    a, b = (broadcast_of(each)["sigma.params"] for each in (ten, one))
    assert torch.allclose(a, b, atol=1e-6)


def test_a_client_moves_its_part_and_leaves_what_it_received_alone() -> None:
    made = method(method=NO_REGULARISERS)
    broadcast = broadcast_of(made)
    before = copied(broadcast)
    result = activate(made, broadcast)
    assert float(dense(made, result).norm()) > 1e-3
    assert result.update.keys() == {"psi.indices", "psi.values", "psi.buffers"}
    assert same(before, broadcast)
    assert result.metrics["loss_pseudo"] > 0.0
    assert result.state == {}


def test_without_a_confident_sample_only_the_regularisers_move_it() -> None:
    still = method(method={"threshold": 1.0, **NO_REGULARISERS})
    broadcast = broadcast_of(still)
    result = activate(still, broadcast)
    assert len(result.update["psi.indices"]) == len(result.update["psi.values"]) == 0
    assert result.metrics["sure_share"] == result.metrics["sent_share"] == 0.0
    pulled = activate(method(method={"threshold": 1.0, "weight_distance": 0.1}), broadcast)
    assert pulled.metrics["sent_share"] > 0.5


def test_regularisers_pull_the_part_towards_zero_and_towards_the_servers() -> None:
    """λ1·sign(ψ) + 2·λ2·(ψ − σ), on weights and not on norms and biases."""
    made = method(client=ONE_STEP, method={"threshold": 1.0, "weight_sparsity": 0.01, "weight_distance": 0.5})
    broadcast = broadcast_of(made)
    decayed = made._student.num_decayed
    sigma, psi = (broadcast[f"{name}.params"][:decayed] for name in ("sigma", "psi"))
    expected = -0.1 * (0.01 * psi.sign() + 2 * 0.5 * (psi - sigma))
    delta = dense(made, activate(made, broadcast))
    # Rounding of θ, and what is too small to be sent.
    assert torch.allclose(delta[:decayed], expected, atol=1.2e-5)
    assert not delta[decayed:].any()


def test_small_changes_are_not_sent() -> None:
    made = method(method=NO_REGULARISERS)
    broadcast = broadcast_of(made)
    whole = dense(made, activate(method(method={**NO_REGULARISERS, "min_change": 0.0}), broadcast))
    result = activate(method(method={**NO_REGULARISERS, "min_change": 1e-2}), broadcast)
    large = (whole.abs() > 1e-2).nonzero()[:, 0]
    assert 0 < len(large) < len(whole)
    assert result.update["psi.indices"].tolist() == large.tolist()
    assert result.update["psi.indices"].dtype == torch.int32
    assert torch.equal(result.update["psi.values"], whole[large])
    assert result.metrics["sent_share"] == len(large) / len(whole)


# Losses


def test_the_label_is_the_one_with_most_votes_and_of_several_the_first() -> None:
    own_B = torch.tensor([2, 2, 0, 1])
    helpers_HB = torch.tensor([[1, 2, 1, 1], [1, 0, 2, 0]])
    assert vote(own_B, helpers_HB, 3).tolist() == [1, 2, 0, 1]
    assert vote(own_B, helpers_HB[:0], 3).tolist() == own_B.tolist()


def test_the_loss_of_helpers_is_the_mean_divergence_of_them_from_the_client() -> None:
    own, one, two = (0.2, 0.3, 0.5), (0.7, 0.2, 0.1), (0.1, 0.1, 0.8)
    own_SC = logits(own, own).requires_grad_()
    helpers_SHC = torch.stack([logits(one, two), logits(own, own)])

    def kl(p: tuple[float, ...], q: tuple[float, ...]) -> float:
        return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))

    loss = helper_loss(own_SC, helpers_SHC)
    torch.autograd.backward(loss)
    assert float(loss.detach()) == pytest.approx((kl(one, own) + kl(two, own)) / 4, rel=1e-5)
    assert own_SC.grad is not None
    assert own_SC.grad[0].any()
    assert float(helper_loss(own_SC, helpers_SHC[:, :0])) == 0.0


def test_the_mean_is_over_selected_samples() -> None:
    """Samples that nobody is sure of change nothing, however many there are."""
    made = method(client=ONE_STEP | {"batch_size": 1000}, method={**NO_REGULARISERS, "min_change": 0.0})
    made._views = PlainViews()
    broadcast = broadcast_of(made)
    theta = Weights(broadcast["sigma.params"] + broadcast["psi.params"], broadcast["psi.buffers"])
    model = made._network()
    model.load(theta)
    with torch.no_grad():
        confidence_N = model.module(UNLABELLED).softmax(1).max(1).values
    sure = UNLABELLED[confidence_N >= 0.6]
    assert 0 < len(sure) < len(UNLABELLED)
    all_of_them, selected = (dense(made, activate(made, broadcast, inputs=x)) for x in (UNLABELLED, sure))
    assert float(selected.norm()) > 1e-3
    assert torch.allclose(all_of_them, selected, atol=1e-6)


class PlainViews:
    """Views without randomness."""

    def plain(self, raw: Tensor) -> Tensor:
        return raw

    def weak(self, raw: Tensor, generator: torch.Generator) -> Tensor:
        return raw

    def strong(self, raw: Tensor, generator: torch.Generator) -> Tensor:
        return -raw


# Helpers


def helper(
    made: FedMatch, broadcast: Mapping[str, Tensor], seed: int, scale: float = 0.3
) -> dict[str, Tensor]:
    noise = torch.randn(made._student.num_params, generator=torch.Generator().manual_seed(seed))
    return Weights(broadcast["psi.params"] + scale * noise, broadcast["psi.buffers"]).tensors("psi")


def test_helpers_change_what_is_learned_and_stay_as_they_are() -> None:
    made = method(method=NO_REGULARISERS)
    broadcast = broadcast_of(made)
    extras = {f"helper.{seed}": helper(made, broadcast, seed) for seed in (1, 2)}
    before = {name: copied(tensors) for name, tensors in extras.items()}
    alone, helped = activate(made, broadcast), activate(made, broadcast, extras=extras)
    assert alone.metrics["loss_helpers"] == 0.0
    assert helped.metrics["loss_helpers"] > 0.0
    assert not torch.allclose(dense(made, alone), dense(made, helped), atol=1e-4)
    assert all(same(before[name], extras[name]) for name in extras)
    swapped = {name: extras[name] for name in reversed(extras)}
    assert same(helped.update, activate(method(method=NO_REGULARISERS), broadcast, extras=swapped).update)


def test_a_helper_that_gives_no_numbers_is_left_out() -> None:
    made = method()
    broadcast = broadcast_of(made)
    extras = {"helper.1": helper(made, broadcast, 1), "helper.2": helper(made, broadcast, 2, scale=math.inf)}
    with_it = activate(made, broadcast, extras=extras)
    without = activate(made, broadcast, extras={"helper.1": extras["helper.1"]})
    assert same(with_it.update, without.update)


def reported(made: FedMatch, clients: int) -> State:
    """After a round in which clients 0, 1, … reported."""
    state = made.initial_state(LABELLED)
    step = made.server_step(state, LABELLED, 1)
    fold = made.open_fold(step.state, {1: step.broadcast}, 1, LABELLED)
    for client in range(clients):
        inputs = cloud(60, 10 + client).inputs
        assert fold.add(
            answered(activate(made, step.broadcast, inputs=inputs, client=client), 1, client)
        ).counts
    return fold.close().state


def test_helpers_are_the_nearest_others_every_tenth_round_for_clients_that_have_reported() -> None:
    made = method()
    state = reported(made, 4)
    places = {client: state[f"helper.{client}.embedding"] for client in range(4)}
    assert all(float(place.sum()) == pytest.approx(1.0) for place in places.values())
    for client in range(4):
        others = sorted(set(places) - {client}, key=lambda c: float((places[c] - places[client]).norm()))
        assert made.extras_for(state, 10, client) == [f"helper.{other}" for other in others[:2]]
        assert not made.extras_for(state, 11, client)
    assert not made.extras_for(state, 10, 7), "has not reported"
    assert not made.extras_for(made.initial_state(LABELLED), 10, 0)
    assert len(made.extras_for(reported(made, 2), 20, 0)) == 1
    assert not method(method={"helpers": 0}).extras_for(state, 10, 0)


def test_a_helper_is_the_last_part_of_a_client_and_its_place_the_prediction_for_one_image() -> None:
    made = method()
    state = reported(made, 2)
    step = made.server_step(made.initial_state(LABELLED), LABELLED, 1)
    result = activate(made, step.broadcast, inputs=cloud(60, 11).inputs, client=1)
    psi = step.broadcast["psi.params"] + dense(made, result)
    sent = made.extra(state, "helper.1")
    assert sent.keys() == {"psi.params", "psi.buffers"}
    assert torch.equal(sent["psi.params"], psi)
    model = made._network()
    model.load(Weights(step.broadcast["sigma.params"] + psi, sent["psi.buffers"]))
    with torch.no_grad():
        place = model.module.eval()(method()._noise)[0].softmax(0)
    assert torch.allclose(state["helper.1.embedding"], place, atol=1e-6)
    assert made._noise.shape == (1, 8)
    assert float(made._noise.abs().max()) <= 2.0


def test_the_server_keeps_the_latest_clients_up_to_its_pool() -> None:
    made = method(method={"pool": 2})
    state = reported(made, 3)
    assert {key for key in state if key.startswith("helper.") and key.endswith(".params")} == {
        "helper.1.params",
        "helper.2.params",
    }
    step = made.server_step(state, LABELLED, 2)
    fold = made.open_fold(step.state, {2: step.broadcast}, 2, LABELLED)
    fold.add(answered(activate(made, step.broadcast, client=0, round_number=2), 2, client=0))
    after = fold.close().state
    assert sorted(key for key in after if key.endswith(".version")) == [
        "helper.0.version",
        "helper.2.version",
    ]


def test_helpers_are_used_in_rounds() -> None:
    found: list[float] = []
    made = method(method={"helper_interval": 2})
    ask = made.client_step

    def client_step(activation: Any) -> ClientResult:
        result = ask(activation)
        found.append(result.metrics["loss_helpers"] if activation.extras else -1.0)
        return result

    made.client_step = client_step  # type: ignore[method-assign]
    play(made, 4)
    assert [loss > 0 for loss in found] == [False] * 3 + [True] * 3 + [False] * 3 + [True] * 3


# As any method


def test_the_same_task_gives_the_same_bits_in_a_fresh_method_and_another_client_others() -> None:
    broadcast = broadcast_of(method())
    first, second = (activate(method(), broadcast) for _ in range(2))
    assert same(first.update, second.update)
    assert first.metrics == second.metrics
    assert not same(first.update, activate(method(), broadcast, client=1).update)


def test_torchs_global_random_state_is_left_alone() -> None:
    state = torch.random.get_rng_state()
    play(method(method={"helper_interval": 2}), 2)
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize("micro_batch", [1, 7, 40])
def test_gradients_of_parts_add_up_to_those_of_the_batch(micro_batch: int) -> None:
    whole, parts = (method(client=ONE_STEP, method={"min_change": 0.0}) for _ in range(2))
    parts.micro_batch = micro_batch
    broadcast = broadcast_of(whole)
    extras = {"helper.1": helper(whole, broadcast, 1)}
    a, b = activate(whole, broadcast, extras=extras), activate(parts, broadcast, extras=extras)
    assert float(dense(whole, a).norm()) > 1e-3
    assert torch.allclose(dense(whole, a), dense(parts, b), atol=1e-6)
    assert a.metrics == pytest.approx(b.metrics, abs=1e-2)


@pytest.mark.parametrize("norm", ["none", "gn", "bn", "sbn"])
def test_with_every_norm_a_round_ends_in_a_finite_model_of_both_kinds(norm: str) -> None:
    state, accuracies = play(method(network={"norm": norm}, method={"helper_interval": 2}), 2)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in state.values())
    assert accuracies.keys() == {"global", "server"}


def test_it_learns() -> None:
    made = method(method={"weight_pseudo": 0.01, "weight_helpers": 0.01})
    _, accuracies = play(made, 6)
    assert accuracies["global"][-1] > 0.8 > 0.4 > initial_accuracy(made)


def test_divergence_is_an_error_not_an_update() -> None:
    broadcast = broadcast_of(method())
    with pytest.raises(NumericError, match=r"client 0 diverged: begin anew with a lower client\.lr"):
        activate(method(client={"lr": 1e30, "clip_norm": 0.0}), broadcast)


def test_the_papers_profile_has_its_numbers_and_the_default_learns_faster() -> None:
    paper = make_learning({"profile": "paper", "method": {"name": "fedmatch"}})
    assert isinstance(paper.method, FedMatchSettings)
    weights = paper.method
    assert (weights.weight_server, weights.weight_pseudo, weights.weight_helpers) == (10.0, 1e-2, 1e-2)
    assert (weights.weight_sparsity, weights.weight_distance, weights.threshold) == (1e-5, 10.0, 0.85)
    for optimiser in (paper.client, paper.server):
        assert (optimiser.epochs, optimiser.batch_size, optimiser.lr, optimiser.momentum) == (
            1,
            100,
            1e-3,
            0.0,
        )
    default = make_learning({"method": {"name": "fedmatch"}})
    assert (default.profile, default.network.norm, default.client.lr) == ("fedmatch", "gn", 0.03)


@pytest.mark.parametrize("wrong", [{"helpers": 3}, {"pool": 0}, {"lambda_s": 10.0}])
def test_settings_refuse_what_they_do_not_know(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        make_learning({"method": {"name": "fedmatch", **wrong}})


def test_every_reported_number_is_declared() -> None:
    made = method()
    step = made.server_step(made.initial_state(LABELLED), LABELLED, 1)
    result = activate(made, step.broadcast)
    fold = made.open_fold(step.state, {1: step.broadcast}, 1, LABELLED)
    verdict = fold.add(answered(result))
    folded = fold.close()
    end = made.end_round(folded.state, step.broadcast, LABELLED, 1)
    spec = find_method("fedmatch")
    assert {*step.metrics, *result.metrics, *folded.metrics} == {one.name for one in spec.display.series()}
    assert verdict.values.keys() == {value.name for value in spec.display.client_values}
    assert list(end.models) == [model.name for model in spec.display.models]
    assert (spec.extras_per_client, spec.keeps_updates) == (2, True)
