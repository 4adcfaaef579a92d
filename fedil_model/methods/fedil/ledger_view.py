"""A client's ledger, for people."""

import numpy as np

from fedil_model.methods.fedil.ledger import Ledger
from fedil_model.methods.interface import Arrays, StateView, Table


def view_ledger(arrays: Arrays) -> StateView:
    ledger = Ledger.from_arrays(arrays, arrays["streaks"].size if "streaks" in arrays else 0)
    sets = {"pseudo_labels": ledger.labels_N, "credible": np.where(ledger.credible_N, ledger.labels_N, -1)}
    # By bincount, which is quick: the server views every ledger of a round.
    most = int(ledger.labels_N.max(initial=0)) + 1
    labels_C, credible_C = (np.bincount(of_N[of_N >= 0], minlength=most).tolist() for of_N in sets.values())
    streaks = np.bincount(ledger.streaks_N[~ledger.credible_N]).tolist()
    return StateView(
        counts={
            "samples": len(ledger),
            "pseudo_labels": sum(labels_C),
            "credible": int(ledger.credible_N.sum()),
        },
        tables=(
            Table(
                "labels",
                ("label", "samples", "credible"),
                [(label, count, credible_C[label]) for label, count in enumerate(labels_C) if count],
            ),
            Table(
                "streaks",
                ("agreed in a row", "samples"),
                [(streak, count) for streak, count in enumerate(streaks) if count],
                note="of the samples that are not credible yet",
            ),
        ),
        label_sets=sets,
    )
