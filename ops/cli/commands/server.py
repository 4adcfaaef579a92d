"""Lead one run: the server of a federation whose workers are anywhere.

The same command goes on with a run that was stopped or killed. `python -m server_worker` does the same without
the view."""

import argparse
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from broker_config.process.addresses import fill_from_environment
from broker_config.process.logs import set_up_logs
from broker_config.protocol.errors import FedILError, UsageError
from fedil_model.errors import SettingError
from ops.cli.commands.simulate import add_view_arguments
from ops.cli.interruption import interruptible
from ops.cli.invocation import shell_line
from ops.cli.recipe_files import RECIPE_HELP, read_recipe
from server_worker import options

if TYPE_CHECKING:
    from server_worker.deployment import Deployment
    from server_worker.run.digests import Outcome
    from server_worker.watch.events import Watcher


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--recipe", required=True, metavar="R", help=RECIPE_HELP)
    options.add_override_argument(parser)
    options.add_arguments(parser)
    add_view_arguments(parser)
    log = "besides the view, append every event to FILE, one line each, as --log-format and --log-level say"
    parser.add_argument("--log-file", type=Path, metavar="FILE", help=log)
    # For a cluster, which is gone on with as a whole.
    parser.add_argument("--again", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    if args.log_file is None and args.log_format != "text":
        raise SettingError(
            "--log-format is for a log: name a --log-file, or use python -m server_worker, which only logs"
        )
    fill_from_environment(args, os.environ)
    recipe = read_recipe(args.recipe, options.overrides_of(args))
    run_dir: Path = args.run_dir or Path("runs") / recipe.name
    from server_worker.run.folder import RunDir
    from server_worker.run.resuming import refuse_differences, saved_recipe

    if saved := saved_recipe(RunDir(run_dir), recipe):
        refuse_differences(run_dir, saved, recipe, more_rounds=args.rounds is not None)
    from ops.cli.view import make_view

    began = time.monotonic()
    host = urlsplit(args.broker).hostname or "a broker"  # for the title: without the password
    view = make_view(recipe, run_dir, host, as_json=args.json, quiet=args.quiet)
    again = args.again or shell_line(*args.words)
    with view, interruptible(on_first=view.stopping) as interruption:
        # Here, because it loads torch: the view already shows that something is happening.
        from ops.inspect.summary import summarise
        from server_worker.deployment import Deployment

        try:
            outcome = serve_logged(args, Deployment.from_options(recipe, args), view, interruption.stop)
        except UsageError:
            raise  # the same command would be refused again
        except FedILError as error:
            error.add_note(f"what was saved before is intact; go on with: {again}")
            raise
    if (tracked := options.mlflow_address(args.mlflow, run_dir)) is not None:
        from ops.inspect.tracking import track_results

        track_results(tracked, recipe, run_dir, view.note)
    summary = summarise(RunDir(run_dir), recipe, outcome, seconds=time.monotonic() - began)
    view.finish(summary, recipe, again)
    return interruption.exit_code if summary.stopped else 0


def serve_logged(
    args: argparse.Namespace, deployment: "Deployment", view: "Watcher", stop: threading.Event
) -> "Outcome":
    """With --log-file a log beside the view. Warnings that only logs tell of, such as a broker that is away, are for
    people too."""
    from ops.inspect.diagnostics import shares_where_known
    from server_worker.deployment import serve
    from server_worker.watch.log import LOGGER

    with set_up_logs(level="warning") as shown:
        shown.addFilter(lambda record: record.name != LOGGER)  # the view says that
        if args.log_file is None:
            return serve(deployment, view, stop, shares_where_known)
        with set_up_logs(args.log_format, args.log_level, args.log_file) as logs:
            try:
                return serve(deployment, view, stop, shares_where_known, logs)
            except Exception as error:
                logs.end(LOGGER, error)
                raise
