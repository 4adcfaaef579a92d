"""List the runs in a folder: what state they are in, and how good they are."""

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from fedil_model.errors import SettingError

if TYPE_CHECKING:
    from ops.inspect.runs import RunFacts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    searched = "searched with its subfolders; default: runs"
    parser.add_argument("folder", nargs="?", type=Path, default=Path("runs"), metavar="DIR", help=searched)
    parser.add_argument("--json", action="store_true", help="one JSON line per run")


def run(args: argparse.Namespace) -> int:
    if not args.folder.is_dir():
        raise SettingError(f"there is no folder {args.folder}: name the one that runs are kept in")
    from ops.inspect.runs import as_json, runs_below

    runs = runs_below(args.folder)
    if args.json:
        for one in runs:
            print(json.dumps(as_json(one), ensure_ascii=False))
    elif runs:
        print_table(runs)
    else:
        print(f"no run in {args.folder}")
    return 0


def print_table(runs: "list[RunFacts]") -> None:
    from rich.console import Console
    from rich.text import Text

    from ops.cli.invocation import brief_path
    from ops.cli.view.rows import percent
    from ops.cli.view.tables import plain_table

    table = plain_table(
        ("run", "state", "rounds", "accuracy %", "method", "changed", "MB"), left=("run", "state", "method")
    )
    table.columns[0].overflow = table.columns[1].overflow = "fold"  # a path that is cut cannot be copied
    for one in runs:
        rounds = f"{one.rounds_done}/{one.rounds}" if one.rounds else ""
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.changed))
        cells = (rounds, percent(one.accuracy), one.method, when, f"{one.bytes / 1e6:.1f}")
        table.add_row(*map(Text, (brief_path(one.path), one.state, *cells)))
    Console(highlight=False, markup=False).print(table)
