"""A recipe whose rounds take a fraction of a second."""

from pathlib import Path

_RECIPE = """
name = "small"
rounds = {rounds}
baseline_epochs = 0
evaluate_every = 20
[data]
name = "digits"
[split]
labelled = 50
clients = 12
[network]
name = "mlp"
width = {width}
[client]
epochs = 1
batch_size = 50
[server]
epochs = 1
pretrain_epochs = 5
batch_size = 50
[federation]
clients_per_round = 3
deadline_seconds = 600.0
"""


def write_small_recipe(folder: Path, rounds: int, width: int, sites: dict[str, range] | None = None) -> Path:
    path = folder / "recipe.toml"
    lines = [f"{site} = {len(clients)}\n" for site, clients in (sites or {}).items()]
    more = "".join(["[federation.sites]\n", *lines]) if lines else ""
    path.write_text(_RECIPE.format(rounds=rounds, width=width) + more, encoding="utf-8")
    return path
