from collections.abc import Sequence

import pytest

from broker_config.protocol.buffers import digest
from broker_config.stores.batches import CLIENTS_AT_ONCE
from server_worker.run.digests import ledger_digest
from tests.memory_store import new_store


def test_the_ledger_digest_is_over_the_newest_of_all_clients_in_order_read_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, clients = new_store(), range(5, 4 * CLIENTS_AT_ONCE, 2)
    for client in reversed(clients):
        store.open_activation("run", client - 1, 1)
        for activation in (1, 3):
            store.commit("run", client, activation, b"%d %d" % (client, activation))
    parts = [b"%d:3:%d:%d 3" % (client, len(str(client)) + 2, client) for client in clients]
    asked = list[Sequence[int] | None]()
    latest = store.latest

    def counted(run: str, clients: Sequence[int] | None = None) -> dict[int, tuple[int, bytes]]:
        asked.append(clients)
        return latest(run, clients)

    monkeypatch.setattr(store, "latest", counted)
    assert ledger_digest(store, "run") == digest(parts)
    assert all(batch is not None and len(batch) <= CLIENTS_AT_ONCE for batch in asked)


def test_the_ledger_digest_of_a_known_run_stays_what_it_was() -> None:
    store = new_store()
    for client in (12, 7, 3):
        store.commit("run", client, 2, b"ledger of %d" % client)
    assert ledger_digest(store, "run") == "db3889b1f5ccc5fefed4806615747e45"
