"""Train on one machine: the real server and client loops on an embedded broker, on all cores."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from broker_config.process.logs import set_up_logs
from broker_config.protocol.errors import CheckpointDamaged, FedILError, LedgerMissing
from client_worker.options import at_least_one
from fedil_model.device_argument import add_device_argument
from fedil_model.errors import LearningError, SettingError
from ops.cli.interruption import interruptible
from ops.cli.invocation import resume_words, shell_line
from ops.cli.recipe_files import RECIPE_HELP, read_recipe
from ops.inspect.run_place import has_checkpoint, is_run
from ops.inspect.run_reading import NAME_THE_RECIPE, load_run
from server_worker.options import (
    add_mlflow_argument,
    add_override_argument,
    add_rounds_argument,
    add_watching_arguments,
    mlflow_address,
    overrides_of,
)
from server_worker.run.environment import usable_cores
from server_worker.run.lock import lock_file

if TYPE_CHECKING:
    from server_worker.run.recipe import Recipe

DEFAULT_RECIPE = "digits"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_default_recipe_argument(parser)
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="default: runs/<recipe name>")
    again = parser.add_mutually_exclusive_group()
    again.add_argument("--resume", action="store_true", help="go on where the run in DIR was stopped")
    again.add_argument("--overwrite", action="store_true", help="replace the run in DIR by a new one")
    add_rounds_argument(parser)
    parser.add_argument("--workers", type=at_least_one, metavar="N", help="processes; default: one per core")
    add_device_argument(parser)
    add_watching_arguments(parser)
    add_mlflow_argument(parser)
    add_view_arguments(parser)


def add_default_recipe_argument(parser: argparse.ArgumentParser) -> None:
    help_text = f"{RECIPE_HELP}; default: {DEFAULT_RECIPE}"
    parser.add_argument("recipe", nargs="?", metavar="RECIPE", help=help_text)
    add_override_argument(parser)


def add_view_arguments(parser: argparse.ArgumentParser) -> None:
    lines = "one JSON line per round, and one for the summary"
    parser.add_argument("--json", action="store_true", help=lines)
    parser.add_argument("--quiet", action="store_true", help="only the summary at the end")


def run(args: argparse.Namespace) -> int:
    recipe = chosen_recipe(args)
    run_dir: Path = args.run_dir or Path("runs") / recipe.name
    from ops.local.placing import placed

    how = {"resume": args.resume, "overwrite": args.overwrite, "more_rounds": args.rounds is not None}
    with placed(run_dir, recipe, **how) as (recipe, goes_on):
        return train_or_say_how_to_go_on(args, recipe, run_dir, goes_on)


def train_or_say_how_to_go_on(args: argparse.Namespace, recipe: "Recipe", run_dir: Path, resume: bool) -> int:
    resume_line = shell_line(*resume_words(args.words))
    try:
        return train(args, recipe, run_dir, resume, resume_line)
    except (KeyboardInterrupt, FedILError, LearningError, OSError) as error:
        # Where what was saved is damaged, the error itself says how to go on.
        if has_checkpoint(run_dir) and not isinstance(error, CheckpointDamaged | LedgerMissing):
            error.add_note(f"what was saved before is intact; go on with: {resume_line}")
        raise


def train(args: argparse.Namespace, recipe: "Recipe", run_dir: Path, resume: bool, resume_line: str) -> int:
    from ops.cli.view import make_view

    workers, tracked = args.workers or default_workers(recipe), mlflow_address(args.mlflow, run_dir)
    view = make_view(recipe, run_dir, f"{workers} workers", as_json=args.json, quiet=args.quiet)
    with view, set_up_logs(level="warning"), interruptible(on_first=view.stopping) as interruption:
        # Here, because it loads torch: the view already shows that something is happening.
        from ops.local.simulate import simulate

        summary = simulate(
            recipe,
            run_dir,
            workers=workers,
            device=args.device,
            resume=resume,
            watcher=view,
            stop=interruption.stop,
            web=args.web,
            tensorboard=args.tensorboard,
            mlflow=tracked,
        )
        if tracked is not None:
            from ops.inspect.tracking import track_results

            track_results(tracked, recipe, run_dir, view.note)
    # With --overwrite and nothing saved, the old run is about to come back: that is not to be gone on with.
    again = shell_line(*args.words) if args.overwrite and not has_checkpoint(run_dir) else resume_line
    view.finish(summary, recipe, again)
    return interruption.exit_code if summary.stopped else 0


def chosen_recipe(args: argparse.Namespace) -> "Recipe":
    """The one that was named; or with --resume --run-dir and no name, the run's own."""
    if not (args.resume and args.recipe is None and args.run_dir is not None):
        return read_recipe(args.recipe or DEFAULT_RECIPE, overrides_of(args))
    if not is_run(args.run_dir):
        if lock_file(args.run_dir.resolve()).exists():  # killed before its recipe was written
            return read_recipe(DEFAULT_RECIPE, overrides_of(args))
        raise SettingError(f"there is nothing to resume in {args.run_dir}: leave out --resume to begin")
    from server_worker.run.recipe import make_recipe

    saved = load_run(args.run_dir, remedy=NAME_THE_RECIPE)
    return make_recipe(saved.model_dump(), str(args.run_dir), overrides_of(args))


def default_workers(recipe: "Recipe") -> int:
    federation = recipe.federation
    at_once = federation.in_flight if federation.mode == "buffered" else federation.clients_per_round
    return min(usable_cores(), at_once)
