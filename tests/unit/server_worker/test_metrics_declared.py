"""The metrics of a server are those that its method declares."""

import dataclasses

import pytest

from fedil_model.methods import find_method
from fedil_model.methods.interface import Chart, ClientValue, Display, Model, Series
from server_worker.watch.metrics import ServerMetrics
from tests.exposition import promtool_complaints, types, value
from tests.federation import blobs_recipe
from tests.unit.ops.records import make_record
from tests.unit.server_worker.test_metrics import NAMES, outcome

OTHER = Display(
    models=(Model("global", "w", "the model"),),
    charts=(
        Chart(
            "Drift",
            "How far clients drift.",
            (
                Series("drift", "drift", "Mean drift.", source="client_mean"),
                Series("found", "found", "Samples found.", source="client_total"),
                Series("new", "new", "Samples found in the round.", source="client_gain", of="found"),
            ),
        ),
    ),
    client_values=(ClientValue("distance", "distance", "Distance from the model.", low=0.0, high=5.0),),
)


def test_the_metrics_of_a_method_are_those_that_it_declares(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = dataclasses.replace(find_method("fedil"), display=OTHER)
    monkeypatch.setattr("server_worker.run.recipe.find_method", lambda name: spec)
    metrics = ServerMetrics("r", blobs_recipe())
    shown = {name for name in types(metrics.render()) if name.startswith("fedil_")}
    own = {"fedil_drift", "fedil_found", "fedil_new_total", "fedil_update_distance"}
    assert shown - NAMES.keys() == own
    assert not any(part in name for name in shown for part in ("cosine", "label", "credible", "loss"))
    metrics.update_arrived(1, outcome(0, values={"distance": 2.5, "undeclared": 1.0}), 1, 1)
    for number in (1, 2):
        metrics.round_closed(make_record(number, series={"drift": 0.25, "found": 7 * number, "new": 7}))
    text = metrics.render()
    assert (value(text, "fedil_drift"), value(text, "fedil_found")) == (0.25, 14)
    assert value(text, "fedil_new_total") == 14
    assert value(text, "fedil_update_distance_bucket", le="2.5") == 1
    assert promtool_complaints(text) == ""
