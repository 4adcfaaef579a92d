import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import ops.inspect.diagnostics
from broker_config.protocol.wire import decode_arrays, encode_arrays
from broker_config.stores.batches import CLIENTS_AT_ONCE
from broker_config.stores.memory.store import MemoryStore
from fedil_model.methods import find_method
from fedil_model.methods.fedil.ledger import Ledger
from fedil_model.methods.interface import Display, StateView
from ops.inspect.diagnostics import LabelSetTruth
from tests.memory_store import new_store

FEDIL = find_method("fedil")
LABELS = np.array([0, 1, 2, 0, 1, 2])
CLIENTS = [np.array([0, 1, 2]), np.array([3, 4, 5])]


def ledger(labels: list[int], credible: list[bool]) -> bytes:
    held = Ledger(np.ones(len(labels), np.uint8), np.array(labels, np.int16), np.array(credible))
    return b"".join(encode_arrays("ledger", {}, held.to_arrays()))


ONE_RIGHT_OF_TWO = ledger([0, 2, -1], [True, False, False])
ALL_RIGHT = ledger([0, 1, 2], [True, True, True])


def test_a_share_is_that_of_right_labels_over_all_clients() -> None:
    store = new_store()
    truth = LabelSetTruth(store, "run", FEDIL, LABELS, CLIENTS)
    assert truth.shares({}) == {"purity_pseudo_labels": None, "purity_credible": None, "purity_taught": None}
    store.commit("run", 0, 1, ONE_RIGHT_OF_TWO)
    store.commit("run", 1, 1, ALL_RIGHT)
    assert truth.shares({0: 1, 1: 1}) == {
        "purity_pseudo_labels": 4 / 5,
        "purity_credible": 1.0,
        "purity_taught": None,
    }


@pytest.mark.parametrize("damaged", [b"nonsense", ledger([0, 1], [True, True])], ids=["bytes", "size"])
def test_a_ledger_that_makes_no_sense_is_left_out(damaged: bytes) -> None:
    store = new_store()
    store.commit("run", 0, 1, ONE_RIGHT_OF_TWO)
    store.commit("run", 1, 1, damaged)
    truth = LabelSetTruth(store, "run", FEDIL, LABELS, CLIENTS)
    assert truth.shares({}) == {"purity_pseudo_labels": 1 / 2, "purity_credible": 1.0, "purity_taught": None}


@pytest.mark.parametrize("name", ["1.ledger", "record"])
def test_a_damaged_file_costs_the_share_of_its_client_and_not_the_run(tmp_path: Path, name: str) -> None:
    store = MemoryStore(tmp_path)
    store.commit("run", 0, 1, ALL_RIGHT)
    store.commit("run", 1, 1, ONE_RIGHT_OF_TWO)
    (tmp_path / "run" / "0" / name).write_bytes(b"nonsense")
    truth = LabelSetTruth(store, "run", FEDIL, LABELS, CLIENTS)
    assert truth.shares({}) == {"purity_pseudo_labels": 1 / 2, "purity_credible": 1.0, "purity_taught": None}
    store.commit("run", 1, 2, ALL_RIGHT)
    assert truth.shares({0: 2, 1: 2}) == {
        "purity_pseudo_labels": 1.0,
        "purity_credible": 1.0,
        "purity_taught": None,
    }


def test_only_the_ledgers_of_clients_that_trained_are_decoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = list[bytes]()

    def counted(body: bytes, kind: str) -> object:
        decoded.append(body)
        return decode_arrays(body, kind)

    monkeypatch.setattr(ops.inspect.diagnostics, "decode_arrays", counted)
    store = new_store()
    for client in (0, 1):
        store.commit("run", client, 1, ONE_RIGHT_OF_TWO)
    truth = LabelSetTruth(store, "run", FEDIL, LABELS, CLIENTS)
    truth.shares({})
    store.commit("run", 1, 2, ALL_RIGHT)
    for _ in range(2):  # the second time no client has trained
        assert truth.shares({0: 1, 1: 2})["purity_pseudo_labels"] == 4 / 5
    assert decoded == [ONE_RIGHT_OF_TWO, ONE_RIGHT_OF_TWO, ALL_RIGHT]


def test_ledgers_are_read_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    store, clients = new_store(), [CLIENTS[0]] * (3 * CLIENTS_AT_ONCE + 1)
    for client in range(len(clients)):
        store.commit("run", client, 1, ONE_RIGHT_OF_TWO)
    asked, latest = list[int](), store.latest

    def counted(run: str, clients: Sequence[int]) -> dict[int, tuple[int, bytes]]:
        asked.append(len(clients))
        return latest(run, clients)

    monkeypatch.setattr(store, "latest", counted)
    truth = LabelSetTruth(store, "run", FEDIL, LABELS, clients)
    assert truth.shares({}) == {"purity_pseudo_labels": 1 / 2, "purity_credible": 1.0, "purity_taught": None}
    assert sum(asked) == len(clients)
    assert max(asked) <= CLIENTS_AT_ONCE


def test_a_round_of_many_clients_is_sampled_and_the_rest_is_read_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, clients = new_store(), [CLIENTS[0]] * 60
    truth = LabelSetTruth(store, "run", FEDIL, LABELS, clients)
    truth.shares({})
    for client in range(len(clients)):
        store.commit("run", client, 1, ONE_RIGHT_OF_TWO)
    asked, ledgers = list[set[int]](), store.ledgers

    def counted(run: str, activations: dict[int, int]) -> dict[int, bytes]:
        asked.append(set(activations))
        return ledgers(run, activations)

    monkeypatch.setattr(store, "ledgers", counted)
    for _ in range(4):
        assert truth.shares(dict.fromkeys(range(60), 1))["purity_pseudo_labels"] == 1 / 2
    assert [len(batch) for batch in asked] == [25, 25, 10]
    assert set.union(*asked) == set(range(60))


def test_a_method_without_label_sets_or_a_view_reads_no_ledger() -> None:
    def never(*_: object) -> StateView:
        raise AssertionError

    store = new_store()
    store.commit("run", 0, 1, ALL_RIGHT)
    store.latest = never  # type: ignore[assignment]
    for spec in (
        dataclasses.replace(FEDIL, view_state=None),
        dataclasses.replace(FEDIL, view_state=never, display=Display(FEDIL.display.models)),
    ):
        assert LabelSetTruth(store, "run", spec, LABELS, CLIENTS).shares({0: 1}) == {}
