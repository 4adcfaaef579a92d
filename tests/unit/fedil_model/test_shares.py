"""Class shares of a client, found from predictions alone, and labels that take them into account."""

import torch
from torch import Tensor

from fedil_model.methods.fedil.client import LABEL_SHARES
from fedil_model.methods.fedil.ledger import decode_labels
from fedil_model.methods.fedil.shares import estimate_shares, shares_of, with_shares
from tests.unit.fedil_model.steps import LABELLED, UNLABELLED, activate, broadcast_of
from tests.unit.fedil_model.test_fedil_method import method

CLASSES = 10
EVEN = torch.full((CLASSES,), 1 / CLASSES)


def predictions(labels_N: Tensor, signal: float, expected_C: Tensor = EVEN) -> Tensor:
    """Of a calibrated model whose evidence is `signal` for the true class, with noise."""
    noise = torch.randn(len(labels_N), CLASSES, generator=torch.Generator().manual_seed(0))
    evidence = signal * (torch.eye(CLASSES)[labels_N] + noise / signal**0.5)
    return (evidence + expected_C.log()).softmax(1)


def right(probabilities_NC: Tensor, labels_N: Tensor) -> float:
    return float((probabilities_NC.argmax(1) == labels_N).float().mean())


def test_a_client_with_two_classes_finds_them_and_gets_better_labels() -> None:
    labels_N = torch.tensor([3, 7]).repeat(200)
    probabilities_NC = predictions(labels_N, 2.0)
    shares_C = estimate_shares(probabilities_NC, EVEN, 1.0)
    assert set(shares_C.topk(2).indices.tolist()) == {3, 7}
    assert shares_C[[3, 7]].sum() > 0.7
    better_NC = with_shares(probabilities_NC, shares_C, EVEN, 1.0)
    assert right(better_NC, labels_N) > right(probabilities_NC, labels_N) + 0.2


def test_predictions_of_a_network_that_is_too_sure_need_the_temperature() -> None:
    labels_N = torch.tensor([3, 7]).repeat(200)
    too_sure_NC = predictions(labels_N, 2.0).log().mul(3.0).softmax(1)
    plain_NC, cooled_NC = (
        with_shares(too_sure_NC, estimate_shares(too_sure_NC, EVEN, temperature), EVEN, temperature)
        for temperature in (1.0, 3.0)
    )
    assert right(cooled_NC, labels_N) > right(plain_NC, labels_N) + 0.05


def test_a_client_that_is_like_the_labels_keeps_its_labels() -> None:
    uneven_C = shares_of(torch.arange(55).sqrt().long(), CLASSES)
    labels_N = torch.multinomial(uneven_C, 2000, True, generator=torch.Generator().manual_seed(1))
    probabilities_NC = predictions(labels_N, 3.0, uneven_C)
    shares_C = estimate_shares(probabilities_NC, uneven_C, 1.0)
    assert torch.allclose(shares_C, uneven_C, atol=0.02)
    better_NC = with_shares(probabilities_NC, shares_C, uneven_C, 1.0)
    same = (better_NC.argmax(1) == probabilities_NC.argmax(1)).float().mean()
    assert same > 0.95
    assert torch.allclose(with_shares(probabilities_NC, uneven_C, uneven_C, 3.0), probabilities_NC, atol=1e-5)


def test_certain_predictions_stay_finite() -> None:
    certain_NC = torch.eye(CLASSES)[torch.zeros(50, dtype=torch.int64)]
    shares_C = estimate_shares(certain_NC, EVEN, 3.0)
    assert torch.isfinite(with_shares(certain_NC, shares_C, EVEN, 3.0)).all()
    assert shares_C.argmax() == 0
    assert abs(float(shares_C.sum()) - 1.0) < 1e-5


def test_label_shares_are_broadcast_only_where_they_are_used() -> None:
    assert LABEL_SHARES not in broadcast_of(method("paper"))
    fedil = method("paper", method={"prior_temperature": 2.0})
    broadcast = broadcast_of(fedil)
    assert torch.equal(broadcast[LABEL_SHARES], shares_of(LABELLED.labels, 4))


def test_a_client_of_one_class_is_taught_more_of_it() -> None:
    """The same task with and without: samples of one class, of which θ₀ takes some for others."""
    one_class = UNLABELLED[::4]
    taught = []
    for temperature in (0.0, 3.0):
        knobs = {"prior_temperature": temperature, "pseudo_source": "server", "threshold": 0.3}
        fedil = method("paper", server={"epochs": 1}, method=knobs)
        state = activate(fedil, broadcast_of(fedil), inputs=one_class).state
        taught.append(int((decode_labels(state["taught"]) == 0).sum()))
    plain, adjusted = taught
    assert plain < adjusted <= len(one_class)


def test_frozen_statistics_come_back_as_they_were() -> None:
    """And the others do not: the client's batches have their own."""
    for frozen in (True, False):
        fedil = method("paper", network={"norm": "bn"}, method={"frozen_statistics": frozen})
        broadcast = broadcast_of(fedil)
        result = activate(fedil, broadcast)
        moved = result.update["delta.buffers"]
        assert len(moved) > 0
        assert bool((moved == 0).all()) == frozen
        assert float(result.update["delta.params"].norm()) > 0.0
