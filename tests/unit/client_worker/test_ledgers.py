import pytest

from broker_config.process import retry
from broker_config.process.retry import RetryPolicy
from broker_config.protocol.errors import BrokerRefused, BrokerUnavailable, LedgerFenced
from broker_config.stores.memory.store import MemoryStore
from client_worker.ledgers import ReconnectingLedgers
from tests.memory_store import new_store


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "FIRST_DELAY_SECONDS", 0.001)


class Connect:
    """Connects to a store; the first attempts fail."""

    def __init__(self, failures: int) -> None:
        self.store, self._failures, self.attempts = new_store(), failures, 0

    def __call__(self) -> MemoryStore:
        self.attempts += 1
        if self.attempts <= self._failures:
            raise BrokerUnavailable("the store is away")
        return self.store


def test_calls_wait_for_an_unavailable_store(caplog: pytest.LogCaptureFixture) -> None:
    connect = Connect(failures=3)
    ledgers = ReconnectingLedgers(connect, RetryPolicy())
    assert ledgers.commit("run", 0, 1, b"first")
    assert ledgers.read("run", 0, 2) == b"first"
    assert not ledgers.commit("run", 0, 1, b"again")
    assert connect.attempts == 4
    assert caplog.text.count("the store is away; trying again") == 1


def test_a_broken_connection_is_replaced() -> None:
    connect = Connect(failures=0)
    ledgers = ReconnectingLedgers(connect, RetryPolicy())
    ledgers.commit("run", 0, 1, b"first")
    broken = new_store()

    def away(*_: object, **__: object) -> bytes:
        raise BrokerUnavailable("lost")

    broken.read = away  # type: ignore[method-assign]
    ledgers._store = broken
    assert ledgers.read("run", 0, 2) == b"first"
    assert connect.attempts == 2


def test_wrong_credentials_are_not_retried() -> None:
    def refuse() -> MemoryStore:
        raise BrokerRefused("wrong password")

    with pytest.raises(BrokerRefused):
        ReconnectingLedgers(refuse, RetryPolicy())


def test_a_fenced_commit_is_not_retried() -> None:
    connect = Connect(failures=0)
    connect.store.open_activation("run", 0, 5)
    with pytest.raises(LedgerFenced):
        ReconnectingLedgers(connect, RetryPolicy()).commit("run", 0, 1, b"late")
    assert connect.attempts == 1
