"""`python -m client_worker --broker URL --store URL --site S --shards DIR`: one worker process."""

import argparse
import logging
import signal
import sys
from pathlib import Path

from broker_config.errors import BrokerUnavailable, FedILError


def main() -> int:
    parser = argparse.ArgumentParser(prog="client_worker", description="Train the clients of one site.")
    parser.add_argument("--broker", required=True, help="such as memory:///tmp/fedil.sock")
    parser.add_argument("--store", required=True, help="where the ledgers are")
    parser.add_argument("--site", required=True, help="whose task queue to serve")
    parser.add_argument(
        "--shards", required=True, type=Path, help="folder with the site's unlabelled samples"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda:N")
    parser.add_argument(
        "--plugin", action="append", default=[], help="module:callable that tasks may name (repeat for more)"
    )
    options = parser.parse_args()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    try:
        _serve(options)
    except BrokerUnavailable as error:
        print(f"client_worker: {error}", file=sys.stderr)
        return 75  # EX_TEMPFAIL: try again later
    except Exception as error:
        if not _is_ours(error):
            raise
        print(f"client_worker: {error}", file=sys.stderr)
        return 1
    return 0


def _is_ours(error: Exception) -> bool:
    from fedil_model.errors import LearningError

    return isinstance(error, FedILError | LearningError)


def _serve(options: argparse.Namespace) -> None:
    # Here, not above: wrong arguments are answered before torch is loaded.
    from broker_config.stores import connect_store
    from broker_config.transports import connect_transport
    from client_worker.participant import Participant
    from client_worker.shards import ShardFolder
    from client_worker.training import Trainer
    from fedil_model.precision import choose_device, repeatable_on

    device = choose_device(options.device)
    repeatable_on(device)
    transport, ledgers = connect_transport(options.broker), connect_store(options.store)
    trainer = Trainer(transport, ledgers, ShardFolder(options.shards), device, options.plugin)
    participant = Participant(transport, trainer, options.site)
    signal.signal(signal.SIGTERM, lambda *_: participant.give_back())
    signal.signal(signal.SIGINT, lambda *_: participant.give_back())
    try:
        participant.serve()
    finally:
        transport.close()
        ledgers.close()


if __name__ == "__main__":
    sys.exit(main())
