"""Label pictures or rows of a table with a run's model: every picture in a folder, of any size and mode, a single
picture, the images of an .npz file in MedMNIST's layout (its test part, if it has one), or the rows of a .csv file."""

import argparse
import json
import sys
from pathlib import Path

from ops.cli.commands.model_choice import add_model_arguments, load_trained
from ops.inspect.picture_files import files_in


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add = parser.add_argument
    add("source", type=Path, metavar="FOLDER|FILE", help="a folder is searched with its subfolders")
    add("--probabilities", action="store_true", help="of every class, not only of the most probable one")
    add("--top", type=_count, default=1, metavar="K", help="the K most probable classes; default: 1")
    threshold = "give no label where the most probable class has less than this, such as 0.8"
    add("--threshold", type=_share, default=0.0, metavar="P", help=threshold)
    add("--json", action="store_true", help="one JSON line for each picture or row")
    add("--csv", type=Path, metavar="FILE", help="also write file,label,confidence to FILE")


def run(args: argparse.Namespace) -> int:
    if not args.source.is_file():
        files_in(args.source)  # before torch is loaded
    _, dataset, network = load_trained(args)
    from fedil_model.data.datasets.pictures import UnreadablePicture
    from ops.inspect.answers import Answers
    from ops.inspect.csv_files import write_csv
    from ops.inspect.predict import Prediction, predict

    has_rows = args.source.suffix in (".npz", ".csv")
    top = min(args.top, len(dataset.class_names))
    answers = Answers(dataset.class_names, has_rows, args.threshold, top, args.probabilities)
    predictions: list[Prediction] = []
    unreadable = 0
    for found in predict(network, dataset, args.source):
        if isinstance(found, UnreadablePicture):
            unreadable += 1
            print(f"fedil: skipped {found.file}: {found.reason}", file=sys.stderr)
        else:
            predictions.append(found)
            said = answers.as_json(found) if args.json else None
            print(json.dumps(said, ensure_ascii=False) if said else answers.line(found))
    if args.csv is not None:
        write_csv(args.csv, answers.columns(), map(answers.csv_row, predictions))
    return 1 if unreadable else 0


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"wants a number from 1 up, got {text!r}")
    return int(text)


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise argparse.ArgumentTypeError(f"wants a number from 0 to 1, got {text!r}")
    return value
