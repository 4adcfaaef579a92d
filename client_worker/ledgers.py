"""What training needs of a store, and how it outlives one that goes away."""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TypeVar

from broker_config.protocol.errors import BrokerUnavailable
from broker_config.stores.interface import Store
from broker_config.transports.reconnecting import LONGEST_PAUSE_SECONDS, GivenUp, Patience

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_FIRST_PAUSE_SECONDS = 0.1


class Ledgers(Protocol):
    """The part of a Store that a worker uses."""

    def read(self, run: str, client: int, before_activation: int, at_least: int = 0) -> bytes | None: ...

    def commit(self, run: str, client: int, activation: int, ledger: bytes) -> bool: ...


class PatientLedgers:
    """Asks again until the store is back: reading changes nothing, and a commit may be repeated. So what was
    learned in an hour is not thrown away for a store that is gone for a minute."""

    def __init__(self, connect: Callable[[], Store], patience: Patience) -> None:
        self._connect, self._patience = connect, patience
        self._store: Store | None = None
        self._call(lambda _: None)  # wrong credentials are told before the first task

    def read(self, run: str, client: int, before_activation: int, at_least: int = 0) -> bytes | None:
        return self._call(lambda store: store.read(run, client, before_activation, at_least))

    def commit(self, run: str, client: int, activation: int, ledger: bytes) -> bool:
        return self._call(lambda store: store.commit(run, client, activation, ledger))

    def close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            with suppress(BrokerUnavailable):
                store.close()

    def _call(self, question: Callable[[Store], _T]) -> _T:
        deadline, pause = time.monotonic() + self._patience.seconds, _FIRST_PAUSE_SECONDS
        while True:
            try:
                if self._store is None:
                    self._store = self._connect()
                answer = question(self._store)
            except BrokerUnavailable as error:
                self.close()
                if self._patience.stop() or time.monotonic() >= deadline:
                    raise GivenUp(str(error)) from error
                if pause == _FIRST_PAUSE_SECONDS:
                    _log.warning("the store: %s; trying again", error)
            else:
                if pause > _FIRST_PAUSE_SECONDS:
                    _log.info("the store is back")
                return answer
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
