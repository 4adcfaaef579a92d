"""Label every image in a folder, of any size and mode: they are resized to what the network expects."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ops.cli.commands.model_choice import add_model_arguments, load_trained
from ops.inspect.picture_files import files_in

if TYPE_CHECKING:
    from ops.inspect.predict import Prediction


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="searched with its subfolders")
    parser.add_argument("--json", action="store_true", help="one JSON line per image")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="also write file,label,confidence to FILE")


def run(args: argparse.Namespace) -> int:
    files = files_in(args.folder)
    _, dataset, network = load_trained(args)
    from fedil_model.data.datasets.pictures import UnreadablePicture
    from ops.inspect.predict import predict_files, write_csv

    predictions: list[Prediction] = []
    unreadable = 0
    label_width = max(map(len, dataset.class_names))
    for answer in predict_files(network, dataset, files):
        if isinstance(answer, UnreadablePicture):
            unreadable += 1
            print(f"fedil: skipped {answer.file}: {answer.reason}", file=sys.stderr)
        else:
            predictions.append(answer)
            line = json.dumps(asdict(answer), default=str) if args.json else text_line(answer, label_width)
            print(line)
    if args.csv is not None:
        write_csv(args.csv, predictions)
    return 1 if unreadable else 0


def text_line(prediction: "Prediction", label_width: int) -> str:
    """The path last: it may have any length."""
    return f"{prediction.label:{label_width}}  {100 * prediction.confidence:5.1f} %  {prediction.file}"
