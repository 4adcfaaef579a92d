"""The command line of a worker, without anything heavy: wrong arguments are answered before torch is loaded."""

import argparse
import re
from dataclasses import replace
from pathlib import Path

from broker_config.process.addresses import (
    BROKER_URL,
    LAST_PORT,
    STORE_URL,
    WebAddress,
    add_address_arguments,
    add_web_argument,
)
from broker_config.process.logs import add_log_arguments
from client_worker.placement import Slot
from fedil_model.device_argument import add_device_argument
from fedil_model.errors import SettingError

_WRITTEN_LAST = "offsets.npy"
"""As client_worker.shards does, which needs numpy"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_address_arguments(parser)
    parser.add_argument("--site", required=True, metavar="S", help="the site to take tasks of")
    parser.add_argument(
        "--shards", required=True, type=Path, metavar="DIR", help="folder with the site's unlabelled samples"
    )
    add_device_argument(parser)
    parser.add_argument(
        "--processes",
        type=at_least_one,
        default=1,
        metavar="K",
        help="how many to train in; with --device auto they are dealt out over the GPUs",
    )
    parser.add_argument(
        "--grace",
        type=_seconds,
        default=0.0,
        metavar="SECONDS",
        help="when asked to stop: finish the task if that takes no longer, else give it back; default: 0, at once",
    )
    parser.add_argument(
        "--cache",
        type=_megabytes,
        metavar="MB",
        help="how much of a GPU's memory may hold shards between tasks; default: a quarter",
    )
    parser.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="MODULE:CALLABLE",
        help="code of yours that tasks may name; repeatable",
    )
    parser.add_argument(
        "--limits",
        type=Path,
        metavar="FILE",
        help="TOML file with what this site allows: runs, methods, samples, norm of updates (see ops/docs/data.md)",
    )
    add_web_argument(
        parser,
        WebAddress(),
        "/metrics, /healthz and /readyz (K processes take this port and those that follow)",
    )
    add_log_arguments(parser)
    # For a pool's children: which of how many they are.
    parser.add_argument("--slot", type=_slot, help=argparse.SUPPRESS)


def for_children(options: argparse.Namespace) -> tuple[list[str], dict[str, str]]:
    """Arguments and environment. Addresses may hold passwords, so they go where others cannot read them."""
    arguments = ["--site", options.site, "--shards", str(options.shards), "--device", options.device]
    arguments += ["--grace", str(options.grace), "--web", str(options.web or "off")]
    arguments += ["--log-format", options.log_format, "--log-level", options.log_level]
    if options.cache is not None:
        arguments += ["--cache", str(options.cache)]
    for plugin in options.plugin:
        arguments += ["--plugin", plugin]
    if options.limits is not None:
        arguments += ["--limits", str(options.limits)]
    return arguments, {BROKER_URL: options.broker, STORE_URL: options.store}


def web_address(options: argparse.Namespace, slot: Slot) -> WebAddress | None:
    """Where one of the processes serves: a port that was asked for is the first process's."""
    first: WebAddress | None = options.web
    if first is None or not first.port:
        return first
    if first.port + slot.processes - 1 > LAST_PORT:
        raise SettingError(
            f"--web {first} leaves no ports for {slot.processes} processes: choose a lower one"
        )
    return replace(first, port=first.port + slot.number)


def check_shards(folder: Path) -> None:
    """Before torch is loaded, and before a pool starts processes that would die of it one after the other. Raises
    DataError for shards that are damaged."""
    if not folder.is_dir():
        raise SettingError(f"there is no folder {folder}: make the shards first, see fedil shards --help")
    if not (folder / _WRITTEN_LAST).exists():
        raise SettingError(f"there are no shards in {folder}: make them first, see fedil shards --help")
    from client_worker.shards import ShardFolder

    ShardFolder(folder)


def check_limits(file: Path | None) -> None:
    """Like `check_shards`. Raises SettingError naming what is wrong."""
    if file is not None:
        from client_worker.limits import read_limits

        read_limits(file)


def at_least_one(text: str) -> int:
    return int(_matching(r"0*[1-9]\d*", text, "a number from 1 up"))


def _megabytes(text: str) -> int:
    return int(_matching(r"\d+", text, "megabytes, a number from 0 up"))


def _seconds(text: str) -> float:
    return float(_matching(r"\d+(\.\d+)?", text, "seconds, a number from 0 up"))


def _matching(pattern: str, text: str, wanted: str) -> str:
    if not re.fullmatch(pattern, text):
        raise argparse.ArgumentTypeError(f"wants {wanted}, got {text!r}")
    return text


def _slot(text: str) -> Slot:
    number, _, processes = text.partition("/")
    return Slot(int(number), int(processes))
