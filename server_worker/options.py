"""The command line of a server, without anything heavy: wrong arguments are answered before torch is loaded."""

import argparse
import os
import re
from pathlib import Path

from broker_config.process.addresses import WebAddress, add_address_arguments, add_web_argument
from broker_config.process.logs import add_log_arguments
from fedil_model.device_argument import add_device_argument

LIVE_PAGE = WebAddress(port=8265, fixed=False)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_address_arguments(parser)
    add_rounds_argument(parser)
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
        "--stay",
        action="store_true",
        help="when the run has ended, keep serving --web until asked to stop; for places that start again what ends",
    )
    add_device_argument(parser, "where to train on the labels and evaluate")
    add_watching_arguments(parser)
    add_mlflow_argument(parser)
    add_log_arguments(parser)


def add_watching_arguments(parser: argparse.ArgumentParser) -> None:
    add_web_argument(parser, LIVE_PAGE, "the live page, /metrics, /healthz and /readyz")
    parser.add_argument(
        "--tensorboard",
        action="store_true",
        help="write the rounds for TensorBoard too, into DIR/tensorboard",
    )


def add_rounds_argument(parser: argparse.ArgumentParser) -> None:
    """Of where a run is started and gone on with: other than in the recipe, it may differ from what the run had."""
    rounds = "how many rounds in all; also how a run goes on to more rounds than it was started with"
    parser.add_argument("--rounds", type=_at_least_one, metavar="N", help=rounds)


def overrides_of(options: argparse.Namespace) -> list[str]:
    return [*options.overrides, *([f"rounds={options.rounds}"] if options.rounds else [])]


def _at_least_one(text: str) -> int:
    if not re.fullmatch(r"0*[1-9][0-9]*", text):
        raise argparse.ArgumentTypeError(f"wants a number from 1 up, got {text!r}")
    return int(text)


def add_mlflow_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--mlflow",
        nargs="?",
        const="",
        type=_tracking_address,
        metavar="URI",
        help="write settings, rounds, model and report to MLflow too: http(s)://…, or sqlite:///FILE; default: what "
        "MLFLOW_TRACKING_URI says, or sqlite:///DIR/mlflow.db",
    )


def _tracking_address(text: str) -> str:
    if text and "://" not in text and not text.startswith("sqlite:"):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no address such as http://host:5000 or sqlite:///mlflow.db"
        )
    return text


def mlflow_address(asked: str | None, run_dir: Path) -> str | None:
    if asked is None:
        return None
    return asked or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{run_dir.resolve() / 'mlflow.db'}"


def add_override_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help="override one setting of the recipe, such as client.lr=0.1; repeatable",
    )
