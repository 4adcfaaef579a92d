"""The page beside an exported model says what it was trained on, how, and what it reached."""

import json
from pathlib import Path

import pytest
from safetensors import safe_open

from fedil_model.data.datasets import open_dataset
from fedil_model.networks import build_network
from ops.inspect.export import digest_of, export, make_package
from ops.inspect.model_card import facts_of, model_card
from server_worker.run.recipe import Recipe, make_recipe

SPLIT = {"seed": 3, "digest": "5eed" * 16, "labelled": list(range(40)), "clients": []}
ROUNDS = [
    {"round": 1, "accuracy": {"global": 0.9, "server": 0.8}},
    {"round": 2, "accuracy": {"global": 0.875}},
    {"round": 3, "accuracy": None},
]


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "split.json").write_text(json.dumps(SPLIT))
    (tmp_path / "history.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in ROUNDS))
    (tmp_path / "baseline.json").write_text(json.dumps({"accuracy": 0.75}))
    (tmp_path / "environment.json").write_text(
        json.dumps([{"fedil": "7.7", "torch": "2.99", "device": "cpu"}])
    )
    return tmp_path


def recipe(**tables: object) -> Recipe:
    return make_recipe(
        {"name": "wards", "seed": 3, "rounds": 5, "network": {"name": "cnn", "width": 4}, **tables}
    )


def card_of(run_dir: Path, made: Recipe, model: str = "global") -> tuple[str, Path]:
    dataset = open_dataset(made.data)
    network = build_network(made.network, dataset.input_shape, len(dataset.class_names), seed=0)
    about = {
        "recipe": made.name,
        "model": model,
        "model_digest": digest_of(network),
        "network": made.network.model_dump(mode="json"),
        "trained": facts_of(run_dir, made, model),
    }
    package = make_package(network, dataset, about)
    file = run_dir / "model.safetensors"
    export(package, "safetensors", file)
    return model_card(package.metadata, file), file


def test_it_says_data_split_method_and_accuracy_with_what_it_was_measured_on(run_dir: Path) -> None:
    card, _ = card_of(run_dir, recipe())
    assert "87.50 % of the test samples of `digits` after round 2, the last evaluation" in card
    assert "Training on the same labels alone reached 75.00 %." in card
    assert "FedIL (https://arxiv.org/abs/2302.11823), `fedil`, profile `fedil`" in card
    assert f"`{SPLIT['digest']}`, seed 3" in card
    assert "40 labelled samples at the server, unlabelled ones at 100 clients of 1 site" in card
    assert "| rounds | 3 of 5 |" in card
    assert "fedil 7.7, torch 2.99, device cpu" in card


def test_each_model_of_a_run_has_its_own_accuracy(run_dir: Path) -> None:
    assert "80.00 % of the test samples of `digits` after round 1" in card_of(run_dir, recipe(), "server")[0]
    assert "It has not been evaluated in its run." in card_of(run_dir, recipe(), "ema")[0]


def test_a_method_without_clients_claims_no_unlabelled_data(run_dir: Path) -> None:
    card, _ = card_of(run_dir, recipe(method={"name": "server_only"}))
    assert "labelled samples at the server only" in card
    assert "had no labels" not in card
    assert "had no labels" in card_of(run_dir, recipe())[0]


def test_the_facts_are_in_the_file_too(run_dir: Path) -> None:
    _, file = card_of(run_dir, recipe())
    with safe_open(str(file), framework="pt") as opened:
        trained = json.loads(opened.metadata()["trained"])
    assert (trained["split_digest"], trained["test_accuracy"]) == (SPLIT["digest"], 0.875)
    assert trained["labelled_samples"] == 40


def test_a_folder_without_history_makes_a_card_that_says_so(tmp_path: Path) -> None:
    card, _ = card_of(tmp_path, recipe())
    assert "not been evaluated" in card
    assert "| trained with | not recorded |" in card
