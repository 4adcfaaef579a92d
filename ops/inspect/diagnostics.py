"""How right the pseudo-labels are, where the truth is known. Offline only: neither server nor clients see it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from broker_config.protocol.errors import FedILError, LedgerMissing
from broker_config.protocol.messages import LEDGER_KIND
from broker_config.protocol.wire import decode_arrays
from broker_config.stores.batches import CLIENTS_AT_ONCE, in_batches
from broker_config.stores.interface import Store
from fedil_model.errors import LearningError
from fedil_model.methods.fedil.ledger import Ledger

if TYPE_CHECKING:
    from server_worker.round.context import Purity
    from server_worker.run.inputs import Materials

_SETS = ("pseudo_labels", "credible")
_AT_ONCE = 80
"""In every round, so that it costs few round trips"""
_Ledgers = dict[int, tuple[int, bytes]]
"""Client → activation, and its ledger"""


class LedgerDiagnostics:
    """Decoration: a ledger that cannot be read is passed over, and is for the client whose it is to refuse."""

    def __init__(self, store: Store, run: str, labels: np.ndarray, clients: Sequence[np.ndarray]) -> None:
        self._store, self._run, self._labels, self._clients = store, run, labels, clients
        self._began = False
        self._counted: dict[int, tuple[int, np.ndarray]] = {}
        """Client → activation, and what its ledger held then"""
        self._total = np.zeros(2 * len(_SETS), np.int64)

    def purity(self, answered: Mapping[int, int]) -> Mapping[str, float | None]:
        """Share of right labels among all pseudo-labelled samples, and among the credible ones. Only the ledgers of
        those who have `answered` (client → activation) since are read again; the first time, all of them."""
        clients = self._since(answered) if self._began else range(len(self._clients))
        ask = partial(self._of_answers, answered) if self._began else partial(self._store.latest, self._run)
        try:
            for batch in in_batches(clients, _AT_ONCE if self._began else CLIENTS_AT_ONCE):
                for client, (activation, body) in _readable(ask, batch).items():
                    self._hold(client, activation, self._count(client, body))
        except FedILError:
            return dict.fromkeys(_SETS)
        self._began = True
        held, right = self._total[: len(_SETS)].tolist(), self._total[len(_SETS) :].tolist()
        return {name: right[i] / held[i] if held[i] else None for i, name in enumerate(_SETS)}

    def _of_answers(self, answered: Mapping[int, int], clients: Sequence[int]) -> _Ledgers:
        """Who is at work again, or died in it, may have a later one."""
        kept = self._store.ledgers(self._run, {client: answered[client] for client in clients})
        return {client: (answered[client], ledger) for client, ledger in kept.items()}

    def _since(self, answered: Mapping[int, int]) -> list[int]:
        """Without those who were asked and have not trained"""
        never = (0, None)
        return [client for client, last in answered.items() if self._counted.get(client, never)[0] < last]

    def _hold(self, client: int, activation: int, counts: np.ndarray) -> None:
        if client in self._counted:
            self._total -= self._counted[client][1]
        self._total += counts
        self._counted[client] = (activation, counts)

    def _count(self, client: int, body: bytes) -> np.ndarray:
        """How many are in each of the sets, and how many right ones"""
        truth_N = self._labels[self._clients[client]]
        try:
            ledger = Ledger.from_arrays(decode_arrays(body, LEDGER_KIND)[1], len(truth_N))
        except (FedILError, LearningError):
            return np.zeros_like(self._total)
        right_N = ledger.labels_N == truth_N
        sets = (ledger.labels_N >= 0, ledger.credible_N)
        return np.array([np.count_nonzero(of) for of in (*sets, *(held_N & right_N for held_N in sets))])


def _readable(ask: Callable[[Sequence[int]], _Ledgers], clients: Sequence[int]) -> _Ledgers:
    try:
        return ask(clients)
    except LedgerMissing:
        found: _Ledgers = {}
        # One by one: who has spoilt a ledger hides no other.
        for client in clients:
            with suppress(LedgerMissing):
                found |= ask([client])
        return found


def purity_where_known(store: Store, run: str, materials: "Materials") -> "Purity":
    """A server that has the whole dataset, as in an experiment, can tell; one with labelled data only cannot."""
    if not any(len(held) for held in materials.split.clients):
        return lambda _: {}
    return LedgerDiagnostics(store, run, materials.train.labels.numpy(), materials.split.clients).purity
