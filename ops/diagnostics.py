"""How right the pseudo-labels are, where the truth is known. Offline only: neither server nor clients see it."""

from collections.abc import Mapping, Sequence

import numpy as np

from broker_config.stores.interface import Store
from broker_config.wire import decode_arrays
from fedil_model.credibility import Ledger


class LedgerDiagnostics:
    def __init__(self, store: Store, run: str, labels: np.ndarray, clients: Sequence[np.ndarray]) -> None:
        self._store, self._run, self._labels, self._clients = store, run, labels, clients

    def purity(self) -> Mapping[str, float | None]:
        """Share of right labels among all pseudo-labelled samples, and among the credible ones."""
        right = {"pseudo_labels": 0, "credible": 0}
        held = dict(right)
        for client, (_, body) in self._store.latest(self._run).items():
            truth_N = self._labels[self._clients[client]]
            ledger = Ledger.from_arrays(decode_arrays(body, "ledger")[1], len(truth_N))
            for name, members_N in (("pseudo_labels", ledger.labels_N >= 0), ("credible", ledger.credible_N)):
                held[name] += int(members_N.sum())
                right[name] += int((members_N & (ledger.labels_N == truth_N)).sum())
        return {name: right[name] / held[name] if held[name] else None for name in right}
