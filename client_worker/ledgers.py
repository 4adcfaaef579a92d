"""The part of the store that training uses, with reconnection after an outage."""

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TypeVar

from broker_config.process.retry import Retrier, RetryPolicy
from broker_config.protocol.errors import BrokerUnavailable
from broker_config.stores.interface import Store

_T = TypeVar("_T")


class Ledgers(Protocol):
    """The methods of a Store that a worker calls."""

    def read(self, run: str, client: int, before_activation: int, at_least: int = 0) -> bytes | None: ...

    def commit(self, run: str, client: int, activation: int, ledger: bytes) -> bool: ...


class ReconnectingLedgers:
    """Reconnects and repeats a call until the store answers: an outage of a minute does not discard an hour of
    training. Both calls are idempotent."""

    def __init__(self, connect: Callable[[], Store], retry: RetryPolicy) -> None:
        self._connect, self._retrier = connect, Retrier("the store", retry)
        self._store: Store | None = None
        self._call(lambda _: None)  # reports wrong credentials before the first task

    def read(self, run: str, client: int, before_activation: int, at_least: int = 0) -> bytes | None:
        return self._call(lambda store: store.read(run, client, before_activation, at_least))

    def commit(self, run: str, client: int, activation: int, ledger: bytes) -> bool:
        return self._call(lambda store: store.commit(run, client, activation, ledger))

    def close(self) -> None:
        self._retrier.close()
        self._drop()

    def _call(self, method: Callable[[Store], _T]) -> _T:
        def attempt() -> _T:
            try:
                if self._store is None:
                    self._store = self._connect()
                return method(self._store)
            except BrokerUnavailable:
                self._drop()
                raise

        return self._retrier.call(attempt)

    def _drop(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            with suppress(BrokerUnavailable):
                store.close()
