"""Write the unlabelled samples of one site's clients, as its workers read them.

Without --images they are dealt out of the recipe's dataset, the same on every machine. With --images they are the
site's own pictures, of any size and mode, and the dataset's files are not needed (split.partition = "elsewhere"): a
folder for each client, named by its number, or a flat folder whose pictures are dealt out to the clients one by one, in
the order of their names. Data of other kinds is written with client_worker.shards.write_shards."""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fedil_model.errors import SettingError
from ops.cli.recipe_files import RECIPE_HELP, read_recipe
from ops.inspect.picture_files import pictures_of_clients
from server_worker.options import add_override_argument

if TYPE_CHECKING:
    from server_worker.run.recipe import Recipe

_TELL_SECONDS = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    images = "the site's own pictures: a folder for each client, named by its number, or all side by side"
    add = parser.add_argument
    add("recipe", metavar="RECIPE", help=RECIPE_HELP)
    add("--site", required=True, metavar="S", help="one of federation.sites in the recipe")
    add("--out", required=True, type=Path, metavar="DIR", help="where to write them; must hold none yet")
    add("--images", type=Path, metavar="FOLDER", help=images)
    add_override_argument(parser)
    add("--json", action="store_true", help="what was written, as one JSON object")


def run(args: argparse.Namespace) -> int:
    recipe = read_recipe(args.recipe, args.overrides)
    if args.images is None:
        clients, samples = write_site_shards(recipe, args.site, args.out)
    else:
        clients, samples = write_picture_shards(recipe, args.site, args.out, args.images)
    if args.json:
        print(json.dumps({"shards": str(args.out), "samples": samples, "clients": list(clients)}))
    else:
        print(f"{args.out}: {samples} samples of {len(clients)} clients ({clients[0]} to {clients[-1]})")
    return 0


def write_site_shards(recipe: "Recipe", site: str, out: Path) -> tuple[range, int]:
    """Which clients they are, and how many samples they have."""
    clients = clients_of(recipe, site)
    if recipe.split.partition == "elsewhere":
        raise SettingError(
            f'split.partition = "elsewhere": the data of site {site} are its own. Write them with '
            "fedil shards --images FOLDER, or as client_worker/shards.py says"
        )
    import torch

    from client_worker.shards import check_unwritten, write_shards
    from fedil_model.data.datasets import open_dataset
    from fedil_model.data.split import make_split, refuse_missing_classes
    from server_worker.run.inputs import owners_in

    check_unwritten(out)
    dataset = open_dataset(recipe.data)
    train = dataset.load_train()
    labels = train.labels.numpy()
    refuse_missing_classes(labels, dataset.class_names, recipe.split)
    split = make_split(labels, len(dataset.class_names), recipe.split, recipe.seed, owners_in(train))
    own = {client: torch.from_numpy(split.deal()[client]) for client in clients}
    write_shards(out, {client: train.inputs[rows] for client, rows in own.items()})
    return clients, sum(map(len, own.values()))


def write_picture_shards(recipe: "Recipe", site: str, out: Path, folder: Path) -> tuple[range, int]:
    """As `write_site_shards`, from files of the site's own; of the dataset only the shape of its samples counts."""
    clients = clients_of(recipe, site)
    if recipe.split.partition != "elsewhere":
        raise SettingError(
            f'split.partition = "{recipe.split.partition}" deals the recipe\'s own data out to the clients; '
            'with pictures of their sites it must be "elsewhere"'
        )
    files = pictures_of_clients(folder, site, clients)
    import numpy as np

    from client_worker.shards import check_unwritten, write_shards
    from fedil_model.data.datasets import open_dataset
    from fedil_model.data.datasets.pictures import picture_shape, read_pictures

    check_unwritten(out)
    shape = picture_shape(open_dataset(recipe.data))
    together = [file for held in files.values() for file in held]
    pictures = read_pictures(together, shape, tell_now_and_then(len(together)))
    shards = np.split(pictures, np.cumsum([len(held) for held in files.values()])[:-1])
    write_shards(out, dict(zip(files, shards, strict=True)))
    return clients, len(together)


def clients_of(recipe: "Recipe", site: str) -> range:
    if site not in recipe.sites:
        raise SettingError(
            f"{recipe.name} has no site {site!r}: federation.sites are {', '.join(recipe.sites)}"
        )
    return recipe.sites[site]


def tell_now_and_then(total: int, clock: Callable[[], float] = time.monotonic) -> Callable[[int], None]:
    """Shows nothing when it is done within a moment."""
    last = clock()

    def tell(done: int) -> None:
        nonlocal last
        if clock() - last >= _TELL_SECONDS:
            last = clock()
            print(f"fedil: {done} of {total} pictures read", file=sys.stderr)

    return tell
