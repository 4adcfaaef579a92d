"""Clients say what they like, and there may be many: a server's metrics stay few, finite and right."""

import math

import pytest

from server_worker.round.reporting import mean_losses
from server_worker.watch.events import ClientOutcome
from server_worker.watch.metrics import OUTCOMES, ServerMetrics
from server_worker.watch.survey import Survey
from tests.exposition import by_label, num_series, promtool_complaints, value, values
from tests.federation import blobs_recipe
from tests.unit.ops.records import make_record
from tests.unit.server_worker.test_metrics import closed, outcome


def test_ten_thousand_hostile_clients_make_no_more_series() -> None:
    metrics = ServerMetrics("r", blobs_recipe())
    clients = 10_000
    outcomes = tuple(
        ClientOutcome(
            client,
            OUTCOMES[client % 7],
            math.cos(client),
            metrics={f"loss_{client}_{n}": 1e308 for n in range(20)} | {f'{client}"}} 1\n': 1.0},
            num_samples=2**62,
            staleness=client,
        )
        for client in range(clients)
    )
    record = make_record(
        1,
        outcomes=outcomes,
        selected=clients,
        losses={"loss_server": 0.5, **mean_losses(outcomes)},
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
    metrics.watch_traffic(
        lambda: ({f"kind {n}": n for n in range(1000)}, {f"kind {n}": n for n in range(1000)})
    )
    text = metrics.render()
    assert num_series(text) < 500
    assert by_label(text, "fedil_loss", "term") == {"server": 0.5}
    assert value(text, "fedil_workers_alive") == clients
    assert values(text, "fedil_delta_theta_norm") == {}
    assert value(text, "fedil_images_total") == 2 * 10**9 * sum(o.outcome in OUTCOMES[:3] for o in outcomes)
    assert "inf" not in text.decode().lower().replace('le="+inf"', "").replace("fedil_run_info", "")
    assert promtool_complaints(text) == ""


def test_a_loss_that_only_one_client_tells_of_is_not_shown() -> None:
    metrics = ServerMetrics("r", blobs_recipe())
    honest = [outcome(client) for client in range(3)]
    hostile = outcome(3, metrics={"loss_pseudo": 9.7, "loss_mine": 1.0})
    told = (*honest, hostile, ClientOutcome(4, "missing"))
    metrics.round_closed(closed(1, *told, losses={"loss_server": 0.5, **mean_losses(told)}))
    shown = by_label(metrics.render(), "fedil_loss", "term")
    assert shown == {"server": 0.5, "pseudo": pytest.approx((3 * 0.1 + 9.7) / 4)}


def test_an_update_that_nobody_believes_counts_no_images() -> None:
    metrics = ServerMetrics("r", blobs_recipe(client={"epochs": 3}))
    metrics.update_arrived(1, outcome(0, outcome="invalid", num_samples=10**18), 1, 2)
    metrics.update_arrived(1, outcome(1, num_samples=7), 2, 2)
    assert value(metrics.render(), "fedil_images_total") == 21
