"""How right a trained model is on a test set: accuracy, balanced accuracy, sensitivity, specificity, precision, F1, AUC
and calibration error, overall and by class, with 95 % intervals, and which classes it confuses."""

import argparse
import json
from pathlib import Path

from ops.cli.commands.model_choice import add_model_arguments, load_trained


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    parser.add_argument(
        "--csv", type=Path, metavar="FILE", help="also write one row for each score and class"
    )


def run(args: argparse.Namespace) -> int:
    recipe, dataset, network = load_trained(args)
    from ops.inspect.csv_files import write_csv
    from ops.inspect.quality import assess, print_quality
    from ops.inspect.score_tables import COLUMNS

    quality = assess(network, dataset.load_test(), dataset, recipe.autocast)
    if args.csv is not None:
        write_csv(args.csv, COLUMNS, quality.csv_rows(args.model))
    if args.json:
        print(json.dumps(quality.as_json(args.model), ensure_ascii=False))
    else:
        print_quality(quality, f"{recipe.name}, {args.model} model")
    return 0
