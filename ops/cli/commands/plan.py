"""How much a federation needs before it is there: bytes of a round, memory, disk, time, and the limit that comes first.

The recipe gives method, network and codec: two small rounds of it are tried, for a few seconds, without its data."""

import argparse
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from client_worker.options import at_least_one
from fedil_model.errors import LearningError, SettingError
from ops.cli.recipe_files import RECIPE_HELP, read_recipe
from server_worker.options import add_override_argument

if TYPE_CHECKING:
    from ops.plan.formulas import Scale
    from ops.plan.limits import Limit
    from ops.plan.trial import Sizes
    from server_worker.run.recipe import Recipe

_GIB = 1 << 30
_CAPACITIES = {
    "redis": "memory of Redis",
    "server": "memory of the server",
    "worker": "memory of one worker",
    "broker": "memory of RabbitMQ",
    "broker-disk": "disk of RabbitMQ",
}
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", metavar="RECIPE", help=RECIPE_HELP)
    add_override_argument(parser)
    numbers = {
        "clients": "clients of all sites; default: the recipe's",
        "clients-per-round": "clients that train in a round; default: the recipe's",
        "samples": "samples of one client; default: what the recipe's dataset gives each",
        "sites": "sites that own the clients; default: the recipe's",
        "workers": "worker processes of all sites; default: 1",
    }
    for name, meaning in numbers.items():
        parser.add_argument(f"--{name}", type=at_least_one, metavar="N", help=meaning)
    bandwidth = "of the broker's and the server's network in each direction; default: 1000"
    parser.add_argument("--bandwidth", type=positive, metavar="MBIT", default=1000.0, help=bandwidth)
    seconds = "of one client's training on one process; default: 0, transfers alone"
    parser.add_argument("--train-seconds", type=positive, metavar="S", default=0.0, help=seconds)
    for name, what in _CAPACITIES.items():
        parser.add_argument(f"--{name}-gib", type=positive, metavar="GIB", help=f"{what} that there is")
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")


def positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"wants a number above 0, got {text!r}")
    return number


def run(args: argparse.Namespace) -> int:
    recipe = read_recipe(args.recipe, args.overrides)
    from ops.plan.limits import limits
    from ops.plan.trial import measure_sizes

    scale = scale_of(args, recipe)
    sizes = measure_sizes(recipe)
    needs = needs_of(sizes, scale, recipe)
    there = {name: getattr(args, f"{name.replace('-', '_')}_gib") for name in _CAPACITIES}
    capacities = {
        what: (needs[what], there[name] * _GIB)
        for name, what in _CAPACITIES.items()
        if there[name] is not None
    }
    found = limits(sizes, scale, recipe.federation.deadline_seconds, capacities)
    if args.json:
        print(json.dumps(as_json(sizes, scale, needs, found)))
    else:
        show(sizes, needs, found)
    return 1 if found[0].share > 1 else 0


def scale_of(args: argparse.Namespace, recipe: "Recipe") -> "Scale":
    from ops.plan.formulas import Scale

    federation = recipe.federation
    buffered = federation.mode == "buffered"
    clients, per_round = args.clients or recipe.split.clients, args.clients_per_round or federation.expected
    if per_round > clients:
        raise SettingError(f"--clients-per-round is {per_round}, but there are {clients} clients")
    return Scale(
        clients=clients,
        per_round=per_round,
        sites=args.sites or len(recipe.sites),
        workers=args.workers or 1,
        samples=args.samples or samples_of(recipe, clients),
        rounds=recipe.rounds,
        kept_models=federation.max_staleness + 1 if buffered else 1,
        megabits=args.bandwidth,
        train_seconds=args.train_seconds,
    )


def samples_of(recipe: "Recipe", clients: int) -> int:
    from fedil_model.data.datasets import open_dataset

    try:
        count = len(open_dataset(recipe.data).load_train().labels) // clients
    except LearningError as error:
        raise SettingError(f"{error}; or say how many a client has: --samples N") from error
    if recipe.split.partition == "elsewhere" or count == 0:
        raise SettingError("the recipe's data do not tell how many samples a client has: give --samples N")
    return count


def needs_of(sizes: "Sizes", scale: "Scale", recipe: "Recipe") -> dict[str, float]:
    """By what is shown"""
    from ops.plan import formulas

    per_round: dict[str, Callable[..., float]] = {
        "server sends": formulas.server_sends,
        "server receives": formulas.server_receives,
        "broker receives": formulas.broker_receives,
        "broker sends": formulas.broker_sends,
        "one worker receives": formulas.worker_receives,
        "one worker sends": formulas.worker_sends,
        "memory of Redis": formulas.redis_bytes,
        "memory of RabbitMQ": formulas.broker_memory_bytes,
        "disk of RabbitMQ": formulas.broker_disk_bytes,
        "memory of one worker": formulas.worker_memory_bytes,
        "a checkpoint": formulas.checkpoint_bytes,
        "seconds of transfers": formulas.transfer_seconds,
        "seconds of a round": formulas.round_seconds,
    }
    keeps_updates = recipe.spec.keeps_updates
    server = formulas.server_memory_bytes(sizes, scale, keeps_updates=keeps_updates)
    return {name: formula(sizes, scale) for name, formula in per_round.items()} | {
        "memory of the server": server
    }


def as_json(sizes: "Sizes", scale: "Scale", needs: dict[str, float], found: "list[Limit]") -> dict[str, Any]:
    listed = [{**vars(limit), "share": limit.share} for limit in found]
    return {"sizes": vars(sizes), "scale": vars(scale), "needs": needs, "limits": listed}


def show(sizes: "Sizes", needs: dict[str, float], found: "list[Limit]") -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, width=120)
    table = Table("", "a round, or in all", box=None, pad_edge=False)
    table.columns[1].justify = "right"
    for name, value in needs.items():
        table.add_row(name, f"{value:,.1f} s" if name.startswith("seconds") else readable(value))
    console.print(table)
    if sizes.is_bound:
        console.print("updates of this method depend on what clients learn: these are the most to expect")
    console.print(
        "memory of server, workers and RabbitMQ, and its disk, are estimates; activations and data come on top"
    )
    first = found[0]
    verb = "is exceeded" if first.share > 1 else "comes first"
    console.print(f"\nlimits: {first.name} {verb} ({first.remedy})")
    for limit in found:
        if limit.share >= min(0.001, first.share):
            console.print(f"  {limit.share:8.1%}  {limit.name}: {limit.used:,.0f} of {limit.allowed:,.0f}")


def readable(num_bytes: float) -> str:
    value, units = float(num_bytes), iter(_UNITS)
    unit = next(units)
    while value >= 1000 and unit != _UNITS[-1]:
        value, unit = value / 1000, next(units)
    return f"{value:,.1f} {unit}" if unit != "B" else f"{value:,.0f} B"
