"""Train the clients of one site: workers that take tasks from a broker until they are asked to stop.

The same as `python -m client_worker`, and with --recipe it makes the site's shards first."""

import argparse
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from broker_config.process.addresses import fill_from_environment
from broker_config.process.durable import make_directory
from client_worker import options
from ops.cli.commands.shards import write_site_shards
from ops.cli.recipe_files import read_recipe
from server_worker.options import add_override_argument


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_arguments(parser)
    recipe = (
        "make the shards from this recipe's dataset if --shards has none, and allow the code that it names"
    )
    parser.add_argument("--recipe", metavar="R", help=recipe)
    add_override_argument(parser)


def run(args: argparse.Namespace) -> int:
    from client_worker.__main__ import check_ports
    from client_worker.__main__ import run as serve

    fill_from_environment(args, os.environ)
    check_ports(args)
    if args.recipe is not None:
        prepare(args)
    return serve(args)


def prepare(args: argparse.Namespace) -> None:
    from client_worker.shards import has_shards

    recipe = read_recipe(args.recipe, args.overrides)
    # Naming a recipe allows the code that it names.
    args.plugin += recipe.plugins
    shards: Path = args.shards
    if has_shards(shards):
        return
    with only_one_at(shards):
        if not has_shards(shards):
            clients, samples = write_site_shards(recipe, args.site, shards)
            print(f"{shards}: {samples} samples of {len(clients)} clients")


@contextmanager
def only_one_at(folder: Path) -> Iterator[None]:
    """Waits for other workers that were started at the same time, and make the same shards."""
    make_directory(folder)
    # Not through a symbolic link, which may lead to a file elsewhere.
    lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
