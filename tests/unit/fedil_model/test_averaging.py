"""The exact mean of FedAvg: what counts how much, what is refused, and that arrival order leaves no trace."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedil_model.methods import make_learning
from fedil_model.methods.averaging import MOST_SAMPLES, AveragingFold, effort_behind
from fedil_model.methods.interface import Answer, Folded
from fedil_model.training.flat_model import Weights, from_arrays
from fedil_model.training.optimiser import learning_rate
from tests.unit.fedil_model.steps import answer

LEARNING = make_learning({"rounds": 10, "client": {"lr": 0.1, "lr_schedule": "cosine"}})
MEAN_AND_VARIANCE = torch.tensor([False, True])


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def draw(size: int, seed: int, scale: float = 1.0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * scale


def base(*params: float, mean: float = 0.0, variance: float = 1.0) -> dict[str, Tensor]:
    return Weights(vector(*params), vector(mean, variance)).tensors("global")


def new_fold(
    bases: Mapping[int, Mapping[str, Tensor]] | None = None,
    state: Mapping[str, Tensor] | None = None,
    **options: Any,
) -> AveragingFold:
    """Of version 1, or of the last of `bases`."""
    bases = bases or {1: base(3, 4)}
    options = {"variances_Q": MEAN_AND_VARIANCE} | options
    return AveragingFold(LEARNING, state or bases[max(bases)], bases, max(bases), **options)


def update(*params: float, mean: float = 0.0, variance: float = 0.0) -> dict[str, Tensor]:
    return Weights(vector(*params), vector(mean, variance)).tensors("delta")


def params_of(folded: Folded) -> list[float]:
    return [float(value) for value in folded.state["global.params"]]


def test_the_new_model_is_what_was_broadcast_and_the_mean_of_the_increments() -> None:
    fold = new_fold()
    assert all(fold.add(answer(update(*delta))).counts for delta in ((1, 0), (0, 2)))
    after = fold.close()
    assert params_of(after) == [3.5, 5.0]
    assert after.delta_norm == pytest.approx(math.hypot(0.5, 1.0))
    assert after.metrics["client_norm"] == pytest.approx(1.5)
    assert after.notes == ()


def test_the_servers_own_step_is_part_of_what_the_shipped_model_moves() -> None:
    """State holds the model before the server trained, the base what it broadcast."""
    fold = new_fold({1: base(3, 4)}, base(2, 4))
    fold.add(answer(update(1, 0)))
    after = fold.close()
    assert params_of(after) == [4.0, 4.0]
    assert after.delta_norm == 2.0


def test_without_an_update_the_new_model_is_what_was_broadcast() -> None:
    after = new_fold({1: base(3, 4)}, {**base(2, 4), "momentum": vector(1, 1)}, momentum=0.5).close()
    assert params_of(after) == [3.0, 4.0]
    assert (after.delta_norm, after.effort, after.metrics) == (1.0, 0.0, {})
    assert after.notes == ("no update was accepted",)
    assert after.state["momentum"].tolist() == [1.0, 1.0]


def test_a_weight_from_staleness_is_a_share_of_the_mean() -> None:
    fold = new_fold()
    fold.add(answer(update(4, 0)))
    fold.add(answer(update(0, 8), weight=0.5))
    assert params_of(fold.close()) == pytest.approx([3 + 4 / 1.5, 4 + 4 / 1.5])


def test_samples_can_be_the_weights_and_a_claim_of_very_many_is_bounded() -> None:
    fold = new_fold(by_samples=True)
    fold.add(answer(update(4, 0), num_samples=100))
    fold.add(answer(update(0, 4), num_samples=300))
    assert params_of(fold.close()) == pytest.approx([4.0, 7.0], abs=1e-5)
    fold = new_fold(by_samples=True)
    fold.add(answer(update(4, 0), num_samples=MOST_SAMPLES))
    fold.add(answer(update(0, 4), num_samples=10**9))
    assert params_of(fold.close()) == [5.0, 6.0]


def test_momentum_keeps_a_share_of_earlier_steps() -> None:
    fold = new_fold(state={**base(3, 4), "momentum": vector(2, 0)}, momentum=0.5)
    fold.add(answer(update(0, 1)))
    after = fold.close()
    assert params_of(after) == [4.0, 5.0]
    assert after.state["momentum"].tolist() == [1.0, 1.0]


def test_statistics_are_averaged_as_values_so_that_stale_ones_keep_a_variance_positive() -> None:
    """Increments −0.9 and −3.9 on top of a variance of 1 would give −1.4."""
    bases = {1: base(3, 4, mean=10.0, variance=4.0), 2: base(3, 4, mean=0.0, variance=1.0)}
    fold = new_fold(bases)
    assert fold.add(answer(update(1, 0, mean=2.0, variance=-0.9), base_version=2)).counts
    assert fold.add(answer(update(1, 0, mean=-4.0, variance=-3.9), base_version=1)).counts
    assert fold.close().state["global.buffers"].tolist() == pytest.approx([4.0, 0.1])


def test_increments_of_older_versions_move_this_one() -> None:
    fold = new_fold({1: base(100, 100), 2: base(3, 4)})
    assert fold.add(answer(update(2, 0), base_version=1)).counts
    assert params_of(fold.close()) == [5.0, 4.0]


def test_statistics_much_larger_than_parameters_can_be_averaged() -> None:
    fold = new_fold({1: base(3, 4, mean=-2e6, variance=1e8)})
    assert fold.add(answer(update(1, 0, mean=1e6, variance=2e8))).counts
    assert fold.close().state["global.buffers"].tolist() == pytest.approx([-1e6, 3e8])


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"delta.params": vector(1, 0)}, "instead of delta.params, delta.buffers"),
        ({**update(1, 0), "more": vector(1)}, "instead of delta.params, delta.buffers"),
        ({**update(1, 0), "delta.params": torch.ones(2, dtype=torch.float64)}, "not a float32 vector"),
        ({**update(1, 0), "delta.params": torch.ones(1, 2)}, "not a float32 vector"),
        (update(1, 0, 0), "parameters"),
        ({**update(1, 0), "delta.buffers": vector(0)}, "buffer values"),
        (update(math.nan, 0), "not finite"),
        (update(0, -math.inf), "not finite"),
        (update(1, 0, mean=math.nan), "not finite"),
        (update(1, 0, variance=math.inf), "not finite"),
        (update(51, 0), "exceeds 50"),
        (update(1e30, 0), "not finite"),
        (update(1, 0, variance=-1.5), "variance is negative"),
        (update(1, 0, mean=1e9), "moves by more"),
    ],
)
def test_what_cannot_be_averaged_is_named_and_leaves_no_trace(wrong: dict[str, Tensor], named: str) -> None:
    fold, clean = new_fold(), new_fold()
    verdict = fold.add(answer(wrong))
    assert (verdict.outcome, verdict.counts) == ("invalid", False)
    assert named in verdict.detail
    for each in (fold, clean):
        each.add(answer(update(0.3, 0.7)))
    ours, theirs = fold.close(), clean.close()
    assert torch.equal(ours.state["global.params"], theirs.state["global.params"])
    assert torch.equal(ours.state["global.buffers"], theirs.state["global.buffers"])
    assert (ours.effort, ours.metrics) == (theirs.effort, theirs.metrics)


def test_a_version_that_is_not_kept_is_named() -> None:
    verdict = new_fold().add(answer(update(1, 0), base_version=7))
    assert (verdict.outcome, verdict.detail) == ("invalid", "version 7, where it started, is not kept")


def test_one_weight_may_not_move_beyond_what_can_be_summed_however_large_the_model() -> None:
    large = Weights(torch.full((4096,), 100.0), vector()).tensors("global")
    fold = new_fold({1: large}, variances_Q=torch.zeros(0, dtype=torch.bool))
    lone = torch.zeros(4096)
    lone[7] = 1100.0
    assert "moves by more" in fold.add(answer(Weights(lone, vector()).tensors("delta"))).detail


def test_the_state_and_the_update_are_left_alone() -> None:
    state, bases = base(3, 4), {1: base(3, 4)}
    array = np.array([0.5, 0.25], np.float32)
    array.flags.writeable = False
    fold = new_fold(bases, state)
    sent = {"delta.params": from_arrays({"x": array})["x"], "delta.buffers": vector(0, 0)}
    assert fold.add(answer(sent)).counts
    fold.close()
    assert state["global.params"].tolist() == bases[1]["global.params"].tolist() == [3.0, 4.0]
    assert array.tolist() == [0.5, 0.25]


def test_a_reported_share_of_confident_samples_becomes_a_value_from_0_to_1() -> None:
    fold = new_fold()
    for reported, shown in ((0.25, 0.25), (-3.0, 0.0), (1e30, 1.0)):
        verdict = fold.add(answer(update(1, 0), metrics={"sure_share": reported}))
        assert verdict.values == {"sure_share": shown}
    assert fold.add(answer(update(1, 0))).values == {}


def test_the_effort_is_that_of_the_busiest_client_at_the_rate_of_its_version_but_not_a_lone_claim() -> None:
    fold = new_fold({4: base(3, 4), 7: base(3, 4)})
    rates = {version: learning_rate(LEARNING.client, version, LEARNING.rounds) for version in (4, 7)}
    for num_steps, version in ((30, 7), (29, 4), (29, 4)):
        fold.add(answer(update(1, 0), num_steps, version))
    assert fold.close().effort == pytest.approx(29 * rates[4])
    fold = new_fold({7: base(3, 4)})
    for num_steps in (29, 30, 30_000):
        fold.add(answer(update(1, 0), num_steps, 7))
    assert fold.close().effort == pytest.approx(4 * 30 * rates[7])


P = 1000
BASES = {
    version: Weights(draw(P, version), draw(8, 10 + version).abs()).tensors("global") for version in (1, 2, 3)
}


def answers() -> list[Answer]:
    """Of several versions and very different sizes, staleness and numbers of samples; one of them is invalid."""
    made = []
    for seed in range(12):
        params = draw(P, 100 + seed, 10.0 ** -(seed % 7))
        if seed == 5:
            params[3] = math.nan
        tensors = Weights(params, draw(8, 200 + seed, 0.01)).tensors("delta")
        version = 1 + seed % 3
        made.append(
            answer(tensors, 1 + seed, version, (4 - version) ** -0.5, client=seed, num_samples=17 * seed + 1)
        )
    return made


def folded(order: list[int], **options: Any) -> Folded:
    state = {**BASES[3], "momentum": draw(P, 99, 0.1)}
    fold = new_fold(BASES, state, variances_Q=torch.zeros(8, dtype=torch.bool), momentum=0.5, **options)
    for made in (answers()[i] for i in order):
        fold.add(made)
    return fold.close()


@pytest.mark.parametrize("by_samples", [False, True])
@settings(max_examples=15, deadline=None)
@given(order=st.permutations(range(12)))
def test_any_order_gives_the_same_bits(by_samples: bool, order: list[int]) -> None:
    straight, shuffled = (folded(each, by_samples=by_samples) for each in (list(range(12)), order))
    assert straight.state.keys() == shuffled.state.keys()
    for name, tensor in straight.state.items():
        assert torch.equal(tensor, shuffled.state[name]), name
    assert (straight.delta_norm, straight.effort, straight.metrics) == (
        shuffled.delta_norm,
        shuffled.effort,
        shuffled.metrics,
    )


def test_where_a_received_buffer_lies_in_memory_changes_no_bit() -> None:
    room = torch.empty(P + 32)
    reports = []
    for shift in range(9):
        moved = room[shift : shift + P].copy_(draw(P, 5, 0.1))
        fold = new_fold(BASES, variances_Q=torch.zeros(8, dtype=torch.bool))
        fold.add(answer({"delta.params": moved, "delta.buffers": torch.zeros(8)}, base_version=3))
        after = fold.close()
        reports.append((after.state["global.params"].tolist(), after.metrics))
    assert all(report == reports[0] for report in reports)


def test_the_effort_behind_a_step_with_momentum_has_its_share_of_earlier_ones() -> None:
    without: dict[str, Tensor] = {}
    assert [effort_behind(without, [1.0], 0.5), effort_behind(without, [0.2], 0.5)] == [1.0, 0.2]
    state = {"momentum": torch.zeros(1)}
    found = [effort_behind(state, efforts, 0.5) for efforts in ([1.0], [0.2], [], [0.1])]
    assert found == pytest.approx([1.0, 0.7, 0.0, 0.45])
