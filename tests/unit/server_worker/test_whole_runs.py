"""Whole runs with the profile `paper` (batch norm, clients that start from θ′, no training before round 1), and
with batch norm in the profile `fedil`."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fedil_model.training.evaluate import accuracy
from fedil_model.training.flat_model import FlatModel, all_finite
from server_worker.run.inputs import network_of
from tests.federation import Federation, blobs_recipe

ROUNDS = {"clients_per_round": 3}
BUFFERED = {"mode": "buffered", "in_flight": 6, "buffer_size": 2}


@pytest.mark.parametrize("federation", [ROUNDS, BUFFERED], ids=["rounds", "buffered"])
@pytest.mark.parametrize("norm", ["bn", "gn"])
def test_the_papers_profile_learns_in_both_modes(
    norm: str, federation: dict[str, Any], tmp_path: Path
) -> None:
    recipe = blobs_recipe(
        profile="paper",
        rounds=16,
        network={"norm": norm},
        server={"pretrain_epochs": 0, "epochs": 5},
        client={"epochs": 4},
        split={"clients": 12},
        method={"threshold": 0.95, "credibility": 7},
        federation=federation,
    )
    assert recipe.method.model_dump()["client_init"] == "global"
    run = Federation(recipe, tmp_path)
    progress = run.play()
    assert progress is not None
    weights = progress.models["global"]
    assert all_finite(torch.cat([weights.params, weights.buffers]))
    model = FlatModel(network_of(recipe, run.dataset))
    model.load(weights)
    assert accuracy(model.module, run.dataset.load_test(), run.dataset.views) > 0.75


@pytest.mark.parametrize("federation", [ROUNDS, BUFFERED], ids=["rounds", "buffered"])
def test_batches_of_sure_samples_learn_and_every_update_is_valid(
    federation: dict[str, Any], tmp_path: Path
) -> None:
    recipe = blobs_recipe(
        profile="fedil",
        rounds=8,
        network={"norm": "bn"},
        client={"epochs": 3, "batch_size": 7},
        split={"clients": 12},
        method={"threshold": 0.95, "batches": "auto"},
        federation=federation,
    )
    run = Federation(recipe, tmp_path)
    assert run.play() is not None
    outcomes = {outcome.outcome for record in run.diary.records for outcome in record.outcomes}
    assert "accepted" in outcomes
    assert not outcomes & {"invalid", "refused"}
    assert run.diary.records[-1].accuracy["global"] > 0.75
