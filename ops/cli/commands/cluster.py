"""Train on one machine as in a deployment: RabbitMQ, Redis, a server and workers, each a process of its own.

The same command goes on with a run that was stopped or killed."""

import argparse
from pathlib import Path

from client_worker.options import at_least_one
from fedil_model.device_argument import add_device_argument
from ops.cli.commands.simulate import DEFAULT_RECIPE, add_default_recipe_argument, default_workers
from ops.cli.interruption import interruptible
from ops.cli.invocation import shell_line
from ops.cli.recipe_files import find_recipe, read_recipe
from server_worker.options import add_rounds_argument, add_watching_arguments, overrides_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_default_recipe_argument(parser)
    parser.set_defaults(recipe=DEFAULT_RECIPE)
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="default: runs/<recipe name>-cluster")
    add_rounds_argument(parser)
    workers = "processes, dealt out over the sites; default: one per core"
    parser.add_argument("--workers", type=at_least_one, metavar="N", help=workers)
    add_device_argument(parser)
    add_watching_arguments(parser)


def run(args: argparse.Namespace) -> int:
    recipe = read_recipe(args.recipe, overrides_of(args))
    from ops.local.cluster import Cluster, run_cluster, say, with_a_port

    cluster = Cluster(
        recipe,
        find_recipe(args.recipe),
        args.overrides,
        run_dir=args.run_dir or Path("runs") / f"{recipe.name}-cluster",
        workers=args.workers or default_workers(recipe),
        device=args.device,
        again=shell_line(*args.words),
        web=with_a_port(args.web),
        tensorboard=args.tensorboard,
        rounds=args.rounds,
    )
    with interruptible(on_first=lambda: say("stopping; once more ends it at once")) as interruption:
        code = run_cluster(cluster, interruption.stop)
    return interruption.exit_code or code
