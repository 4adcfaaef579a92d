"""The name of a run, kept in its folder. Brokers and watchers tell runs apart by it."""

import json
import os
import secrets

from broker_config.process.durable import write_atomically
from broker_config.protocol.errors import FedILError, UsageError
from broker_config.protocol.schema import check_run, check_run_argument
from server_worker.run.folder import RunDir
from server_worker.run.recipe import Recipe

_LONGEST_STEM = 73
"""Of 80 characters, seven make it unique."""


def run_id(where: RunDir, recipe: Recipe, asked: str | None) -> str:
    """Two runs of one recipe must not meet at the brokers, so each gets a name of its own, kept in its folder."""
    known = known_run(where)
    if known is not None:
        if asked not in (None, known):
            raise UsageError(f"{where.root} belongs to run {known}, not {asked}: use another --run-dir")
        return known
    run = check_run_argument(asked or new_run(recipe))
    where.root.mkdir(parents=True, exist_ok=True)
    # A standby may be started at the same time, and must not make up a name of its own.
    mine = where.identity.with_name(f"{where.identity.name}.{secrets.token_hex(4)}")
    write_atomically(mine, [json.dumps({"run": run}).encode()])
    try:
        os.link(mine, where.identity)
    except FileExistsError:
        return run_id(where, recipe, asked)
    except OSError:
        os.replace(mine, where.identity)  # a volume without hard links
    finally:
        mine.unlink(missing_ok=True)
    return run


def simulation_id(where: RunDir, recipe: Recipe) -> str:
    """What is in the folder already; else a new name, which `run_id` keeps once there is something to name."""
    return known_run(where) or new_run(recipe)


def known_run(where: RunDir) -> str | None:
    if not where.identity.exists():
        return None
    try:
        return check_run("run", json.loads(where.identity.read_text(encoding="utf-8"))["run"])
    except (ValueError, KeyError, TypeError, FedILError) as error:
        raise FedILError(f"{where.identity} is damaged ({error}): write the run's name into it") from error


def new_run(recipe: Recipe) -> str:
    return f"{recipe.name[:_LONGEST_STEM]}-{secrets.token_hex(3)}"
