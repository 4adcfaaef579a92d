"""`python -m client_worker --broker URL --store URL --site S --shards DIR`: a site's workers on this machine."""

import argparse
import io
import logging
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

from broker_config.process.addresses import fill_from_environment, read_account_file
from broker_config.process.logs import Logs, one_line, set_up_logs
from broker_config.protocol.errors import FedILError, UsageError
from client_worker.options import add_arguments, check_limits, check_shards, for_children, web_address
from client_worker.placement import Slot
from client_worker.pool import WRONGLY_ASKED, WorkerPool
from client_worker.stopping import LAST_SECONDS, SIGNALS, Stopping
from fedil_model.errors import LearningError, SettingError

_log = logging.getLogger("client_worker")


def main() -> int:
    parser = argparse.ArgumentParser(prog="client_worker", description="Train the clients of one site.")
    add_arguments(parser)
    options = parser.parse_args()
    try:
        return run(options)
    except (FedILError, LearningError, OSError) as error:
        print(one_line(f"client_worker: {error}"), file=sys.stderr)
        return exit_code(error)


def exit_code(error: Exception) -> int:
    """2, as for wrong arguments, where other arguments or settings would put it right."""
    return WRONGLY_ASKED if isinstance(error, SettingError | UsageError) else 1


def run(options: argparse.Namespace) -> int:
    """The exit code: 0 after stopping as asked."""
    number = options.slot.number if options.slot else None
    with set_up_logs(options.log_format, options.log_level, site=options.site, worker=number) as logs:
        try:
            return _run(options, logs)
        except (FedILError, LearningError, OSError) as error:
            if options.log_format == "text":
                raise  # the caller reports it like all errors
            logs.end("client_worker", error)
            return exit_code(error)
        except Exception as error:
            logs.end("client_worker", error, traceback=True)
        return 1


def _run(options: argparse.Namespace, logs: Logs) -> int:
    read_account_file(os.environ)
    fill_from_environment(options, os.environ)
    check_shards(options.shards)
    check_limits(options.limits)
    check_ports(options)
    # For cuBLAS, which reads it when it is first used; see fedil_model.training.precision.repeatable_on.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if options.processes == 1:
        stopping = Stopping(options.grace)
        with stopping.on_signals():
            # Here, not above: it loads torch, and a signal meanwhile is not to be missed.
            from client_worker.worker import serve

            serve(options, stopping)
    else:
        _run_many(options, logs)
    _log.info("stopped as asked")
    return 0


def check_ports(options: argparse.Namespace) -> None:
    """Before anything that takes time. A pool would else start the same process again and again."""
    from broker_config.process.http import check_free

    if options.slot is not None:
        return
    for number in range(options.processes):
        address = web_address(options, Slot(number, options.processes))
        if address is not None:
            check_free(address)


def _run_many(options: argparse.Namespace, logs: Logs) -> None:
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
        open_log=lambda number: _Relayed(logs, number),
        note=_log.warning,
        gave_up=stop.set,
        grace_seconds=options.grace + LAST_SECONDS + 1.0,
    )
    with pool:
        stop.wait()
    if pool.failure:
        raise pool.failure


class _Relayed(io.RawIOBase):
    """A worker's lines among ours, with its number."""

    def __init__(self, logs: Logs, number: int) -> None:
        self._logs, self._number = logs, number

    def write(self, line: Any, /) -> None:
        self._logs.relay(line, self._number)


if __name__ == "__main__":
    sys.exit(main())
