"""Arguments and loading that evaluate, predict and export share: which run, and which of its models."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedil_model.errors import SettingError
from ops.cli.recipe_files import with_data_root
from ops.inspect.run_place import is_run

if TYPE_CHECKING:
    from torch import nn

    from fedil_model.data.datasets.interface import Dataset
    from server_worker.run.recipe import Recipe

MODELS = ("global", "server", "ema")


@dataclass(frozen=True)
class TrainedModel:
    recipe: "Recipe"
    dataset: "Dataset"
    network: "nn.Module"
    """In eval mode."""
    which: str


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="a run's folder")
    parser.add_argument(
        "--model",
        choices=MODELS,
        default="global",
        help="global: θ′; server: θ₀, fine-tuned on the labels; ema: the average of θ′; default: global",
    )


def check_run(folder: Path) -> None:
    """Before anything heavy is loaded"""
    if not folder.is_dir():
        raise SettingError(f"there is no folder {folder}")
    if not is_run(folder):
        raise SettingError(f"{folder} is not the folder of a run (it has no recipe.json)")


def load_trained(args: argparse.Namespace) -> TrainedModel:
    check_run(args.run_dir)
    from fedil_model.data.datasets import open_dataset
    from ops.inspect.run_reading import load_run, load_weights

    recipe = load_run(args.run_dir)
    dataset = open_dataset(with_data_root(recipe.data))
    return TrainedModel(recipe, dataset, load_weights(args.run_dir, args.model, dataset), args.model)
