"""Updates that started from several versions, as buffered mode folds them: each is judged by its own version."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedil_model.methods import make_learning
from fedil_model.methods.fedil.aggregation import Gauge, IncrementalFold
from fedil_model.methods.fedil.fold import FedILFold
from fedil_model.methods.fedil.method import FedIL
from fedil_model.methods.fedil.settings import FedILSettings
from fedil_model.methods.interface import Answer, Verdict
from fedil_model.settings import Learning
from fedil_model.training.flat_model import Weights
from fedil_model.training.optimiser import decay_factor, learning_rate
from tests.unit.fedil_model.steps import LABELLED, answer, context_of

P = 600
NOTHING = torch.zeros(0)


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def draw(size: int, seed: int, scale: float = 1.0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * scale


# The fold itself: this version's step is (1, 0), an earlier one's is (0, 2).


def plane(**knobs: Any) -> tuple[IncrementalFold, Gauge]:
    theta, server = Weights(vector(3, 4), NOTHING), Weights(vector(4, 4), NOTHING)
    fold = IncrementalFold(theta, server, FedILSettings(**knobs), 0, 1.0)
    return fold, Gauge(vector(2, 2), vector(2, 4), 0, 1.0)


def mean_of(fold: IncrementalFold) -> list[float]:
    mean = fold.mean()
    assert mean is not None
    return [float(value) for value in mean.params]


@pytest.mark.parametrize(
    ("delta", "now", "before"),
    [((1.0, -1.0), "accepted", "rejected_cosine"), ((-1.0, 1.0), "rejected_cosine", "accepted")],
)
def test_the_cosine_is_taken_with_the_step_of_the_version_an_update_started_from(
    delta: tuple[float, float], now: str, before: str
) -> None:
    fold, earlier = plane()
    assert fold.add(Weights(vector(*delta), NOTHING), 1.0).outcome == now
    assert fold.add(Weights(vector(*delta), NOTHING), 1.0, earlier).outcome == before
    assert fold.num_accepted == 1


def test_projection_and_normalisation_use_the_step_of_the_version_an_update_started_from() -> None:
    fold, earlier = plane(on_reject="project")
    assert fold.add(Weights(vector(3, -1), NOTHING), 1.0, earlier).outcome == "projected"
    assert mean_of(fold) == [3.0, 0.0]
    fold, earlier = plane(normalise="reference")
    fold.add(Weights(vector(0, 7), NOTHING), 1.0, earlier)
    assert mean_of(fold) == pytest.approx([0.0, 2.0])


def test_whether_the_servers_step_has_faded_is_asked_of_the_version_an_update_started_from() -> None:
    fold, _ = plane()
    still = Gauge(vector(2, 2), vector(2, 2), 0, 1.0)
    assert fold.add(Weights(vector(-1, 0), NOTHING), 1.0, still).outcome == "accepted"
    assert fold.add(Weights(vector(-1, 0), NOTHING), 1.0).outcome == "rejected_cosine"


def test_weights_are_each_updates_say_in_the_mean() -> None:
    fold, earlier = plane()
    fold.add(Weights(vector(4, 0), NOTHING), 1.0)
    fold.add(Weights(vector(0, 8), NOTHING), 1.0, earlier, weight=0.5)
    fold.add(Weights(vector(0, 8), NOTHING), 1.0, earlier, weight=0.25)
    assert mean_of(fold) == pytest.approx([4 / 1.75, 6 / 1.75])


def test_a_weight_and_a_soft_cosine_multiply() -> None:
    fold, earlier = plane(soft_cosine=True)
    fold.add(Weights(vector(1, 0), NOTHING), 1.0)
    fold.add(Weights(vector(3, 4), NOTHING), 1.0, earlier, weight=0.5)
    assert mean_of(fold) == pytest.approx([(1 + 0.4 * 3) / 1.4, 0.4 * 4 / 1.4], rel=1e-5)


def test_the_smallest_weight_still_has_a_mean() -> None:
    fold, _ = plane()
    fold.add(Weights(vector(1, 2), NOTHING), 1.0, weight=1e-12)
    assert mean_of(fold) == pytest.approx([1.0, 2.0], rel=1e-4)


STEPS = {version: draw(P, 100 + version, 0.1) for version in (1, 2, 3)}
THETAS = {version: draw(P, 200 + version) for version in (1, 2, 3)}


def folded(
    updates: list[tuple[int, Tensor, Tensor]], knobs: Mapping[str, Any]
) -> tuple[Tensor, Tensor, list[Verdict]]:
    gauges = {v: Gauge(THETAS[v], THETAS[v] + STEPS[v], 400, 0.99) for v in (1, 2)}
    now = Weights(THETAS[3], torch.zeros(4))
    fold = IncrementalFold(
        now, Weights(THETAS[3] + STEPS[3], torch.ones(4)), FedILSettings(**knobs), 400, 0.99
    )
    verdicts = [
        fold.add(Weights(params, buffers), 0.98, gauges.get(base), (4 - base) ** -0.5)
        for base, params, buffers in updates
    ]
    mean = fold.mean()
    assert mean is not None
    return mean.params, mean.buffers, verdicts


@pytest.mark.parametrize(
    "knobs",
    [
        {},
        {"on_reject": "project", "normalise": "reference", "soft_cosine": True},
        {"client_init": "server", "cosine_reference": "start"},
    ],
)
@settings(max_examples=15, deadline=None)
@given(order=st.permutations(range(12)))
def test_any_order_of_versions_and_weights_gives_the_same_bits(
    knobs: dict[str, Any], order: list[int]
) -> None:
    updates = [
        (1 + s % 3, draw(P, s, 10.0 ** -(s % 5)) + (s % 4 - 0.5) * STEPS[1 + s % 3], draw(4, s + 50))
        for s in range(12)
    ]
    params, buffers, verdicts = folded(updates, knobs)
    other_params, other_buffers, others = folded([updates[i] for i in order], knobs)
    assert torch.equal(params, other_params)
    assert torch.equal(buffers, other_buffers)
    assert [verdicts[i] for i in order] == others


# The method around it


class Bases(Mapping[int, Mapping[str, Tensor]]):
    """Remembers which versions were looked at."""

    def __init__(self, broadcasts: Mapping[int, Mapping[str, Tensor]]) -> None:
        self._broadcasts, self.read = broadcasts, set[int]()

    def __getitem__(self, version: int) -> Mapping[str, Tensor]:
        self.read.add(version)
        return self._broadcasts[version]

    def __contains__(self, version: object) -> bool:
        return version in self._broadcasts

    def __iter__(self) -> Iterator[int]:
        return iter(self._broadcasts)

    def __len__(self) -> int:
        return len(self._broadcasts)


LEARNING = make_learning(
    {
        "rounds": 10,
        "network": {"name": "mlp", "width": 4, "norm": "none"},
        "client": {"lr": 0.1, "lr_schedule": "cosine", "weight_decay": 0.01},
        "server": {"pretrain_epochs": 0},
        "method": {
            "client_init": "global",
            "loss_margin": 0.0,
            "movement_filter": False,
            "empty_rounds_before_fallback": 0,
        },
    }
)


FROM_THE_SERVER = LEARNING.model_copy(
    update={"method": LEARNING.method.model_copy(update={"client_init": "server"})}
)


def opened(learning: Learning = LEARNING) -> tuple[FedILFold, Bases, Mapping[str, Tensor]]:
    method = FedIL(context_of(learning))
    size = method._student.num_params

    def broadcast(version: int) -> dict[str, Tensor]:
        theta, step = draw(size, 300 + version), draw(size, 400 + version, 0.1)
        sides = Weights(theta, NOTHING).tensors("global") | Weights(theta + step, NOTHING).tensors("server")
        return sides | {"server_decay": torch.tensor(1.0, dtype=torch.float64)}

    bases = Bases({version: broadcast(version) for version in (4, 5, 6, 7)})
    state = Weights(bases[7]["global.params"], NOTHING).tensors("global")
    fold = method.open_fold({**state, "empty_rounds": torch.zeros((), dtype=torch.int64)}, bases, 7, LABELLED)
    bases.read.clear()
    return fold, bases, state


def step_of(bases: Bases, version: int) -> Tensor:
    return bases._broadcasts[version]["server.params"] - bases._broadcasts[version]["global.params"]


def update(delta: Tensor, num_steps: int, base_version: int, weight: float = 1.0) -> Answer:
    return answer({"delta.params": delta, "delta.buffers": NOTHING}, num_steps, base_version, weight)


def test_a_stale_update_counts_partly_as_an_increment_and_partly_as_a_value() -> None:
    """Two versions late: a third of what θ′ has moved since stays."""
    fold, bases, state = opened()
    assert fold.add(update(step_of(bases, 7), 1, 7)).counts
    assert fold.add(update(step_of(bases, 5), 1, 5, 0.5)).counts
    assert not fold.add(update(-step_of(bases, 4), 1, 4, 0.5)).counts
    after = fold.close()
    late = bases._broadcasts[5]["global.params"] - state["global.params"]
    moved = (step_of(bases, 7) + 0.5 * (step_of(bases, 5) + late * 2 / 3)) / 1.5
    assert torch.allclose(after.state["global.params"], state["global.params"] + moved, atol=1e-6)
    assert after.metrics["reference_norm"] == pytest.approx(float(step_of(bases, 7).norm()))


def test_a_stale_client_that_started_from_the_servers_weights_does_not_bring_its_old_step_again() -> None:
    fold, bases, state = opened(FROM_THE_SERVER)
    own = {version: draw(len(step_of(bases, version)), version, 0.01) for version in (5, 6, 7)}
    for version, weight in ((7, 1.0), (6, 0.5), (5, 0.5)):
        assert fold.add(update(step_of(bases, version) + own[version], 1, version, weight)).counts
    learned = (own[7] + 0.5 * own[6] + 0.5 * own[5]) / 2.0
    expected = state["global.params"] + step_of(bases, 7) + learned
    assert torch.allclose(fold.close().state["global.params"], expected, atol=1e-6)


def test_a_stale_step_taken_again_would_make_the_model_swing_and_does_not() -> None:
    """The server always goes all the way to 0, and its clients learn nothing of their own; all are two versions
    late. Without care x(t+1) = x(t) − x(t−2), which grows without end."""
    method = FedIL(context_of(FROM_THE_SERVER))
    size = method._student.num_params
    state: Mapping[str, Tensor] = Weights(torch.ones(size), NOTHING).tensors("global")
    state = {**state, "empty_rounds": torch.zeros((), dtype=torch.int64)}
    bases: dict[int, Mapping[str, Tensor]] = {}
    decay = {"server_decay": torch.tensor(1.0, dtype=torch.float64)}
    sizes = []
    for version in range(1, 13):
        server = Weights(torch.full((size,), 1e-3 * version), NOTHING).tensors("server")
        bases[version] = {**state, **server, **decay}
        base = max(version - 2, 1)
        fold = method.open_fold(state, bases, version, LABELLED)
        fold.add(update(bases[base]["server.params"] - bases[base]["global.params"], 1, base))
        state = fold.close().state
        sizes.append(float(state["global.params"].abs().max()))
    assert max(sizes) < 0.1


def test_clients_that_go_all_the_way_from_an_old_model_do_not_make_the_new_one_swing() -> None:
    """All are two versions late. Added as they are, x(t+1) = x(t) − x(t−2), which grows without end."""
    method = FedIL(context_of(LEARNING))
    size = method._student.num_params
    state: Mapping[str, Tensor] = Weights(torch.ones(size), NOTHING).tensors("global")
    state = {**state, "empty_rounds": torch.zeros((), dtype=torch.int64)}
    bases: dict[int, Mapping[str, Tensor]] = {}
    sizes = []
    for version in range(1, 25):
        server = Weights(torch.full((size,), 1e-3 * version), NOTHING).tensors("server")
        bases[version] = {**state, **server, "server_decay": torch.tensor(1.0, dtype=torch.float64)}
        base = max(version - 2, 1)
        fold = method.open_fold(state, bases, version, LABELLED)
        assert fold.add(update(bases[base]["server.params"] - bases[base]["global.params"], 1, base)).counts
        state = fold.close().state
        sizes.append(float(state["global.params"].abs().max()))
    assert max(sizes) <= 1.0
    assert sizes[-1] < 0.1


NO_DECAY = LEARNING.client.model_copy(update={"weight_decay": 0.0})


def test_a_stale_step_that_was_rescaled_is_replaced_as_rescaled() -> None:
    """The update is three times as long as the server's step of its version, so a third of each part counts."""
    knobs = {"client_init": "server", "normalise": "reference"}
    learning = LEARNING.model_copy(
        update={"method": LEARNING.method.model_copy(update=knobs), "client": NO_DECAY}
    )
    fold, bases, state = opened(learning)
    then, now = step_of(bases, 5), step_of(bases, 7)
    assert fold.add(update(then + 2.0 * then, 1, 5)).counts
    expected = state["global.params"] + (now + 2.0 * then) / 3.0
    assert torch.allclose(fold.close().state["global.params"], expected, atol=1e-6)


def test_a_projected_update_brings_no_stale_step_that_would_have_to_be_replaced() -> None:
    knobs = {"client_init": "server", "on_reject": "project"}
    learning = LEARNING.model_copy(
        update={"method": LEARNING.method.model_copy(update=knobs), "client": NO_DECAY}
    )
    fold, bases, state = opened(learning)
    then, own = step_of(bases, 5), draw(len(step_of(bases, 5)), 1, 0.1)
    sideways = own - then * (own @ then) / (then @ then)
    assert fold.add(update(sideways - 0.5 * then, 1, 5)).outcome == "projected"
    expected = state["global.params"] + sideways
    assert torch.allclose(fold.close().state["global.params"], expected, atol=1e-6)


@pytest.mark.parametrize("client_init", ["global", "server"])
def test_scaled_shares_add_up_to_the_same_bits_in_any_order(client_init: str) -> None:
    shares = set()
    for order in (range(40), range(39, -1, -1)):
        fold, earlier = plane(client_init=client_init, normalise="reference")
        for s in order:
            fold.add(Weights(vector(0.1 * (s - 20), 0.3 + s % 7), NOTHING), 1.0, earlier, 0.7)
        shares.add(fold.share_of_step(earlier))
    assert len(shares) == 1


# Running statistics: a mean and a variance


def with_statistics() -> FedILFold:
    """Version 1 has the variance 4, version 2, which moves, has 1."""

    def broadcast(mean: float, variance: float) -> dict[str, Tensor]:
        statistics = vector(mean, variance)
        sides = Weights(vector(3, 4), statistics).tensors("global")
        sides |= Weights(vector(4, 4), statistics).tensors("server")
        return sides | {"server_decay": torch.tensor(1.0, dtype=torch.float64)}

    bases = {1: broadcast(10.0, 4.0), 2: broadcast(0.0, 1.0)}
    state = {**bases[2], "empty_rounds": torch.zeros((), dtype=torch.int64)}
    return FedILFold(LEARNING, FedILSettings(), state, bases, 2, 0, torch.tensor([False, True]), gate=None)


def statistics(mean: float, variance: float, base_version: int) -> Answer:
    return answer(Weights(vector(1, 0), vector(mean, variance)).tensors("delta"), 1, base_version)


def test_statistics_are_averaged_as_values_so_that_stale_ones_keep_a_variance_positive() -> None:
    """Increments −0.9 and −3.9 on top of a variance of 1 would give −1.4."""
    fold = with_statistics()
    assert fold.add(statistics(2.0, -0.9, 2)).counts
    assert fold.add(statistics(-4.0, -3.9, 1)).counts
    assert fold.close().state["global.buffers"].tolist() == pytest.approx([4.0, 0.1])


@pytest.mark.parametrize(
    ("params", "buffers", "named"),
    [
        (torch.ones(3), torch.ones(2), "parameters"),
        (torch.ones(2), torch.ones(3), "buffer values"),
        (torch.ones(2), torch.ones(0), "buffer values"),
        (torch.ones(2), vector(math.nan, 1), "not finite"),
        (torch.ones(2), vector(1, math.inf), "not finite"),
        (torch.ones(2), vector(0, -1.5), "variance is negative"),
        (torch.ones(2), vector(1e9, 1), "moves by more"),
    ],
)
def test_wrong_shapes_and_statistics_are_named_and_leave_no_trace(
    params: Tensor, buffers: Tensor, named: str
) -> None:
    fold = with_statistics()
    verdict = fold.add(answer(Weights(params, buffers).tensors("delta"), 1, 2))
    assert (verdict.outcome, verdict.counts) == ("invalid", False)
    assert named in verdict.detail
    assert fold.close().state["global.buffers"].tolist() == [0.0, 1.0]


def test_only_versions_that_updates_started_from_are_looked_at() -> None:
    fold, bases, _ = opened()
    fold.add(update(step_of(bases, 7), 1, 7))
    assert bases.read == set()
    for _ in range(2):
        fold.add(update(step_of(bases, 5), 1, 5))
    assert bases.read == {5}


def test_a_version_that_is_not_kept_is_named_and_leaves_no_trace() -> None:
    fold, bases, state = opened()
    verdict = fold.add(update(step_of(bases, 4), 1, 3))
    assert verdict.outcome == "invalid"
    assert "version 3" in verdict.detail
    assert torch.equal(fold.close().state["global.params"], state["global.params"])


def test_decay_is_taken_out_at_the_learning_rate_of_the_version_an_update_started_from() -> None:
    fold, bases, _ = opened()
    theta = bases._broadcasts[5]["global.params"].clone()
    c = decay_factor(LEARNING.client, learning_rate(LEARNING.client, 5, LEARNING.rounds), 40)
    decayed = FedIL(context_of(LEARNING))._student.num_decayed
    theta[decayed:] = 0.0
    assert fold.add(update((c - 1.0) * theta, 40, 5)).detail == "the client did not move"


def test_the_effort_is_that_of_the_busiest_update_that_counts_at_its_own_learning_rate() -> None:
    fold, bases, _ = opened()
    fold.add(update(step_of(bases, 7), 30, 7))
    fold.add(update(step_of(bases, 4), 29, 4))
    fold.add(update(-step_of(bases, 4), 1000, 4))
    rates = {v: learning_rate(LEARNING.client, v, LEARNING.rounds) for v in (4, 7)}
    assert fold.close().effort == pytest.approx(max(30 * rates[7], 29 * rates[4]))


def test_one_who_claims_a_thousand_times_the_steps_of_others_does_not_decide_the_effort() -> None:
    fold, bases, _ = opened()
    for num_steps in (29, 30, 30_000):
        assert fold.add(update(step_of(bases, 7), num_steps, 7)).counts
    rate = learning_rate(LEARNING.client, 7, LEARNING.rounds)
    assert fold.close().effort == pytest.approx(4 * 30 * rate)


def test_a_faded_step_is_noted_if_it_is_that_of_a_version_in_use() -> None:
    fold, bases, _ = opened()
    faded = dict(bases._broadcasts[5])
    faded["server.params"] = faded["global.params"]
    bases._broadcasts = {**bases._broadcasts, 5: faded}
    assert fold.add(update(step_of(bases, 7), 1, 7)).counts
    assert fold.add(update(-step_of(bases, 4), 1, 5)).counts
    assert any("faded" in note for note in fold.close().notes)
