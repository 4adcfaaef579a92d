"""`python -m client_worker --broker URL --store URL --site S --shards DIR`: a site's workers on this machine."""

import argparse
import logging
import os
import signal
import sys
import threading
from types import FrameType

from broker_config.addresses import fill_from_environment
from broker_config.errors import FedILError
from client_worker.options import add_arguments, for_children
from client_worker.pool import WorkerPool
from client_worker.stopping import LAST_SECONDS, SIGNALS, Stopping
from fedil_model.errors import LearningError, SettingError


def main() -> int:
    parser = argparse.ArgumentParser(prog="client_worker", description="Train the clients of one site.")
    add_arguments(parser)
    options = parser.parse_args()
    try:
        return run(options)
    except (FedILError, LearningError) as error:
        print(f"client_worker: {error}", file=sys.stderr)
        return 1


def run(options: argparse.Namespace) -> int:
    """The exit code: 0 after stopping as asked."""
    fill_from_environment(options, os.environ)
    if not options.shards.is_dir():
        raise SettingError(
            f"there is no folder {options.shards}: make the shards first, see fedil shards --help"
        )
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    # For cuBLAS, which reads it when it is first used; see fedil_model.precision.repeatable_on.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return _run_one(options) if options.processes == 1 else _run_many(options)


def _run_one(options: argparse.Namespace) -> int:
    stopping = Stopping(options.grace)
    with stopping.on_signals():
        # Here, not above: it loads torch, and a signal meanwhile is not to be missed.
        from client_worker.worker import serve

        serve(options, stopping)
    return 0


def _run_many(options: argparse.Namespace) -> int:
    stop = threading.Event()

    def on_signal(number: int, _: FrameType | None) -> None:
        if stop.is_set():
            sys.exit(128 + number)  # on its way out the pool kills what is left
        stop.set()

    for number in SIGNALS:
        signal.signal(number, on_signal)
    arguments, environment = for_children(options)
    os.environ |= environment
    pool = WorkerPool(
        arguments,
        options.processes,
        open_log=_Labelled,
        note=logging.getLogger(__name__).warning,
        gave_up=stop.set,
        grace_seconds=options.grace + LAST_SECONDS + 1.0,
    )
    with pool:
        stop.wait()
    if pool.failure:
        raise pool.failure
    return 0


class _Labelled:
    """A worker's lines among ours, with its number."""

    def __init__(self, number: int) -> None:
        self._label = f"worker {number}: ".encode()

    def write(self, line: bytes) -> None:
        sys.stderr.buffer.write(self._label + line)
        sys.stderr.buffer.flush()

    def close(self) -> None:
        pass


if __name__ == "__main__":
    sys.exit(main())
