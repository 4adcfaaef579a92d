"""Write a trained model to a file that other programs can load, with its preprocessing and class names, and beside it a
model card: what it was trained on, how, what it reaches and what it is not for."""

import argparse
import json
from pathlib import Path

from fedil_model.errors import SettingError
from ops.cli.commands.model_choice import add_model_arguments, load_trained

ENDINGS = {"safetensors": ".safetensors", "torchscript": ".pt", "onnx": ".onnx"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    formats = "safetensors: the weights alone; torchscript and onnx: a program that runs without FedIL"
    parser.add_argument("--format", choices=sorted(ENDINGS), required=True, help=formats)
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: RUN/<model>.<ending>")
    parser.add_argument("--json", action="store_true", help="what the file holds, as one JSON object")


def run(args: argparse.Namespace) -> int:
    out: Path = args.out or args.run_dir / f"{args.model}{ENDINGS[args.format]}"
    if out.is_dir():
        raise SettingError(f"{out} is a folder: --out wants the name of a file")
    recipe, dataset, network = load_trained(args)
    from broker_config.process.durable import write_atomically
    from ops.inspect.export import digest_of, export, make_package
    from ops.inspect.model_card import facts_of, model_card

    about = {
        "recipe": recipe.name,
        "model": args.model,
        "model_digest": digest_of(network),
        "network": recipe.network.model_dump(mode="json"),
        "trained": facts_of(args.run_dir, recipe, args.model),
    }
    package = make_package(network, dataset, about)
    export(package, args.format, out)
    card = out.with_name(f"{out.stem}.MODEL_CARD.md")  # of this file: a folder may hold several
    write_atomically(card, [model_card(package.metadata, out).encode()])
    if args.json:
        print(json.dumps({"file": str(out), "card": str(card), **package.metadata}, ensure_ascii=False))
    else:
        print(out)
        print(card)
    return 0
