"""Arguments and loading that evaluate, predict and export share: which run, and which of its models."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from fedil_model.data.datasets.interface import Dataset
    from server_worker.run.recipe import Recipe


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_dir", type=Path, metavar="RUN", help="a run's folder")
    model = "one of the models that the run's method evaluates; default: global, the one that ships"
    parser.add_argument("--model", metavar="NAME", default="global", help=model)
    add_plugin_argument(parser)


def add_plugin_argument(parser: argparse.ArgumentParser) -> None:
    code = "code that the run's recipe may name; repeatable"
    parser.add_argument("--plugin", action="append", default=[], metavar="MODULE:CALLABLE", help=code)


def load_trained(args: argparse.Namespace) -> "tuple[Recipe, Dataset, nn.Module]":
    """Its recipe and dataset, and the network in eval mode."""
    from ops.inspect.run_reading import data_settings, load_run, load_weights

    recipe = load_run(args.run_dir, args.plugin)
    from fedil_model.data.datasets import open_dataset

    dataset = open_dataset(data_settings(args.run_dir, recipe))
    return recipe, dataset, load_weights(args.run_dir, recipe, args.model, dataset)
