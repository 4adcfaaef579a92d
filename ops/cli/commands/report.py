"""Write one HTML file that shows a run, or compares several; it opens anywhere, without a network.

Runs that differ by their seed only are put together, with mean and spread."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from broker_config.stores import is_redis_url
from fedil_model.errors import SettingError
from ops.cli.commands.model_choice import add_plugin_argument
from ops.inspect.run_place import is_run

if TYPE_CHECKING:
    from ops.inspect.report.drawing import Plot
    from ops.inspect.report.reading import Run

FORMATS = ("png", "svg", "pdf")
BESIDE_THE_REPORT = Path()
"""--png without a folder"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    default = "default: report.html in the run's folder, or here for several runs"
    plots = "also write every plot into a file of its own; default: plots, beside the report"
    store = "redis://… of a deployment, where the ledgers of its clients are"
    tensorboard = "also write the history for TensorBoard, into DIR/RUN"
    add("runs", nargs="+", type=Path, metavar="RUN", help="a run's folder")
    add("--out", type=Path, metavar="FILE", help=default)
    add("--png", nargs="?", type=Path, const=BESIDE_THE_REPORT, metavar="DIR", help=plots)
    add("--format", choices=FORMATS, help="of those files; default: png")
    add("--store", metavar="URL", help=store)
    add_plugin_argument(parser)
    add("--tensorboard", type=Path, metavar="DIR", help=tensorboard)
    add("--json", action="store_true", help="what was written, as one JSON object")


def run(args: argparse.Namespace) -> int:
    folders = checked(args)
    out = place_for(args.out, folders)
    from broker_config.process.durable import write_atomically
    from ops.inspect.report import check_installed
    from ops.inspect.report.reading import read_run

    check_installed()
    runs = [read_run(folder, args.plugin) for folder in folders]
    written: dict[str, list[Path]] = {"tensorboard": [], "report": [out], "plots": []}
    if args.tensorboard is not None:
        written["tensorboard"] = write_events(runs, args.tensorboard)
    page, plots = built(runs, args.store)
    write_atomically(out, [page.encode("utf-8", "replace")])
    if args.png is not None or args.format:
        from ops.inspect.report.drawing import write_plots

        folder = out.parent / "plots" if args.png in (None, BESIDE_THE_REPORT) else args.png
        written["plots"], absent = write_plots(plots, folder, args.format or "png")
        for reason in absent:
            print(f"fedil: no plot of {reason}", file=sys.stderr)
    tell(written, args.json)
    return 0


def tell(written: dict[str, list[Path]], as_json: bool) -> None:
    if as_json:
        print(json.dumps({kind: list(map(str, paths)) for kind, paths in written.items()}))
        return
    for path in (path for paths in written.values() for path in paths):
        print(path)


def checked(args: argparse.Namespace) -> list[Path]:
    """Before anything heavy is loaded. A run that is named twice is one run."""
    from ops.inspect.run_reading import recipe_values

    folders = list({folder.resolve(): folder for folder in args.runs}.values())
    for folder in folders:
        recipe_values(folder)
    if args.png is not None and args.png != BESIDE_THE_REPORT and is_run(args.png):
        raise SettingError(f"--png {args.png} is a run, not a folder for plots: put --png after the runs")
    if args.store and not is_redis_url(args.store):
        raise SettingError("the store's URL must begin with redis:// or rediss://")
    if args.store and len(folders) > 1:
        raise SettingError("--store is for one run: a comparison reads no ledgers")
    return folders


def place_for(asked: Path | None, folders: list[Path]) -> Path:
    out = asked or (folders[0] if len(folders) == 1 else Path()) / "report.html"
    if out.is_dir():
        raise SettingError(f"{out} is a folder: name a file with --out, such as {out / 'report.html'}")
    if not out.parent.is_dir():
        raise SettingError(f"--out {out}: there is no folder {out.parent}")
    if not os.access(out.parent, os.W_OK):
        raise SettingError(f"nothing can be written into {out.parent}: choose another place with --out FILE")
    return out


def built(runs: "list[Run]", store: str | None) -> "tuple[str, list[Plot]]":
    if len(runs) > 1:
        from ops.inspect.report.comparison_page import comparison_report

        return comparison_report(runs)
    from ops.inspect.report.drawing import Missing
    from ops.inspect.report.evidence import gather
    from ops.inspect.report.page import run_page, run_plots

    evidence = gather(runs[0], store)
    if store and isinstance(evidence.held_labels, Missing):
        print(f"fedil: the report has no labels of clients: {evidence.held_labels.why}", file=sys.stderr)
    return run_page(runs[0], evidence), run_plots(runs[0], evidence)


def write_events(runs: "list[Run]", folder: Path) -> list[Path]:
    from server_worker.watch.tensorboard import EventFile, check_installed

    check_installed()
    taken: dict[str, Path] = {}
    for one in runs:
        # Two runs may lie in folders of the same name.
        names = (one.label, *(f"{one.label}-{number}" for number in range(2, len(taken) + 3)))
        name = next(name for name in names if name not in taken)
        taken[name] = folder / name
        EventFile(folder / name, one.display, one.records).close()
    return list(taken.values())
