import dataclasses

import numpy as np
import pytest

from broker_config.protocol.messages import Update
from fedil_model.methods import find_method
from fedil_model.settings import OptimiserSettings
from server_worker.round.validation import MOST_SAMPLES, impossible, kept_metrics, one_line

SETTINGS = OptimiserSettings(epochs=3, batch_size=20)
HONEST = Update("r", 1, 0, 1, 1, num_samples=41, num_steps=9, tensors={"x": np.zeros(1)})


@pytest.mark.parametrize(
    ("num_samples", "num_steps"),
    [(41, 9), (41, 0), (1, 3), (20, 3), (21, 6), (MOST_SAMPLES, 3 * MOST_SAMPLES // 20)],
)
def test_numbers_that_can_be_are_believed(num_samples: int, num_steps: int) -> None:
    update = dataclasses.replace(HONEST, num_samples=num_samples, num_steps=num_steps)
    assert impossible(update, SETTINGS) == ""


@pytest.mark.parametrize(
    ("num_samples", "num_steps", "says"),
    [
        (0, 0, "num_samples is 0, not from 1 to"),
        (2**63 - 1, 9, "num_samples is 9223372036854775807, not from 1 to"),
        (41, 10, "num_steps is 10, where 41 samples make 0 to 9 possible"),
        (41, 10**18, "num_steps is 1000000000000000000, where"),
    ],
)
def test_numbers_that_cannot_be_are_named(num_samples: int, num_steps: int, says: str) -> None:
    update = dataclasses.replace(HONEST, num_samples=num_samples, num_steps=num_steps)
    assert impossible(update, SETTINGS).startswith(says)


def test_where_the_server_knows_how_many_samples_a_client_has_it_believes_nothing_else() -> None:
    assert impossible(HONEST, SETTINGS, shard_sizes=(41, 7)) == ""
    boast = dataclasses.replace(HONEST, num_samples=10**6, num_steps=10**5)
    assert impossible(boast, SETTINGS) == ""
    assert impossible(boast, SETTINGS, shard_sizes=(41, 7)) == (
        "num_samples is 1000000, where the split gave this client 41"
    )


def kept(**metrics: float) -> dict[str, float]:
    return kept_metrics(dataclasses.replace(HONEST, metrics=metrics), find_method("fedil").display)


def test_metrics_are_kept_as_they_are() -> None:
    told = {"loss_pseudo": 0.5, "pseudo_labels": 40.0, "credible": 0.0, "images_per_second": 1e5}
    assert kept(**told) == told


@pytest.mark.parametrize("name", ["", "x" * 65, "a b", "a\nb", "loss_unknown", "reference_norm", "cosine"])
def test_metrics_that_the_method_does_not_declare_for_clients_are_left_out(name: str) -> None:
    assert kept(**{name: 1.0, "loss_pseudo": 2.0}) == {"loss_pseudo": 2.0}


def test_absurd_values_are_left_out() -> None:
    assert kept(loss_pseudo=1e31, loss_credible=-1e308, loss_consistency=-3.0) == {"loss_consistency": -3.0}


def test_a_client_total_is_no_larger_than_the_clients_samples() -> None:
    assert kept(pseudo_labels=1e20, credible=-7.0) == {"pseudo_labels": 41.0, "credible": 0.0}


def test_what_others_say_is_one_short_line() -> None:
    assert one_line("a\n b\r\n\tc") == "a b c"
    assert len(one_line("x" * 10**6)) == 1000
