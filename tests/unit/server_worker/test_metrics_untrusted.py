"""Whatever clients report and however many they are, a server's metrics stay few, finite and right."""

import math

import pytest

from server_worker.round.series import mean_of_most
from server_worker.watch.events import ClientOutcome
from server_worker.watch.metrics import ServerMetrics
from server_worker.watch.survey import Survey
from tests.exposition import by_label, num_series, promtool_complaints, value, values
from tests.federation import blobs_recipe
from tests.unit.ops.records import make_record
from tests.unit.server_worker.test_metrics import FEDIL, OUTCOMES, closed, outcome

TRAINED = {"accepted", *(one.name for one in FEDIL.outcomes)}


def test_ten_thousand_hostile_clients_make_no_more_series() -> None:
    metrics = ServerMetrics("r", blobs_recipe())
    clients = 10_000
    outcomes = tuple(
        ClientOutcome(
            client,
            OUTCOMES[client % len(OUTCOMES)],
            values={"cosine": math.cos(client), f"value {client}": 1.0},
            metrics={f"loss_{client}_{n}": 1e308 for n in range(20)} | {f'{client}"}} 1\n': 1.0},
            num_samples=10**9,
            staleness=client,
        )
        for client in range(clients)
    )
    record = make_record(
        1,
        outcomes=outcomes,
        selected=clients,
        series={"loss_server": 0.5, "credible": math.inf, **{f"loss_{n}": 1.0 for n in range(1000)}},
        refused={f"reason {number}": 1 for number in range(1000)},
        seconds={f"phase {number}": 1.0 for number in range(1000)} | {"total": 5.0},
        delta_norm=math.inf,
        convergence=dict.fromkeys(("ratio", "exponent"), math.nan),
    )
    for one in outcomes:
        metrics.update_arrived(1, one, one.client + 1, clients)
    metrics.round_closed(record)
    workers = tuple({"name": f"{n}", "site": f"{n}", f"fact {n}": "x" * 100} for n in range(clients))
    metrics.survey(
        Survey(1.0, workers, clients, {f"queue {n}": n for n in range(1000)}, {f"{n}": n for n in range(99)})
    )
    text = metrics.render()
    assert num_series(text) < 300
    assert by_label(text, "fedil_loss", "term") == {"server": 0.5}
    assert value(text, "fedil_workers_alive") == clients
    assert values(text, "fedil_delta_theta_norm") == {}
    assert value(text, "fedil_images_total") == 2 * 10**9 * sum(o.outcome in TRAINED for o in outcomes)
    assert "inf" not in text.decode().lower().replace('le="+inf"', "").replace("fedil_run_info", "")
    assert promtool_complaints(text) == ""


def test_a_loss_that_only_one_client_reports_is_not_shown() -> None:
    metrics = ServerMetrics("r", blobs_recipe())
    honest = [outcome(client) for client in range(3)]
    hostile = outcome(3, metrics={"loss_pseudo": 9.7, "loss_credible": 1.0})
    shown = (*honest, hostile, ClientOutcome(4, "missing"))
    names = ("loss_pseudo", "loss_credible")
    metrics.round_closed(closed(1, *shown, series={name: mean_of_most(name, shown) for name in names}))
    assert by_label(metrics.render(), "fedil_loss", "term") == {"pseudo": pytest.approx((3 * 0.1 + 9.7) / 4)}


def test_an_invalid_update_counts_no_images() -> None:
    metrics = ServerMetrics("r", blobs_recipe(client={"epochs": 3}))
    metrics.update_arrived(1, outcome(0, outcome="invalid", num_samples=10**9), 1, 2)
    metrics.update_arrived(1, outcome(1, num_samples=7), 2, 2)
    assert value(metrics.render(), "fedil_images_total") == 21
