"""The store of a simulation, whose disk is this machine's own."""

import threading
from pathlib import Path

from broker_config.protocol.errors import BrokerUnavailable
from broker_config.stores.memory.store import MemoryStore


class StoreOnDisk(MemoryStore):
    """Workers wait for a store that is away. One that cannot write because the disk is full will not come back while
    the run would go on silently: `failure` is set, and the run is asked to stop."""

    def __init__(self, directory: Path, stop: threading.Event) -> None:
        super().__init__(directory)
        self._stop = stop
        self.failure: BrokerUnavailable | None = None

    def commit(self, run: str, client: int, activation: int, ledger: bytes) -> bool:
        try:
            return super().commit(run, client, activation, ledger)
        except BrokerUnavailable as error:
            self.failure = error
            self._stop.set()
            raise
