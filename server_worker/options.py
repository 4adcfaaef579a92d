"""The command line of a server, without anything heavy: wrong arguments are answered before torch is loaded."""

import argparse
import re
from pathlib import Path

from broker_config.addresses import WebAddress, add_address_arguments, add_web_argument
from broker_config.logs import add_log_arguments

LIVE_PAGE = WebAddress(port=8265, fixed=False)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_address_arguments(parser)
    parser.add_argument(
        "--run-dir",
        type=Path,
        metavar="DIR",
        help="where the run is kept: checkpoints, history, logs, its identity; default: runs/<recipe name>",
    )
    parser.add_argument(
        "--run",
        metavar="ID",
        dest="run_id",
        help="the run's name at the brokers; default: made up, and kept in DIR",
    )
    parser.add_argument(
        "--standby",
        action="store_true",
        help="wait while another server leads this run, and take over when it goes; both share --run-dir",
    )
    parser.add_argument(
        "--device",
        type=_device,
        default="auto",
        metavar="auto|cpu|cuda:N",
        help="where to train on the labels and evaluate; default: auto, a GPU if there is one",
    )
    add_watching_arguments(parser)
    add_log_arguments(parser)


def add_watching_arguments(parser: argparse.ArgumentParser) -> None:
    add_web_argument(parser, LIVE_PAGE, "the live page, /metrics, /healthz and /readyz")
    parser.add_argument(
        "--tensorboard",
        action="store_true",
        help="write the rounds for TensorBoard too, into DIR/tensorboard",
    )


def _device(text: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", text):
        raise argparse.ArgumentTypeError(f"wants auto, cpu or cuda:N, got {text!r}")
    return text
