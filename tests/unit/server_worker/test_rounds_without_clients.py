"""Runs of a method that asks no clients, and of one with all labels at the server."""

from pathlib import Path
from typing import Any

import pytest
import torch

from broker_config.brokers.topology import models_queue, tasks_queue
from broker_config.transports.memory.transport import MemoryTransport
from fedil_model.errors import SettingError
from server_worker.run.folder import RunDir
from server_worker.run.inputs import read_inputs
from server_worker.run.recipe import Recipe, make_recipe
from server_worker.watch.metrics import ServerMetrics
from server_worker.watch.page_rows import about
from tests.exposition import value
from tests.federation import RUN, SITE, Federation

CPU = torch.device("cpu")


def recipe_of(method: str, **federation: Any) -> Recipe:
    return make_recipe(
        {
            "name": RUN,
            "rounds": 3,
            "data": {"name": "tests.federation:blobs"},
            "split": {"labelled": 20, "clients": 6},
            "network": {"name": "mlp", "width": 16},
            "method": {"name": method},
            "federation": federation,
        }
    )


def test_nothing_is_broadcast_asked_or_awaited(tmp_path: Path) -> None:
    federation = Federation(recipe_of("server_only", deadline_seconds=1e-3), tmp_path)
    transport = MemoryTransport(federation.broker)
    progress = federation.coordinator(transport).run()  # no worker is there
    assert [(record.selected, record.outcomes) for record in federation.diary.records] == [(0, ())] * 3
    assert all(record.delta_norm > 0.0 for record in federation.diary.records)
    assert federation.diary.notes == ["started 1 of 3"]
    assert progress.activations == (0,) * 6
    assert transport.depth(models_queue(RUN)) is None
    assert transport.depth(tasks_queue(SITE)) == 0


def test_the_federation_of_a_recipe_asks_no_clients_where_the_method_asks_none() -> None:
    recipe = recipe_of("server_only", clients_per_round=4, over_select=2)
    assert (recipe.federation.asked_per_round, recipe.federation.expected, recipe.floor_epochs) == (0, 0, 0)
    assert recipe_of("semifl", clients_per_round=4, over_select=2).federation.asked_per_round == 6
    assert about(RUN, recipe)["asked"] == 0


def test_other_methods_need_clients() -> None:
    with pytest.raises(
        SettingError, match=r"federation\.clients_per_round is 0, but method fedil asks clients"
    ):
        recipe_of("fedil", clients_per_round=0)


def test_buffered_mode_needs_clients() -> None:
    with pytest.raises(
        SettingError, match=r'federation\.mode: "buffered" is not supported by method supervised'
    ):
        recipe_of("supervised", mode="buffered", in_flight=6)


def test_wrong_settings_of_the_federation_are_refused_all_the_same() -> None:
    with pytest.raises(
        SettingError, match=r"unknown setting federation\.quorun; did you mean federation\.quorum\?"
    ):
        recipe_of("server_only", quorun=1.0)


@pytest.mark.parametrize(("method", "labels"), [("server_only", 20), ("supervised", 400)])
def test_the_server_has_the_labels_that_the_method_names(method: str, labels: int, tmp_path: Path) -> None:
    inputs = read_inputs(RunDir(tmp_path), recipe_of(method), CPU, resume=False)
    assert len(inputs.labelled.labels) == labels
    assert len(inputs.split.labelled) == 20
    assert torch.equal(inputs.labelled.labels, inputs.train.labels) == (method == "supervised")


def test_rounds_without_clients_are_not_counted_as_empty(tmp_path: Path) -> None:
    federation = Federation(recipe_of("server_only"), tmp_path)
    assert federation.play() is not None
    metrics = ServerMetrics(RUN, federation.recipe)
    for record in federation.diary.records:
        metrics.round_closed(record)
    assert value(metrics.render(), "fedil_empty_rounds") == 0
    assert value(metrics.render(), "fedil_over_selected_ratio") == 0
