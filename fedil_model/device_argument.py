"""How a person names a device, without torch: wrong names are answered before it is loaded."""

import argparse
import re


def add_device_argument(parser: argparse.ArgumentParser, what: str = "where to train") -> None:
    parser.add_argument(
        "--device",
        type=_device,
        default="auto",
        metavar="auto|cpu|cuda:N",
        help=f"{what}; default: auto, a GPU if there is one",
    )


def _device(text: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", text):
        raise argparse.ArgumentTypeError(f"wants auto, cpu or cuda:N, got {text!r}")
    return text
