"""FedMatch's fold: sparse updates, of which hostile ones are refused, and that arrival order leaves no trace."""

import math
from itertools import permutations

import pytest
import torch
from torch import Tensor

from fedil_model.methods.interface import Answer, Folded
from tests.unit.fedil_model.steps import LABELLED, activate, answer, answered, same
from tests.unit.fedil_model.test_fedmatch import dense, method


def test_the_clients_part_becomes_their_mean_and_the_servers_what_was_broadcast() -> None:
    made = method()
    state = made.initial_state(LABELLED)
    step = made.server_step(state, LABELLED, 1)
    results = [activate(made, step.broadcast, client=client) for client in (0, 1)]
    fold = made.open_fold(step.state, {1: step.broadcast}, 1, LABELLED)
    for client, result in enumerate(results):
        assert fold.add(answered(result, 1, client)).counts
    after = fold.close()
    mean = (dense(made, results[0]) + dense(made, results[1])) / 2
    assert torch.allclose(after.state["psi.params"], state["psi.params"] + mean, atol=1e-6)
    assert torch.equal(after.state["sigma.params"], step.broadcast["sigma.params"])
    moved = after.state["sigma.params"] + after.state["psi.params"]
    moved = moved - state["sigma.params"] - state["psi.params"]
    assert after.delta_norm == pytest.approx(float(moved.norm()), rel=1e-4)


def test_without_an_update_the_server_still_keeps_what_it_learned() -> None:
    made = method()
    step = made.server_step(made.initial_state(LABELLED), LABELLED, 1)
    after = made.open_fold(step.state, {1: step.broadcast}, 1, LABELLED).close()
    assert same({name: after.state[name] for name in step.broadcast}, step.broadcast)
    assert after.notes == ("no update was accepted",)


def sparse(indices: list[int], values: list[float], **more: Tensor) -> dict[str, Tensor]:
    tensors = {
        "psi.indices": torch.tensor(indices, dtype=torch.int32),
        "psi.values": torch.tensor(values),
        "psi.buffers": torch.zeros(0),
    }
    return tensors | {name.replace("_", "."): tensor for name, tensor in more.items()}


@pytest.mark.parametrize(
    ("update", "named"),
    [
        ({"psi.indices": torch.zeros(0)}, "instead of psi.indices, psi.values, psi.buffers"),
        (sparse([0], [1.0], psi_more=torch.ones(1)), "instead of psi.indices"),
        (sparse([0, 1], [1.0]), "not vectors of the same length"),
        (sparse([0], [1.0], psi_indices=torch.tensor(0, dtype=torch.int32)), "not vectors"),
        (sparse([0], [1.0], psi_values=torch.ones(1, 1)), "not vectors"),
        (sparse([0], [1.0], psi_indices=torch.tensor([0])), "int64"),
        (sparse([0], [1.0], psi_indices=torch.tensor([0.0])), "float32"),
        (sparse([0], [1.0], psi_indices=torch.tensor([True])), "bool"),
        (sparse([0], [1.0], psi_values=torch.ones(1, dtype=torch.float64)), "float64"),
        (sparse([-1], [1.0]), "go from -1"),
        (sparse([-1, 0], [1.0, 1.0]), "go from -1"),
        (sparse([0, 10**6], [1.0, 1.0]), "to 1000000"),
        (sparse([0, 10**6, 1], [1.0, 1.0, 1.0]), "do not increase"),
        (sparse([1, 0], [1.0, 1.0]), "do not increase"),
        (sparse([3, 3], [1.0, 1.0]), "do not increase"),
        (sparse([3, -5, 4], [1.0, 1.0, 1.0]), "do not increase"),
        (sparse([2**31 - 1, -(2**31), 0], [1.0, 1.0, 1.0]), "do not increase"),
        (sparse([0], [math.nan]), "not finite"),
        (sparse([0], [math.inf]), "not finite"),
        (sparse([0], [1e6]), "exceeds"),
        (sparse([0], [1.0], psi_buffers=torch.zeros(3)), "buffer values"),
    ],
)
def test_a_hostile_update_is_named_and_leaves_no_trace(update: dict[str, Tensor], named: str) -> None:
    made = method()
    step = made.server_step(made.initial_state(LABELLED), LABELLED, 1)
    fold, clean = (made.open_fold(step.state, {1: step.broadcast}, 1, LABELLED) for _ in range(2))
    verdict = fold.add(answer(update, client=5))
    assert (verdict.outcome, verdict.counts) == ("invalid", False)
    assert named in verdict.detail
    for each in (fold, clean):
        each.add(answer(sparse([0, 4], [0.5, -0.5]), client=1))
    ours, theirs = fold.close(), clean.close()
    assert same(ours.state, theirs.state)
    assert "helper.5.params" not in ours.state


def test_an_update_from_a_version_that_is_not_kept_is_named() -> None:
    made = method()
    step = made.server_step(made.initial_state(LABELLED), LABELLED, 1)
    fold = made.open_fold(step.state, {1: step.broadcast}, 1, LABELLED)
    assert fold.add(answer(sparse([0], [1.0]), base_version=3)).detail.startswith("version 3")


def test_an_update_without_changes_is_one_that_stays() -> None:
    made = method()
    step = made.server_step(made.initial_state(LABELLED), LABELLED, 1)
    fold = made.open_fold(step.state, {1: step.broadcast}, 1, LABELLED)
    assert fold.add(answer(sparse([], []))).counts
    assert torch.equal(fold.close().state["psi.params"], step.broadcast["psi.params"])


def test_any_order_gives_the_same_bits_also_with_several_versions_and_answers_of_one_client() -> None:
    made = method(method={"pool": 3})
    state = made.initial_state(LABELLED)
    bases = {number: made.server_step(state, LABELLED, number).broadcast for number in (1, 2)}
    answers: list[Answer] = []
    for place, (client, version) in enumerate([(0, 2), (1, 1), (2, 2), (1, 2), (3, 1)]):
        result = activate(made, bases[version], client=client, round_number=version + place)
        answers.append(answer(result.update, 4, version, (3 - version) ** -0.5, client=client))

    def folded(order: tuple[int, ...]) -> Folded:
        fold = made.open_fold(state, bases, 2, LABELLED)
        assert all(fold.add(answers[i]).counts for i in order)
        return fold.close()

    first = folded((0, 1, 2, 3, 4))
    assert int(first.state["helper.1.version"]) == 2
    for order in list(permutations(range(5)))[::13]:
        other = folded(order)
        assert same(first.state, other.state)
        assert (first.metrics, first.delta_norm) == (other.metrics, other.delta_norm)


def test_the_shipped_model_leaves_out_the_smallest_values_of_the_clients_part() -> None:
    made = method(method={"min_change": 0.01})
    state = made.initial_state(LABELLED)
    broadcast = made.server_step(state, LABELLED, 1).broadcast
    end = made.end_round(state, broadcast, LABELLED, 1)
    small = state["psi.params"].abs() <= 0.01
    assert 0 < int(small.sum()) < len(small)
    shipped = end.models["global"].params
    assert torch.equal(shipped[small], state["sigma.params"][small])
    assert torch.equal(shipped[~small], (state["sigma.params"] + state["psi.params"])[~small])
    assert torch.equal(end.models["server"].params, broadcast["sigma.params"] + broadcast["psi.params"])
