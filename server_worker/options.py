"""The command line of a server, without anything heavy: wrong arguments are answered before torch is loaded."""

import argparse
import re
from collections.abc import Mapping
from pathlib import Path

from fedil_model.errors import SettingError

BROKER_URL, STORE_URL = "FEDIL_BROKER_URL", "FEDIL_STORE_URL"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--broker",
        metavar="URL",
        help=f"amqp(s)://user:password@host/vhost; default: {BROKER_URL} from the environment, where a password is "
        "not seen by others",
    )
    parser.add_argument(
        "--store", metavar="URL", help=f"redis(s)://user:password@host:port; default: {STORE_URL}"
    )
    parser.add_argument(
        "--run-dir", type=Path, metavar="DIR", help="where checkpoints go; default: runs/<recipe name>"
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
        help="wait while another server leads this run (give --run), and take over when it goes",
    )
    parser.add_argument("--device", type=_device, default="auto", metavar="auto|cpu|cuda:N")


def fill_from_environment(options: argparse.Namespace, environment: Mapping[str, str]) -> None:
    for name, variable in (("broker", BROKER_URL), ("store", STORE_URL)):
        given = getattr(options, name) or environment.get(variable)
        if not given:
            raise SettingError(f"no {name} to connect to: give --{name} URL, or set {variable}")
        setattr(options, name, given)


def _device(text: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", text):
        raise argparse.ArgumentTypeError(f"wants auto, cpu or cuda:N, got {text!r}")
    return text
