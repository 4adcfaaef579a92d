"""How right the pseudo-labels are, where the truth is known. Offline only: neither server nor clients see it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from broker_config.errors import FedILError, LedgerMissing
from broker_config.stores.interface import Store
from broker_config.wire import decode_arrays
from fedil_model.credibility import Ledger
from fedil_model.errors import LearningError

if TYPE_CHECKING:
    from server_worker.materials import Materials
    from server_worker.surroundings import Purity

_SETS = ("pseudo_labels", "credible")


class LedgerDiagnostics:
    """Decoration: a ledger that cannot be read is passed over, and is for the client whose it is to refuse."""

    def __init__(self, store: Store, run: str, labels: np.ndarray, clients: Sequence[np.ndarray]) -> None:
        self._store, self._run, self._labels, self._clients = store, run, labels, clients
        self._began = False
        self._counted: dict[int, Counter[str]] = {}
        """What each client's ledger held when it was last read"""

    def purity(self, answered: Mapping[int, int]) -> Mapping[str, float | None]:
        """Share of right labels among all pseudo-labelled samples, and among the credible ones. Only the ledgers of
        those who have `answered` (client → activation) are read again; the first time, all of them."""
        try:
            self._read(answered)
        except FedILError:
            return dict.fromkeys(_SETS)
        total: Counter[str] = Counter()
        for counts in self._counted.values():
            total += counts
        return {name: total[f"right {name}"] / total[name] if total[name] else None for name in _SETS}

    def _read(self, answered: Mapping[int, int]) -> None:
        if not self._began:
            ledgers = self._store.latest(self._run)
            self._counted = {client: self._count(client, body) for client, (_, body) in ledgers.items()}
            self._began = True
            return
        for client, activation in answered.items():
            try:
                body = self._store.read(self._run, client, activation + 1)
            except LedgerMissing:
                continue
            if body is not None:
                self._counted[client] = self._count(client, body)

    def _count(self, client: int, body: bytes) -> Counter[str]:
        truth_N = self._labels[self._clients[client]]
        try:
            ledger = Ledger.from_arrays(decode_arrays(body, "ledger")[1], len(truth_N))
        except (FedILError, LearningError):
            return Counter()
        counts: Counter[str] = Counter()
        for name, members_N in zip(_SETS, (ledger.labels_N >= 0, ledger.credible_N), strict=True):
            counts[name] = int(members_N.sum())
            counts[f"right {name}"] = int((members_N & (ledger.labels_N == truth_N)).sum())
        return counts


def purity_where_known(store: Store, run: str, materials: "Materials") -> "Purity":
    """A server that has the whole dataset, as in an experiment, can tell; one with labelled data only cannot."""
    if not any(len(held) for held in materials.split.clients):
        return lambda _: {}
    return LedgerDiagnostics(store, run, materials.train.labels.numpy(), materials.split.clients).purity
