"""`python -m server_worker --recipe FILE --broker URL --store URL`: the server of one run."""

import argparse
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

from broker_config.process.addresses import fill_from_environment, read_account_file
from broker_config.process.logs import Logs, set_up_logs
from broker_config.protocol.errors import FedILError, UsageError
from fedil_model.errors import LearningError, SettingError
from server_worker.options import add_arguments, add_override_argument, overrides_of


def main() -> int:
    parser = argparse.ArgumentParser(prog="server_worker", description="Lead one federated run.")
    parser.add_argument("--recipe", required=True, type=Path, metavar="FILE", help="a .toml file")
    add_override_argument(parser)
    add_arguments(parser)
    options = parser.parse_args()
    with set_up_logs(options.log_format, options.log_level) as logs:
        try:
            return _serve(options, logs)
        except (FedILError, LearningError, OSError) as error:
            logs.end("server_worker", error)
            return exit_code(error)
        except Exception as error:
            logs.end("server_worker", error, traceback=True)
        return 1


def exit_code(error: Exception) -> int:
    """2, as for wrong arguments, where other arguments or settings would put it right."""
    return 2 if isinstance(error, SettingError | UsageError) else 1


def _serve(options: argparse.Namespace, logs: Logs) -> int:
    read_account_file(os.environ)
    fill_from_environment(options, os.environ)
    stop = stop_on_signals()
    from server_worker.run.recipe import load_recipe

    recipe = load_recipe(options.recipe, overrides_of(options))
    # Here, not above: they load torch, and wrong arguments are answered before.
    from server_worker.deployment import Deployment, serve
    from server_worker.watch.events import Watcher

    serve(Deployment.from_options(recipe, options), Watcher(), stop, logs=logs)
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
