"""What is folded, what is turned away and why, and that arrival order and memory layout leave no trace."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedil_model.methods.fedil import aggregation
from fedil_model.methods.fedil.aggregation import IncrementalFold
from fedil_model.methods.fedil.settings import FedILSettings
from fedil_model.methods.interface import Verdict
from fedil_model.training import exact_sum
from fedil_model.training.exact_sum import GRID
from fedil_model.training.flat_model import Weights, from_arrays

P = 1000
CPU = torch.device("cpu")


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def draw(size: int, seed: int, scale: float = 1.0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * scale


def weights(params: Tensor, buffers: Tensor | None = None) -> Weights:
    return Weights(params, vector() if buffers is None else buffers)


def new_fold(
    theta: Tensor, step: Tensor, num_decayed: int = 0, server_decay: float = 1.0, **knobs: Any
) -> IncrementalFold:
    return IncrementalFold(
        weights(theta), weights(theta + step), FedILSettings(**knobs), num_decayed, server_decay
    )


def mean_of(fold: IncrementalFold) -> Weights:
    mean = fold.mean()
    assert mean is not None
    return mean


def plane(**knobs: Any) -> IncrementalFold:
    """θ′ = (3, 4), g₀ = (1, 0): cosines can be read off."""
    return new_fold(vector(3, 4), vector(1, 0), **knobs)


@pytest.mark.parametrize(
    ("delta", "outcome", "cosine"),
    [
        ((2.0, 0.0), "accepted", 1.0),
        ((1.0, 1.0), "accepted", math.sqrt(0.5)),
        ((1e-4, 1e-4), "accepted", math.sqrt(0.5)),
        ((0.0, 5.0), "accepted", 0.0),
        ((-1e-3, 5.0), "rejected_cosine", -2e-4),
        ((-2.0, 0.0), "rejected_cosine", -1.0),
    ],
)
def test_an_update_counts_if_its_cosine_with_the_servers_step_is_not_negative(
    delta: tuple[float, ...], outcome: str, cosine: float
) -> None:
    fold = plane()
    verdict = fold.add(weights(vector(*delta)), 1.0)
    assert verdict.outcome == outcome
    assert verdict.values["cosine"] == pytest.approx(cosine, abs=1e-7)
    assert verdict.counts == (outcome == "accepted") == (fold.num_accepted == 1)


def test_a_rejection_says_how_negative_the_cosine_was() -> None:
    assert "-0.7071" in plane().add(weights(vector(-1, 1)), 1.0).detail


def test_the_mean_is_over_accepted_updates_only() -> None:
    fold = plane()
    for delta in ((1.0, 0.0), (-1.0, 0.25), (0.5, 0.5), (-3.0, 1.0)):
        fold.add(weights(vector(*delta)), 1.0)
    assert fold.num_accepted == 2
    assert mean_of(fold).params.tolist() == [0.75, 0.25]


def test_an_update_of_zero_is_rejected_even_where_decay_would_lend_it_a_direction() -> None:
    for theta in (vector(3, 4), vector(-3, 4)):
        fold = new_fold(theta, vector(1, 0), num_decayed=2, server_decay=0.99)
        assert fold.add(weights(vector(0, 0)), 0.99).outcome == "rejected_cosine"
        assert fold.mean() is None


def test_the_mean_of_nobody_is_none() -> None:
    fold = plane()
    assert fold.mean() is None
    fold.add(weights(vector(-1, 0)), 1.0)
    assert fold.mean() is None


@pytest.mark.parametrize("step", [0.0, 1e-13, 1e-6])
def test_a_server_that_hardly_moved_turns_nobody_away_and_says_so(step: float) -> None:
    fold = new_fold(vector(3, 4), vector(step, 0))
    verdict = fold.add(weights(vector(-1, 0)), 1.0)
    assert fold.gauge.faded
    assert (verdict.outcome, verdict.values) == ("accepted", {})
    assert verdict.detail
    assert mean_of(fold).params.tolist() == [-1.0, 0.0]


def test_a_step_that_is_nothing_but_weight_decay_has_faded() -> None:
    theta = draw(P, 0)
    fold = new_fold(theta, theta * (0.99 - 1.0), num_decayed=P, server_decay=0.99)
    assert fold.gauge.faded
    assert fold.gauge.step_norm == pytest.approx(0.01 * float(theta.norm()), rel=1e-4)


def test_a_small_but_real_step_has_not_faded() -> None:
    assert not new_fold(vector(3, 4), vector(1e-4, 0)).gauge.faded


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e6, 1e30])
@pytest.mark.parametrize(
    "knobs", [{}, {"cosine_filter": False}, {"on_reject": "project", "soft_cosine": True}]
)
def test_an_update_that_is_not_finite_or_absurdly_large_leaves_no_trace(bad: float, knobs: Any) -> None:
    fold, clean = plane(**knobs), plane(**knobs)
    for verdict in (fold.add(weights(vector(1, bad)), 1.0), fold.add(weights(vector(bad, 0)), 1.0)):
        assert verdict.outcome == "invalid"
        assert verdict.detail
    for each in (fold, clean):
        each.add(weights(vector(0.3, 0.7)), 1.0)
    assert torch.equal(mean_of(fold).params, mean_of(clean).params)


def test_a_typical_update_a_million_times_over_is_invalid() -> None:
    theta, step = draw(P, 0, 0.05), draw(P, 1, 1e-3)
    fold = new_fold(theta, step)
    assert fold.add(weights(step), 1.0).outcome == "accepted"
    assert fold.add(weights(step * 1e6), 1.0).outcome == "invalid"


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_decay_that_is_no_number_is_invalid(bad: float) -> None:
    fold = new_fold(vector(3, 4), vector(1, 0), num_decayed=2, server_decay=1.0, on_reject="project")
    assert fold.add(weights(vector(1, 0)), bad).outcome == "invalid"


def test_statistics_that_cannot_be_summed_are_invalid_and_leave_no_trace() -> None:
    theta = Weights(vector(3, 4), vector(1))
    fold = IncrementalFold(theta, Weights(vector(4, 4), vector(2)), FedILSettings(), 0, 1.0)
    verdict = fold.add(Weights(torch.ones(2), vector(1e9)), 1.0)
    assert (verdict.outcome, verdict.counts) == ("invalid", False)
    assert fold.mean() is None


def test_one_weight_may_not_move_beyond_what_can_be_summed_however_large_the_model() -> None:
    theta = torch.full((4096,), 100.0)
    fold = new_fold(theta, torch.ones(4096))
    assert fold.add(weights(torch.full((4096,), 20.0)), 1.0).outcome == "accepted"
    lone = torch.zeros(4096)
    lone[7] = 1100.0
    assert fold.add(weights(lone), 1.0).outcome == "invalid"
    assert mean_of(fold).params.tolist() == [20.0] * 4096


# Weight decay (algorithm 5.3): server and clients train by `true` steps, decay is added to what they send.

DECAYS = (0.97, 0.95)  # server, client; a hundredfold of what is usual, so that a mistake shows


def decayed_run(
    init: str, num_decayed: int, seed: int = 0, client_seed: int = 2
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(θ′, θ₀ − θ′, θ* − θ′, the server's step without decay, the client's)"""
    theta = draw(P, seed)
    server_true, client_true = draw(P, seed + 1, 0.05), draw(P, client_seed, 0.05)
    shrink = torch.ones(2, P)
    shrink[0, :num_decayed], shrink[1, :num_decayed] = DECAYS
    server = shrink[0] * theta + server_true
    start = theta if init == "global" else server
    client = shrink[1] * start + client_true
    return theta, server - theta, client - theta, server_true, client_true


@pytest.mark.parametrize("num_decayed", [0, 1, 700, P])
@pytest.mark.parametrize(
    ("init", "reference"),
    [("global", "global"), ("global", "start"), ("server", "global"), ("server", "start")],
)
def test_the_cosine_is_that_of_the_steps_without_decay(init: str, reference: str, num_decayed: int) -> None:
    theta, step, delta, server_true, client_true = decayed_run(init, num_decayed)
    fold = new_fold(theta, step, num_decayed, DECAYS[0], client_init=init, cosine_reference=reference)
    moved = client_true + server_true if (init, reference) == ("server", "global") else client_true
    expected = float(torch.cosine_similarity(moved.double(), server_true.double(), dim=0))
    verdict = fold.add(weights(delta), DECAYS[1])
    assert verdict.values["cosine"] == pytest.approx(expected, abs=2e-5)


def test_weight_decay_does_not_raise_acceptance() -> None:
    outcomes = {True: [], False: []}  # type: dict[bool, list[str]]
    naive = 0
    for seed in range(10, 40):
        theta, step, delta, server_true, client_true = decayed_run("global", P, client_seed=seed)
        with_decay = new_fold(theta, step, P, DECAYS[0])
        outcomes[True].append(with_decay.add(weights(delta), DECAYS[1]).outcome)
        without = new_fold(theta, server_true, P, 1.0)
        outcomes[False].append(without.add(weights(client_true), 1.0).outcome)
        naive += new_fold(theta, step, 0, 1.0).add(weights(delta), 1.0).counts
    assert outcomes[True] == outcomes[False]
    assert outcomes[True].count("accepted") < naive == 30


@pytest.mark.parametrize("theta_seed", range(5))
def test_a_client_that_did_nothing_but_decay_did_not_move(theta_seed: int) -> None:
    theta = draw(P, theta_seed)
    fold = new_fold(theta, draw(P, 99, 0.05), P, 0.97)
    verdict = fold.add(weights(0.95 * theta - theta), 0.95)
    assert verdict == Verdict("rejected_cosine", "the client did not move")


def test_a_client_that_stayed_where_it_started_did_not_move_when_that_is_the_reference() -> None:
    theta, step = draw(P, 0), draw(P, 1, 0.05)
    fold = new_fold(theta, step, P, 1.0, client_init="server", cosine_reference="start")
    assert fold.add(weights(step), 1.0).detail == "the client did not move"


def test_what_is_folded_keeps_its_decay() -> None:
    theta, step, delta, *_ = decayed_run("global", P)
    fold = new_fold(theta, step, P, DECAYS[0], cosine_filter=False)
    fold.add(weights(delta), DECAYS[1])
    assert float((mean_of(fold).params - delta).abs().max()) <= GRID / 2 + 1e-12


# Options


def test_without_the_filter_a_negative_cosine_counts_and_is_still_told() -> None:
    fold = plane(cosine_filter=False)
    assert fold.add(weights(vector(-2, 0)), 1.0) == Verdict("accepted", values={"cosine": -1.0}, counts=True)
    assert mean_of(fold).params.tolist() == [-2.0, 0.0]


def test_projection_removes_only_the_part_against_the_servers_step() -> None:
    fold = plane(on_reject="project")
    verdict = fold.add(weights(vector(-2, 1)), 1.0)
    assert verdict.outcome == "projected"
    assert verdict.counts
    assert verdict.values["cosine"] == pytest.approx(-2 / math.sqrt(5))
    assert mean_of(fold).params.tolist() == [0.0, 1.0]


def test_a_projected_update_is_orthogonal_to_the_servers_step_in_many_dimensions_and_with_decay() -> None:
    theta, step, delta, server_true, _ = decayed_run("global", P)
    delta = delta - 2 * server_true
    fold = new_fold(theta, step, P, DECAYS[0], on_reject="project")
    assert fold.add(weights(delta), DECAYS[1]).outcome == "projected"
    left = mean_of(fold).params + (1 - DECAYS[1]) * theta
    assert float(left @ server_true) == pytest.approx(0.0, abs=1e-4 * float(left.norm() * server_true.norm()))
    # Nothing else was touched: what is gone is parallel to the server's step.
    gone = delta - mean_of(fold).params
    assert abs(float(torch.cosine_similarity(gone, server_true, dim=0))) == pytest.approx(1.0, abs=1e-5)


def test_a_soft_cosine_is_the_weight_of_an_update_and_of_its_buffers() -> None:
    theta = Weights(vector(3, 4), vector(1))
    fold = IncrementalFold(theta, Weights(vector(4, 4), vector(1)), FedILSettings(soft_cosine=True), 0, 1.0)
    fold.add(Weights(vector(1, 0), vector(0)), 1.0)
    fold.add(Weights(vector(3, 4), vector(1)), 1.0)
    mean = mean_of(fold)
    assert mean.params.tolist() == pytest.approx([(1 + 0.6 * 3) / 1.6, 0.6 * 4 / 1.6], rel=1e-5)
    assert mean.buffers.tolist() == pytest.approx([0.6 / 1.6], rel=1e-5)


@pytest.mark.parametrize("knobs", [{"cosine_filter": False}, {"on_reject": "project"}])
def test_a_soft_cosine_gives_an_opponent_no_say(knobs: Any) -> None:
    fold = plane(soft_cosine=True, **knobs)
    fold.add(weights(vector(1, 0)), 1.0)
    fold.add(weights(vector(-1, 1e-3)), 1.0)
    assert mean_of(fold).params[0] > 0.99


def test_soft_cosines_of_zero_still_have_a_mean() -> None:
    fold = plane(soft_cosine=True)
    fold.add(weights(vector(0, 2)), 1.0)
    assert mean_of(fold).params.tolist() == [0.0, 2.0]


def test_normalising_gives_every_update_the_length_of_the_servers_step() -> None:
    fold = plane(normalise="reference")
    fold.add(weights(vector(3, 4)), 1.0)
    assert mean_of(fold).params.tolist() == pytest.approx([0.6, 0.8])
    fold.add(weights(vector(0, 20)), 1.0)
    assert mean_of(fold).params.tolist() == pytest.approx([0.3, 0.9])


def test_normalising_to_a_faded_step_would_stop_the_run_so_it_does_not() -> None:
    fold = new_fold(vector(3, 4), vector(3e-6, 0), normalise="reference")
    assert fold.gauge.faded
    assert fold.gauge.step_norm > 0
    fold.add(weights(vector(0, 2)), 1.0)
    assert mean_of(fold).params.tolist() == [0.0, 2.0]


def test_buffers_have_no_part_in_the_cosine_and_are_averaged_like_parameters() -> None:
    theta = Weights(vector(3, 4), vector(0, 1e8))
    fold = IncrementalFold(theta, Weights(vector(4, 4), vector(5, 1e8)), FedILSettings(), 0, 1.0)
    assert fold.add(Weights(vector(1, 0), vector(-100, 3e8)), 1.0).values["cosine"] == 1.0
    assert not fold.add(Weights(vector(-1, 0), vector(1, 1e8)), 1.0).counts
    fold.add(Weights(vector(3, 0), vector(50, 1e8)), 1.0)
    mean = mean_of(fold)
    assert mean.params.tolist() == [2.0, 0.0]
    assert mean.buffers.tolist() == [-25.0, 2e8]


# Same bits


STEP = draw(P, 1001, 0.1)


def random_updates(num: int) -> list[Weights]:
    """Of very different sizes, most of them with the server and some against it."""
    return [
        Weights(draw(P, s, 10.0 ** -(s % 7)) + (s % 4 - 0.5) * STEP, draw(8, s + 500)) for s in range(num)
    ]


OPTIONS: list[dict[str, Any]] = [
    {},
    {"cosine_filter": False},
    {"on_reject": "project", "normalise": "reference", "soft_cosine": True},
    {"client_init": "server", "cosine_reference": "start", "soft_cosine": True},
]


def folded(updates: list[Weights], knobs: dict[str, Any]) -> tuple[Weights, list[Verdict]]:
    theta = draw(P, 1000)
    server = Weights(theta + STEP, torch.ones(8))
    fold = IncrementalFold(Weights(theta, torch.zeros(8)), server, FedILSettings(**knobs), 700, 0.99)
    verdicts = [fold.add(update, 0.98) for update in updates]
    return mean_of(fold), verdicts


@pytest.mark.parametrize("knobs", OPTIONS)
@settings(max_examples=15, deadline=None)
@given(order=st.permutations(range(12)))
def test_any_order_gives_the_same_bits(knobs: dict[str, Any], order: list[int]) -> None:
    updates = random_updates(12)
    straight, verdicts = folded(updates, knobs)
    shuffled, others = folded([updates[i] for i in order], knobs)
    assert torch.equal(straight.params, shuffled.params)
    assert torch.equal(straight.buffers, shuffled.buffers)
    assert [verdicts[i] for i in order] == others


def test_soft_weights_add_up_to_the_same_bits_in_any_order() -> None:
    angles = np.random.default_rng(0).uniform(0, math.pi / 2, 60).tolist()
    totals, cosines = [], []
    for order in (angles, angles[::-1], sorted(angles), sorted(angles)[::-1]):
        fold = plane(soft_cosine=True)
        found = [fold.add(weights(vector(math.cos(a), math.sin(a))), 1.0).values["cosine"] for a in order]
        totals.append(sum(fold._weights.values()))
        cosines.append(sum(found))
    assert len(set(cosines)) > 1
    assert len(set(totals)) == 1
    assert totals[0] == pytest.approx(cosines[0], abs=1e-4)


def at_offset(x: Tensor, num_floats: int) -> Tensor:
    room = torch.empty(x.numel() + 64)
    offset = (-room.data_ptr() // 4) % 16 + num_floats
    moved = room[offset : offset + x.numel()].copy_(x)
    assert moved.data_ptr() % 64 == 4 * num_floats % 64
    return moved


@pytest.mark.parametrize("knobs", OPTIONS)
def test_where_a_received_buffer_lies_in_memory_changes_no_bit(knobs: dict[str, Any]) -> None:
    updates = random_updates(6)
    expected, verdicts = folded(updates, knobs)
    for shift in range(17):
        moved = [
            Weights(at_offset(u.params, shift + i), at_offset(u.buffers, shift))
            for i, u in enumerate(updates)
        ]
        mean, others = folded(moved, knobs)
        assert others == verdicts
        assert torch.equal(mean.params, expected.params)
        assert torch.equal(mean.buffers, expected.buffers)


def test_blocks_and_the_end_of_the_decayed_part_change_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, verdicts = folded(random_updates(6), {})
    for block in (64, 100, 699, 701, 5000):
        monkeypatch.setattr(aggregation, "BLOCK", block)
        monkeypatch.setattr(exact_sum, "BLOCK", block)
        mean, others = folded(random_updates(6), {})
        assert torch.equal(mean.params, expected.params)
        assert [v.outcome for v in others] == [v.outcome for v in verdicts]
        assert [v.values["cosine"] for v in others] == pytest.approx(
            [v.values["cosine"] for v in verdicts], abs=1e-6
        )


@pytest.mark.parametrize("knobs", OPTIONS)
def test_the_path_of_other_devices_gives_the_bits_of_the_cpus(
    knobs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, _ = folded(random_updates(6), knobs)
    monkeypatch.setattr(exact_sum, "_native", lambda x: x)
    mean, _ = folded(random_updates(6), knobs)
    assert torch.equal(mean.params, expected.params)
    assert torch.equal(mean.buffers, expected.buffers)


def test_a_read_only_update_can_be_folded_and_is_left_alone() -> None:
    array = np.array([0.5, 0.25], np.float32)
    array.flags.writeable = False
    fold = plane(on_reject="project", normalise="reference")
    update = from_arrays({"delta": array})["delta"]
    assert fold.add(weights(update), 1.0).counts
    assert update.tolist() == [0.5, 0.25]


def test_later_changes_to_the_weights_handed_in_do_not_reach_the_fold() -> None:
    theta, server = weights(vector(3, 4)), weights(vector(4, 4))
    fold = IncrementalFold(theta, server, FedILSettings(), 0, 1.0)
    theta.params.zero_()
    server.params.fill_(-9)
    assert fold.add(weights(vector(1, 0)), 1.0).values["cosine"] == 1.0
