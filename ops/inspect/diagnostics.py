"""How right the labels are that clients give their samples, where the truth is known. Offline only: neither server nor
clients see it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import numpy as np

from broker_config.protocol.errors import FedILError, LedgerMissing
from broker_config.protocol.messages import LEDGER_KIND
from broker_config.protocol.wire import decode_arrays
from broker_config.stores.batches import CLIENTS_AT_ONCE, in_batches
from broker_config.stores.interface import Store
from fedil_model.errors import LearningError, StateError
from fedil_model.methods.interface import MethodSpec, StateView
from server_worker.round.context import LabelTruth
from server_worker.run.inputs import RunInputs

_A_ROUND = 25
"""Ledgers that are read in a round: a sample of its clients, where there are more"""
_Ledgers = dict[int, tuple[int, bytes]]
"""Client → activation, and its ledger"""


class LabelSetTruth:
    """Share of right labels in each label set that a series declares. A ledger that cannot be read is left out: its
    client will refuse it."""

    def __init__(
        self, store: Store, run: str, spec: MethodSpec, labels: np.ndarray, clients: Sequence[np.ndarray]
    ) -> None:
        self._store, self._run, self._labels, self._clients = store, run, labels, clients
        self._view_state = spec.view_state or (lambda _: StateView({}))
        sets = {one.name: one.of for one in spec.display.series() if one.source == "label_set"}
        self._sets = sets if spec.view_state else {}
        """Series → label set"""
        self._began = False
        self._counted: dict[int, tuple[int, np.ndarray]] = {}
        """Client → activation, and what its ledger held then"""

    def shares(self, answered: Mapping[int, int]) -> Mapping[str, float | None]:
        """By the name of the series; None where a set is empty or the store cannot be read. Reads the ledgers of
        clients that have `answered` (client → activation) since the last call; the first time, all of them."""
        if not self._sets:
            return {}
        clients = self._since(answered) if self._began else range(len(self._clients))
        ask = partial(self._of_answers, answered) if self._began else partial(self._store.latest, self._run)
        try:
            for batch in in_batches(clients, _A_ROUND if self._began else CLIENTS_AT_ONCE):
                for client, (activation, body) in _readable(ask, batch).items():
                    self._counted[client] = (activation, self._count(client, body))
        except FedILError:
            return dict.fromkeys(self._sets)
        self._began = True
        # A float holds whole numbers of samples exactly.
        total = sum((counts for _, counts in self._counted.values()), np.zeros((len(self._sets), 2)))
        return {
            name: right / held if held else None
            for name, (held, right) in zip(self._sets, total.tolist(), strict=True)
        }

    def _of_answers(self, answered: Mapping[int, int], clients: Sequence[int]) -> _Ledgers:
        """Of these activations: a client that trains again, or died in it, may have a later ledger."""
        kept = self._store.ledgers(self._run, {client: answered[client] for client in clients})
        return {client: (answered[client], ledger) for client, ledger in kept.items()}

    def _since(self, answered: Mapping[int, int]) -> list[int]:
        """Without clients that were asked and have not trained. Those that were not read for longest come first."""
        known = {client: self._counted[client][0] if client in self._counted else 0 for client in answered}
        fresh = [client for client, last in answered.items() if known[client] < last]
        return sorted(fresh, key=lambda client: known[client] - answered[client])[:_A_ROUND]

    def _count(self, client: int, body: bytes) -> np.ndarray:
        """For each set: samples in it, and those with the right label"""
        truth_N = self._labels[self._clients[client]]
        try:
            sets = self._view_state(decode_arrays(body, LEDGER_KIND)[1]).label_sets
            return np.array([_held_and_right(sets[name], truth_N) for name in self._sets.values()])
        except (FedILError, LearningError, KeyError):
            return np.zeros((len(self._sets), 2))


def _held_and_right(labels_N: np.ndarray, truth_N: np.ndarray) -> tuple[int, int]:
    if labels_N.shape != truth_N.shape:
        raise StateError(f"a ledger of {labels_N.size} samples does not fit a shard of {truth_N.size}")
    held_N = labels_N >= 0
    # For a few samples, several times as fast as sum()
    return int(np.count_nonzero(held_N)), int(np.count_nonzero(held_N & (labels_N == truth_N)))


def _readable(ask: Callable[[Sequence[int]], _Ledgers], clients: Sequence[int]) -> _Ledgers:
    try:
        return ask(clients)
    except LedgerMissing:
        found: _Ledgers = {}
        # One by one: a damaged ledger hides no other.
        for client in clients:
            with suppress(LedgerMissing):
                found |= ask([client])
        return found


def shares_where_known(store: Store, run: str, spec: MethodSpec, inputs: RunInputs) -> LabelTruth:
    """For a server that has the whole dataset, as in an experiment; one with labelled data only does not know."""
    if not any(len(held) for held in inputs.split.clients):
        return lambda _: {}
    return LabelSetTruth(store, run, spec, inputs.train.labels.numpy(), inputs.split.clients).shares
