"""Write the unlabelled samples of one site's clients, as its workers read them: dealt out by the recipe, and the
same on every machine. A site with data of its own writes it with client_worker.shards.write_shards instead."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fedil_model.errors import SettingError
from ops.recipe_files import add_override_argument, read_recipe

if TYPE_CHECKING:
    from server_worker.recipe import Recipe

HELP = "write the unlabelled samples of one site's clients, for its workers"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "recipe", metavar="RECIPE", help="a built-in name (see: fedil recipes) or a .toml file"
    )
    parser.add_argument("--site", required=True, metavar="S", help="one of federation.sites in the recipe")
    parser.add_argument(
        "--out", required=True, type=Path, metavar="DIR", help="where to write them; must hold none yet"
    )
    add_override_argument(parser)


def run(args: argparse.Namespace) -> int:
    clients, samples = write_site_shards(read_recipe(args.recipe, args.overrides), args.site, args.out)
    print(f"{args.out}: {samples} samples of {len(clients)} clients ({clients[0]} to {clients[-1]})")
    return 0


def write_site_shards(recipe: "Recipe", site: str, out: Path) -> tuple[range, int]:
    """Which clients they are, and how many samples they have."""
    if site not in recipe.sites:
        raise SettingError(
            f"{recipe.name} has no site {site!r}: federation.sites are {', '.join(recipe.sites)}"
        )
    import torch

    from client_worker.shards import write_shards
    from fedil_model.datasets import open_dataset
    from fedil_model.split import make_split

    dataset = open_dataset(recipe.data)
    train = dataset.load_train()
    split = make_split(train.labels.numpy(), len(dataset.class_names), recipe.split, recipe.seed)
    clients = recipe.sites[site]
    own = {client: torch.from_numpy(split.deal()[client]) for client in clients}
    write_shards(out, {client: train.inputs[rows] for client, rows in own.items()})
    return clients, sum(map(len, own.values()))
