import pytest

import client_worker.ledgers
from broker_config.protocol.errors import BrokerRefused, BrokerUnavailable, LedgerFenced
from broker_config.stores.memory.store import MemoryStore
from broker_config.transports.reconnecting import GivenUp, Patience
from client_worker.ledgers import PatientLedgers


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_worker.ledgers, "_FIRST_PAUSE_SECONDS", 0.001)


class Doors:
    """Connections to a store, of which the first ones are broken."""

    def __init__(self, broken: int) -> None:
        self.store, self._broken, self.opened = MemoryStore(), broken, 0

    def __call__(self) -> MemoryStore:
        self.opened += 1
        if self.opened <= self._broken:
            raise BrokerUnavailable("the store is away")
        return self.store


def test_it_waits_for_a_store_that_is_away(caplog: pytest.LogCaptureFixture) -> None:
    doors = Doors(broken=3)
    ledgers = PatientLedgers(doors, Patience())
    assert ledgers.commit("run", 0, 1, b"first")
    assert ledgers.read("run", 0, 2) == b"first"
    assert not ledgers.commit("run", 0, 1, b"again")
    assert doors.opened == 4
    assert caplog.text.count("the store is away; trying again") == 1


def test_a_connection_that_broke_is_replaced() -> None:
    doors = Doors(broken=0)
    ledgers = PatientLedgers(doors, Patience())
    ledgers.commit("run", 0, 1, b"first")
    broken = MemoryStore()

    def away(*_: object, **__: object) -> bytes:
        raise BrokerUnavailable("lost")

    broken.read = away  # type: ignore[method-assign]
    ledgers._store = broken
    assert ledgers.read("run", 0, 2) == b"first"
    assert doors.opened == 2


@pytest.mark.parametrize(
    "patience", [Patience(stop=lambda: True), Patience(seconds=0.0)], ids=["stop", "end"]
)
def test_nobody_waits_who_is_asked_to_stop_or_whose_patience_is_at_an_end(patience: Patience) -> None:
    with pytest.raises(GivenUp, match="the store is away"):
        PatientLedgers(Doors(broken=10**9), patience)


def test_wrong_credentials_are_told_at_once() -> None:
    def refuse() -> MemoryStore:
        raise BrokerRefused("wrong password")

    with pytest.raises(BrokerRefused):
        PatientLedgers(refuse, Patience())


def test_what_a_store_refuses_is_not_asked_again() -> None:
    doors = Doors(broken=0)
    doors.store.open_activation("run", 0, 5)
    with pytest.raises(LedgerFenced):
        PatientLedgers(doors, Patience()).commit("run", 0, 1, b"late")
    assert doors.opened == 1
