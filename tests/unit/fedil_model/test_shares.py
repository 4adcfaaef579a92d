"""Class shares of a client, found from predictions alone, and labels that take them into account."""

import pytest
import torch
from torch import Tensor

from fedil_model.methods.fedil.client import LABEL_SHARES
from fedil_model.methods.fedil.ledger import decode_labels
from fedil_model.methods.fedil.settings import FedILSettings
from fedil_model.methods.fedil.shares import estimate_shares, shares_of, with_shares
from tests.unit.fedil_model.steps import LABELLED, UNLABELLED, activate, broadcast_of
from tests.unit.fedil_model.test_fedil_method import method

CLASSES = 10
EVEN = torch.full((CLASSES,), 1 / CLASSES)


def predictions(labels_N: Tensor, signal: float, expected_C: Tensor = EVEN) -> Tensor:
    """Of a calibrated model whose evidence is `signal` for the true class, with noise."""
    noise = torch.randn(len(labels_N), CLASSES, generator=torch.Generator().manual_seed(0))
    evidence = signal * (torch.eye(CLASSES)[labels_N] + noise / signal**0.5)
    probabilities_NC: Tensor = (evidence + expected_C.log()).softmax(1)
    return probabilities_NC


def right(probabilities_NC: Tensor, labels_N: Tensor) -> float:
    return float((probabilities_NC.argmax(1) == labels_N).float().mean())


def found(probabilities_NC: Tensor, temperature: float = 1.0, labelled_C: Tensor = EVEN) -> Tensor:
    shares_C = estimate_shares(probabilities_NC, labelled_C, temperature)
    assert shares_C is not None
    return shares_C


def test_a_client_with_two_classes_finds_them_and_gets_better_labels() -> None:
    labels_N = torch.tensor([3, 7]).repeat(200)
    probabilities_NC = predictions(labels_N, 2.0)
    shares_C = found(probabilities_NC)
    assert set(shares_C.topk(2).indices.tolist()) == {3, 7}
    assert shares_C[[3, 7]].sum() > 0.7
    better_NC = with_shares(probabilities_NC, shares_C, EVEN, 1.0)
    assert right(better_NC, labels_N) > right(probabilities_NC, labels_N) + 0.2


def test_predictions_of_a_network_that_is_too_sure_need_the_temperature() -> None:
    labels_N = torch.tensor([3, 7]).repeat(200)
    too_sure_NC = predictions(labels_N, 2.0).log().mul(3.0).softmax(1)
    plain_NC, cooled_NC = (
        with_shares(too_sure_NC, found(too_sure_NC, temperature), EVEN, temperature)
        for temperature in (1.0, 3.0)
    )
    assert right(cooled_NC, labels_N) > right(plain_NC, labels_N) + 0.05


def test_a_client_that_is_like_the_labels_is_left_alone() -> None:
    uneven_C = shares_of(torch.arange(55).sqrt().long(), CLASSES)
    labels_N = torch.multinomial(uneven_C, 500, True, generator=torch.Generator().manual_seed(1))
    for signal in (1.0, 3.0, 10.0):
        assert estimate_shares(predictions(labels_N, signal, uneven_C), uneven_C, 1.0) is None
    assert estimate_shares(predictions(labels_N, 10.0), EVEN, 1.0) is not None


def test_certain_predictions_stay_finite() -> None:
    certain_NC = torch.eye(CLASSES)[torch.zeros(50, dtype=torch.int64)]
    shares_C = found(certain_NC, 3.0)
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


@pytest.mark.parametrize("norm", ["bn", "sbn"])
def test_a_client_with_few_classes_normalises_with_the_statistics_that_it_receives(norm: str) -> None:
    """A client like the labels does not: its batches say more."""
    for inputs, skewed in ((UNLABELLED[::4], True), (UNLABELLED, False)):
        moved = []
        for frozen in (True, False):
            knobs = {"prior_temperature": 2.0, "frozen_statistics": frozen}
            fedil = method("paper", network={"norm": norm}, method=knobs)
            moved.append(activate(fedil, broadcast_of(fedil), inputs=inputs).update["delta.params"])
        assert torch.equal(*moved) != skewed


def test_frozen_statistics_need_class_shares() -> None:
    with pytest.raises(ValueError, match="frozen_statistics needs estimated class shares: set prior_temp"):
        FedILSettings(frozen_statistics=True)
