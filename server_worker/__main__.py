"""`python -m server_worker --recipe FILE --broker URL --store URL`: the server of one run."""

import argparse
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

from broker_config.addresses import fill_from_environment
from broker_config.errors import FedILError
from fedil_model.errors import LearningError
from server_worker.options import add_arguments

_log = logging.getLogger("fedil.server")


def main() -> int:
    parser = argparse.ArgumentParser(prog="server_worker", description="Lead one federated run.")
    parser.add_argument("--recipe", required=True, type=Path, metavar="FILE", help="a .toml file")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    add_arguments(parser)
    options = parser.parse_args()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    try:
        return _serve(options)
    except (FedILError, LearningError, OSError) as error:
        print(f"server_worker: {error}", file=sys.stderr)
        return 1


def _serve(options: argparse.Namespace) -> int:
    fill_from_environment(options, os.environ)
    stop = stop_on_signals()
    from server_worker.recipe import load_recipe

    recipe = load_recipe(options.recipe, options.overrides)
    run_dir: Path = options.run_dir or Path("runs") / recipe.name
    # Here, not above: they load torch, and wrong arguments are answered before.
    from server_worker.deployment import Deployment, run_id, serve
    from server_worker.log import LogWatcher
    from server_worker.run_dir import RunDir

    deployment = Deployment(
        recipe, run_dir, options.broker, options.store, options.run_id, options.device, options.standby
    )
    run = run_id(RunDir(run_dir), recipe, options.run_id)
    outcome = serve(deployment, LogWatcher(run), stop)
    _log.info(
        "run %s: %d of %d rounds, θ′ %s, ledgers %s",
        *(run, outcome.rounds_done, recipe.rounds, outcome.model_digest, outcome.ledger_digest),
    )
    if outcome.stopped:
        _log.info("run %s stopped as asked; the same command goes on with it", run)
    return 0


def stop_on_signals() -> threading.Event:
    """SIGTERM and Ctrl-C stop once what is under way is safe; a second one stops at once."""
    stop = threading.Event()

    def on_signal(number: int, _: FrameType | None) -> None:
        if stop.is_set():
            os._exit(128 + number)  # checkpoints are whole at any instant
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    return stop


if __name__ == "__main__":
    sys.exit(main())
