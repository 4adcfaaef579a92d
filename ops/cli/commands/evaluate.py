"""Test accuracy of a trained model, by class, and which classes it confuses."""

import argparse
import json
from typing import TYPE_CHECKING

from ops.cli.commands.model_choice import add_model_arguments, load_trained

if TYPE_CHECKING:
    from ops.inspect.quality import Quality


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")


def run(args: argparse.Namespace) -> int:
    recipe, dataset, network = load_trained(args)
    from ops.inspect.quality import measure, print_quality

    quality = measure(network, dataset, recipe.autocast)
    if args.json:
        print(json.dumps(as_json(quality, args.model), ensure_ascii=False))
    else:
        print_quality(quality, f"{recipe.name}, {args.model} model")
    return 0


def as_json(quality: "Quality", which: str) -> dict[str, object]:
    return {
        "model": which,
        "samples": quality.samples,
        "accuracy": quality.accuracy,
        "per_class": dict(zip(quality.class_names, quality.per_class, strict=True)),
        "confusion": quality.confusion,
    }
