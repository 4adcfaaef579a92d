"""How right a trained model is on a test set: accuracy, balanced accuracy, sensitivity, specificity, precision, F1, AUC
and calibration error, overall and by class, with 95 % intervals, and which classes it confuses.

--data takes other labelled data for external validation: a folder with one folder a class, an .npz file in MedMNIST's
layout, a .csv file with the columns of the run's table, or the name of a dataset, whose test set is taken. Classes are
matched by name; those of an .npz file, which has no names, by number."""

import argparse
import json
from pathlib import Path

from ops.cli.commands.model_choice import add_model_arguments, load_trained


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    data = "labelled data to evaluate on instead of the run's own test set"
    parser.add_argument("--data", metavar="NAME|FOLDER|FILE", help=data)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    parser.add_argument(
        "--csv", type=Path, metavar="FILE", help="also write one row for each score and class"
    )


def run(args: argparse.Namespace) -> int:
    recipe, dataset, network = load_trained(args)
    from ops.inspect.csv_files import write_csv
    from ops.inspect.other_data import labelled_samples
    from ops.inspect.quality import assess, print_quality
    from ops.inspect.score_tables import COLUMNS

    if args.data is None:
        samples, name = dataset.load_test(), recipe.name
    else:
        samples, name = labelled_samples(args.data, dataset, recipe.data.root), args.data
    quality = assess(network, samples, dataset, recipe.autocast)
    if args.csv is not None:
        write_csv(args.csv, COLUMNS, quality.csv_rows(args.model))
    if args.json:
        print(json.dumps({"data": name} | quality.as_json(args.model), ensure_ascii=False))
    else:
        print_quality(quality, f"{name}, {args.model} model")
    return 0
