"""Algorithm 1 and 2 without any loop around them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedil_model.errors import NumericError, StateError
from fedil_model.methods import find_method
from fedil_model.methods.base import check_finite
from fedil_model.methods.fedil.ledger import Ledger
from fedil_model.methods.fedil.method import FedIL
from fedil_model.methods.interface import Arrays, ClientResult, Folded, State, Verdict
from fedil_model.settings import merge
from fedil_model.training.batches import shuffled_batches
from fedil_model.training.flat_model import Weights
from tests.unit.fedil_model.steps import (
    CPU,
    LABELLED,
    UNLABELLED,
    activate,
    answer,
    answered,
    broadcast_of,
    context_of,
)

BASE = {
    "network": {"name": "mlp", "width": 16},
    "client": {"epochs": 2, "batch_size": 16, "lr": 0.1},
    "server": {"epochs": 3, "batch_size": 10, "lr": 0.1, "pretrain_epochs": 0},
    "method": {"threshold": 0.6, "credibility": 2},
}


def method(profile: str = "paper", **changes: Any) -> FedIL:
    values = merge(merge({"profile": profile, "network": {"norm": "gn"}}, BASE), changes)
    made = find_method("fedil").make(context_of(values))
    assert isinstance(made, FedIL)
    return made


def client(fedil: FedIL, broadcast: Mapping[str, Tensor], ledger: Arrays | None = None) -> ClientResult:
    return activate(fedil, broadcast, ledger)


@pytest.mark.parametrize("profile", ["paper", "fedil"])
def test_a_client_moves_and_leaves_what_it_received_alone(profile: str) -> None:
    fedil = method(profile)
    broadcast = broadcast_of(fedil)
    before = {name: tensor.clone() for name, tensor in broadcast.items()}
    result = client(fedil, broadcast)
    assert float(result.update["delta.params"].norm()) > 1e-3
    assert all(torch.equal(before[name], broadcast[name]) for name in before)


@pytest.mark.parametrize("profile", ["paper", "fedil"])
def test_the_same_task_gives_the_same_bits_in_a_fresh_method(profile: str) -> None:
    broadcast = broadcast_of(method(profile))
    first, second = client(method(profile), broadcast), client(method(profile), broadcast)
    assert torch.equal(first.update["delta.params"], second.update["delta.params"])
    assert all(np.array_equal(first.state[key], second.state[key]) for key in first.state)
    other = activate(method(profile), broadcast, round_number=2)
    assert not torch.equal(first.update["delta.params"], other.update["delta.params"])


def test_torchs_global_random_state_is_left_alone() -> None:
    fedil = method()
    state = torch.random.get_rng_state()
    client(fedil, broadcast_of(fedil))
    assert torch.equal(state, torch.random.get_rng_state())


def test_without_consistency_no_label_can_flow_from_an_unsure_start() -> None:
    """ξb is what carries labels to θ′; with its weight at 0 round 1 does not move."""
    still = {"weight_consistency": 0.0, "threshold": 0.999}
    fedil = method(client={"weight_decay": 0.0}, method=still)
    broadcast = broadcast_of(fedil)
    result = client(fedil, broadcast)
    assert float(result.update["delta.params"].norm()) == 0.0
    fold = fedil.open_fold(fedil.initial_state(LABELLED), {1: broadcast}, 1, LABELLED)
    assert fold.add(answered(result)).outcome == "rejected_cosine"

    with_it = method(client={"weight_decay": 0.0}, method={"threshold": 0.999})
    assert float(client(with_it, broadcast).update["delta.params"].norm()) > 1e-3


def test_the_pseudo_label_term_teaches_through_the_strong_view() -> None:
    only_pseudo = {"weight_consistency": 0.0, "pseudo_source": "server", "client_init": "server"}
    fedil = method("fedil", method=only_pseudo, server={"pretrain_epochs": 30}, client={"weight_decay": 0.0})
    broadcast = broadcast_of(fedil)
    result = client(fedil, broadcast)
    moved = Weights.named(broadcast, "global").params + result.update["delta.params"]
    assert float((moved - broadcast["server.params"]).norm()) > 1e-3
    assert result.metrics["loss_pseudo"] > 0


@pytest.mark.parametrize("weak_weight", [0.0, 1.0])
def test_a_batch_without_a_sure_sample_is_a_step_without_a_gradient_where_only_sure_samples_train(
    weak_weight: float,
) -> None:
    weights = {"weight_consistency": 0.0, "weight_pseudo_weak": weak_weight}
    fedil = method("paper", method={**weights, "pseudo_source": "server", "threshold": 1.0})
    result = client(fedil, broadcast_of(fedil))
    assert result.num_steps > 0
    assert result.metrics["sure_share"] == 0.0


def test_paper_clients_start_from_the_global_model_and_ours_from_the_servers() -> None:
    frozen = {"lr": 1e-12, "weight_decay": 0.0}
    paper = method(client=frozen)
    broadcast = broadcast_of(paper)
    assert float(client(paper, broadcast).update["delta.params"].norm()) < 1e-6
    ours = client(method("fedil", client=frozen), broadcast)
    expected = broadcast["server.params"] - broadcast["global.params"]
    assert torch.allclose(ours.update["delta.params"], expected, atol=1e-6)


def test_samples_are_promoted_after_enough_activations_and_train_as_labelled_ones() -> None:
    fedil = method("fedil", server={"pretrain_epochs": 30})
    broadcast = broadcast_of(fedil)
    first = client(fedil, broadcast)
    assert first.metrics["pseudo_labels"] > 30
    assert first.metrics["credible"] == 0
    second = client(fedil, broadcast, first.state)
    assert second.metrics["credible"] == first.metrics["pseudo_labels"]
    assert second.metrics["loss_credible"] == 0.0  # promote_lag = 1 (eq. 20)
    third = client(fedil, broadcast, second.state)
    assert third.metrics["loss_credible"] > 0.0

    at_once = method("fedil", server={"pretrain_epochs": 30}, method={"promote_lag": 0})
    assert client(at_once, broadcast, first.state).metrics["loss_credible"] > 0.0


def test_a_client_whose_samples_are_all_promoted_still_trains() -> None:
    fedil = method("fedil", server={"pretrain_epochs": 30})
    labels = (np.arange(len(UNLABELLED)) % 4).astype(np.int16)
    ledger = Ledger(np.zeros(len(UNLABELLED), np.uint8), labels, np.ones(len(UNLABELLED), np.bool_))
    result = client(fedil, broadcast_of(fedil), ledger.to_arrays())
    assert result.num_steps == 2 * 4
    assert result.metrics["loss_credible"] > 0.0
    assert result.metrics["loss_consistency"] == 0.0


def test_disagreeing_models_promote_nobody() -> None:
    """Eq. 19 as printed would let them pass."""
    fedil = method("fedil", server={"pretrain_epochs": 30}, method={"threshold": 0.0})
    broadcast = dict(broadcast_of(fedil))
    ledger = None
    broadcast["server.params"] = -broadcast["global.params"]
    agreed = client(fedil, broadcast).metrics["pseudo_labels"]
    for _ in range(4):
        result = client(fedil, broadcast, ledger)
        ledger = result.state
    assert result.metrics["credible"] <= agreed < len(UNLABELLED)


def test_a_ledger_of_another_shard_is_refused() -> None:
    fedil = method()
    with pytest.raises(StateError, match="a ledger of 7 samples does not fit a shard of 60"):
        client(fedil, broadcast_of(fedil), Ledger.empty(7).to_arrays())


def test_divergence_is_an_error_not_an_update() -> None:
    fedil = method(client={"lr": 1e30, "clip_norm": 0.0})
    with pytest.raises(NumericError, match=r"client 0 diverged: begin anew with a lower client\.lr"):
        client(fedil, broadcast_of(fedil))
    with pytest.raises(NumericError, match=r"lower server\.lr"):
        broadcast_of(method(server={"lr": 1e30, "clip_norm": 0.0}))


def folded(
    fedil: FedIL, deltas: list[Tensor], broadcast: Mapping[str, Tensor] | None = None
) -> tuple[State, list[Verdict], Folded]:
    state = fedil.initial_state(LABELLED)
    broadcast = broadcast or fedil.server_step(state, LABELLED, 1).broadcast
    fold = fedil.open_fold(state, {1: broadcast}, 1, LABELLED)
    verdicts = [fold.add(answer({"delta.params": d, "delta.buffers": d[:0]})) for d in deltas]
    return state, verdicts, fold.close()


def test_when_all_are_rejected_the_global_model_stays_bit_for_bit() -> None:
    fedil = method(
        client={"weight_decay": 0.0}, server={"weight_decay": 0.0}, method={"server_momentum": 0.5}
    )
    broadcast = broadcast_of(fedil)
    against = broadcast["global.params"] - broadcast["server.params"]
    state, verdicts, result = folded(fedil, [against, against * 0.5], broadcast)
    assert [v.outcome for v in verdicts] == ["rejected_cosine"] * 2
    assert torch.equal(result.state["global.params"], state["global.params"])
    assert result.delta_norm == 0.0
    assert "no update was accepted" in result.notes


def test_after_enough_empty_rounds_the_servers_step_is_taken_if_asked_for() -> None:
    fedil = method(method={"empty_rounds_before_fallback": 1})
    broadcast = broadcast_of(fedil)
    against = broadcast["global.params"] - broadcast["server.params"]
    _, _, result = folded(fedil, [against], broadcast)
    assert torch.allclose(result.state["global.params"], broadcast["server.params"])


def test_the_mean_of_accepted_updates_is_added_to_the_global_model() -> None:
    fedil = method(client={"weight_decay": 0.0}, server={"weight_decay": 0.0})
    broadcast = broadcast_of(fedil)
    g0 = broadcast["server.params"] - broadcast["global.params"]
    state, verdicts, result = folded(fedil, [g0, 3 * g0, -g0], broadcast)
    assert [v.outcome for v in verdicts] == ["accepted", "accepted", "rejected_cosine"]
    assert torch.allclose(result.state["global.params"], state["global.params"] + 2 * g0, atol=1e-6)
    assert result.delta_norm == pytest.approx(2 * float(g0.norm()), rel=1e-5)


def test_momentum_and_the_moving_average_follow_the_increments() -> None:
    fedil = method(method={"server_momentum": 0.5, "ema_decay": 0.75}, client={"weight_decay": 0.0})
    broadcast = broadcast_of(fedil)
    g0 = broadcast["server.params"] - broadcast["global.params"]
    state, _, one = folded(fedil, [g0], broadcast)
    ema = state["global.params"] + 0.25 * g0
    assert torch.allclose(one.state["ema.params"], ema, atol=1e-6)
    step = fedil.server_step(one.state, LABELLED, 2)
    fold = fedil.open_fold(one.state, {2: step.broadcast}, 2, LABELLED)
    move = step.broadcast["server.params"] - step.broadcast["global.params"]
    fold.add(answer({"delta.params": move, "delta.buffers": move[:0]}, 1, 2))
    two = fold.close()
    expected = one.state["global.params"] + 0.5 * g0 + move
    assert torch.allclose(two.state["global.params"], expected, atol=1e-6)


def test_bfloat16_autocast_trains_on_this_device_with_float32_weights() -> None:
    exact, rough = method(), method(autocast="bf16")
    broadcast = broadcast_of(exact)
    a, b = client(exact, broadcast).update["delta.params"], client(rough, broadcast).update["delta.params"]
    assert b.dtype == torch.float32
    assert not torch.equal(a, b)
    assert float(torch.cosine_similarity(a, b, dim=0)) > 0.9


@pytest.mark.parametrize("computes", [True, False])
def test_automatic_autocast_takes_bfloat16_where_the_processor_computes_it(
    computes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedil_model.training.precision.computes_bf16", lambda _: computes)
    automatic, told = method(autocast="auto"), method(autocast="bf16" if computes else "off")
    broadcast = broadcast_of(told)
    a, b = client(automatic, broadcast).update, client(told, broadcast).update
    assert torch.equal(a["delta.params"], b["delta.params"])


def test_with_batch_norm_the_buffers_are_part_of_the_update_and_of_the_mean() -> None:
    fedil = method(network={"norm": "bn"})
    broadcast = broadcast_of(fedil)
    result = client(fedil, broadcast)
    assert float(result.update["delta.buffers"].norm()) > 0
    state = fedil.initial_state(LABELLED)
    fold = fedil.open_fold(state, {1: broadcast}, 1, LABELLED)
    assert fold.add(answered(result)).counts
    after = fold.close().state
    expected = state["global.buffers"] + result.update["delta.buffers"]
    assert torch.allclose(after["global.buffers"], expected, atol=1e-5)


def test_static_batch_norm_gets_its_statistics_from_the_servers_data() -> None:
    fedil = method(network={"norm": "sbn"})
    state = fedil.initial_state(LABELLED)
    step = fedil.server_step(state, LABELLED, 1)
    assert not torch.equal(
        step.broadcast["server.buffers"], torch.zeros_like(step.broadcast["server.buffers"])
    )
    assert not torch.equal(step.broadcast["server.buffers"], state["global.buffers"])
    result = client(fedil, step.broadcast)
    assert float(result.update["delta.buffers"].norm()) == pytest.approx(0.0, abs=1e-6)


def test_the_averaged_model_gets_static_statistics_of_its_own() -> None:
    """Those of its parts belong to other weights."""
    fedil = method(network={"norm": "sbn"})
    state = fedil.initial_state(LABELLED)
    step = fedil.server_step(state, LABELLED, 1)
    fold = fedil.open_fold(state, {1: step.broadcast}, 1, LABELLED)
    result = client(fedil, step.broadcast)
    assert fold.add(answered(result)).counts
    after = fold.close().state
    shipped = fedil.end_round(after, step.broadcast, LABELLED, 1).models["global"]
    assert torch.equal(shipped.params, after["global.params"])
    assert not torch.allclose(shipped.buffers, state["global.buffers"])
    sent = fedil.server_step(after, LABELLED, 2).broadcast
    assert torch.equal(sent["global.buffers"], shipped.buffers)


def test_a_loss_that_is_not_finite_is_an_error_though_the_weights_still_are() -> None:
    with pytest.raises(NumericError, match="diverged"):
        check_finite(0, torch.ones(1), [float("nan")], [], torch.zeros(0, dtype=torch.bool))


def test_divergence_from_bad_statistics_is_not_blamed_on_the_learning_rate() -> None:
    fedil = method(network={"norm": "bn"})
    broadcast = dict(broadcast_of(fedil))
    broadcast["server.buffers"] = broadcast["server.buffers"] - 100.0
    with pytest.raises(NumericError, match="negative variance") as caught:
        client(fedil, broadcast)
    assert "client.lr" not in str(caught.value)


def test_known_labels_can_teach_the_weak_view_too() -> None:
    settings = {"server": {"pretrain_epochs": 30}, "client": {"weight_decay": 0.0}}
    without, with_it = (
        method("fedil", **settings, method={"weight_pseudo_weak": weight, "weight_consistency": 0.0})
        for weight in (0.0, 1.0)
    )
    broadcast = broadcast_of(without)
    a, b = client(without, broadcast), client(with_it, broadcast)
    assert b.metrics["loss_pseudo_weak"] > 0.0
    assert not torch.equal(a.update["delta.params"], b.update["delta.params"])


def test_a_last_batch_of_one_joins_the_one_before_it() -> None:
    sizes = [len(batch) for batch in shuffled_batches(21, 10, torch.Generator(), CPU)]
    assert sizes == [10, 11]
    assert [len(batch) for batch in shuffled_batches(1, 10, torch.Generator(), CPU)] == [1]
    every = torch.cat(shuffled_batches(21, 10, torch.Generator(), CPU))
    assert sorted(every.tolist()) == list(range(21))
