"""Write a trained model to a file that other programs can load, with its preprocessing and class names."""

import argparse
from pathlib import Path

from fedil_model.errors import SettingError
from ops.cli.commands.model_choice import add_model_arguments, load_trained

ENDINGS = {"safetensors": ".safetensors", "torchscript": ".pt", "onnx": ".onnx"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    formats = "safetensors: the weights alone; torchscript and onnx: a program that runs without FedIL"
    parser.add_argument("--format", choices=sorted(ENDINGS), required=True, help=formats)
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: RUN/<model>.<ending>")


def run(args: argparse.Namespace) -> int:
    output: Path = args.out or args.run_dir / f"{args.model}{ENDINGS[args.format]}"
    if output.is_dir():
        raise SettingError(f"{output} is a folder: --out wants the name of a file")
    recipe, dataset, network = load_trained(args)
    from ops.inspect.export import digest_of, export, make_package

    about = {
        "recipe": recipe.name,
        "model": args.model,
        "model_digest": digest_of(network),
        "network": recipe.network.model_dump(mode="json"),
    }
    export(make_package(network, dataset, about), args.format, output)
    print(output)
    return 0
