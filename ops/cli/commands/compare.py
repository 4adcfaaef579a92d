"""Run several methods on one recipe, with the same split, initial weights and budget, and compare them.

Accuracy is the mean of the last evaluations of each run, with its spread over seeds. Runs that were stopped, or a
machine that died, cost nothing that was done: the same command goes on."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from client_worker.options import at_least_one
from fedil_model.device_argument import add_device_argument
from ops.cli.recipe_files import RECIPE_HELP
from server_worker.options import add_override_argument
from server_worker.run.environment import usable_cores

if TYPE_CHECKING:
    from ops.study.cells import Cell


def add_arguments(parser: argparse.ArgumentParser) -> None:
    methods = "names, or name/profile such as fedil/paper; @label after it: the same again, with settings of its own"
    parser.add_argument("--methods", required=True, metavar="A,B,…", help=methods)
    add_study_arguments(parser, "compare")


def add_study_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    budget = (
        "budget of each run: a short run first finds out how many rounds fit; default: the recipe's rounds"
    )
    add = parser.add_argument
    add("recipe", metavar="RECIPE", help=RECIPE_HELP)
    add_override_argument(parser)
    add("--seeds", default="1", metavar="N|A-B|A,B", help="default: 1, the seed 0")
    add("--cpu-seconds", type=float, metavar="S", help=budget)
    add("--jobs", type=at_least_one, metavar="N", help="runs at a time; default: one per core")
    add("--out", type=Path, metavar="DIR", help=f"default: runs/{command}-<recipe name>")
    add_device_argument(parser)
    add("--json", action="store_true", help="print the results as JSON instead of a table")
    add("--quiet", action="store_true", help="no progress")


def run(args: argparse.Namespace) -> int:
    from ops.study.cells import compared_methods, parse_seeds

    methods = [name.strip() for name in args.methods.split(",") if name.strip()]
    cells = compared_methods(args.recipe, methods, parse_seeds(args.seeds), args.overrides)
    return run_study(args, "compare", cells)


def without_place(words: Sequence[str]) -> list[str]:
    """What was asked for, without where its files go: the results may be published."""
    kept = [word for word in words if not word.startswith("--out=")]
    if "--out" in kept:
        place = kept.index("--out")
        del kept[place : place + 2]
    return kept


def run_study(args: argparse.Namespace, command: str, cells: "list[Cell]") -> int:
    import json

    from ops.cli.interruption import interruptible
    from ops.cli.invocation import shell_line
    from ops.study.results import write_files
    from ops.study.runner import Study
    from ops.study.view import StudyView, print_table

    folder = args.out or Path("runs") / f"{command}-{cells[0].recipe.name}"
    study = Study(folder, cells, args.device, args.cpu_seconds)
    study.prepare()
    line = shell_line(*args.words)
    view = StudyView(args.quiet)
    with view.live or nullcontext(), interruptible(on_first=lambda: None) as interruption:
        progress = study.run(args.jobs or usable_cores(), interruption.stop, view.show)
    results, written = write_files(study, progress, shlex.join(["fedil", *without_place(args.words)]))
    if args.json:
        print(json.dumps(results))
    else:
        print_table(results)
        for path in written:
            print(path)
    for one in progress:
        if one.state == "failed":
            print(f"fedil: {one.cell.variant} seed {one.cell.seed} failed: {one.reason}", file=sys.stderr)
    if interruption.stop.is_set():
        print(f"fedil: stopped; go on with: {line}", file=sys.stderr)
        return interruption.exit_code
    return 1 if any(one.state == "failed" for one in progress) else 0
