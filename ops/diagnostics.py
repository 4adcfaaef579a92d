"""How right the pseudo-labels are, where the truth is known. Offline only: neither server nor clients see it."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from broker_config.errors import FedILError
from broker_config.stores.interface import Store
from broker_config.wire import decode_arrays
from fedil_model.credibility import Ledger
from fedil_model.errors import LearningError

if TYPE_CHECKING:
    from server_worker.materials import Materials

_SETS = ("pseudo_labels", "credible")


class LedgerDiagnostics:
    """Decoration: a ledger that cannot be read is passed over, and is for the client whose it is to refuse."""

    def __init__(self, store: Store, run: str, labels: np.ndarray, clients: Sequence[np.ndarray]) -> None:
        self._store, self._run, self._labels, self._clients = store, run, labels, clients
        self._counted: dict[int, tuple[int, Counter[str]]] = {}
        """client → activation, and what its ledger held then"""

    def purity(self) -> Mapping[str, float | None]:
        """Share of right labels among all pseudo-labelled samples, and among the credible ones."""
        try:
            ledgers = self._store.latest(self._run)
        except FedILError:
            return dict.fromkeys(_SETS)
        total: Counter[str] = Counter()
        for client, (activation, body) in ledgers.items():
            if self._counted.get(client, (0,))[0] != activation:
                self._counted[client] = activation, self._count(client, body)
            total += self._counted[client][1]
        return {name: total[f"right {name}"] / total[name] if total[name] else None for name in _SETS}

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


def purity_where_known(
    store: Store, run: str, materials: "Materials"
) -> Callable[[], Mapping[str, float | None]]:
    """A server that has the whole dataset, as in an experiment, can tell; one with labelled data only cannot."""
    if not any(len(held) for held in materials.split.clients):
        return dict
    return LedgerDiagnostics(store, run, materials.train.labels.numpy(), materials.split.clients).purity
