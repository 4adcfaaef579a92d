"""Test accuracy of a trained model, by class, and which classes it confuses."""

import argparse
import json

from ops.cli.commands.model_choice import add_model_arguments, load_trained


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")


def run(args: argparse.Namespace) -> int:
    recipe, dataset, network = load_trained(args)
    from ops.inspect.quality import measure, print_quality

    quality = measure(network, dataset, recipe.autocast)
    if args.json:
        print(json.dumps(quality.as_json(args.model), ensure_ascii=False))
    else:
        print_quality(quality, f"{recipe.name}, {args.model} model")
    return 0
