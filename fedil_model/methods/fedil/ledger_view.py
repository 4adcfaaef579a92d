"""A client's ledger, for people."""

from functools import partial

import numpy as np

from fedil_model.methods.fedil.ledger import NO_LABEL, Ledger, decode_labels
from fedil_model.methods.interface import Arrays, StateView, Table


def view_ledger(arrays: Arrays) -> StateView:
    ledger = Ledger.from_arrays(arrays, arrays["streaks"].size if "streaks" in arrays else 0)
    return StateView(
        counts={
            "samples": len(ledger),
            "pseudo_labels": int(np.count_nonzero(ledger.labels_N >= 0)),
            "credible": int(np.count_nonzero(ledger.credible_N)),
        },
        tables=partial(_tables, ledger),
        label_sets={
            "pseudo_labels": ledger.labels_N,
            "taught": decode_labels(arrays.get("taught", np.zeros(len(ledger), np.uint8))),
            "credible": np.where(ledger.credible_N, ledger.labels_N, NO_LABEL),
        },
    )


def _tables(ledger: Ledger) -> tuple[Table, ...]:
    labelled_N = ledger.labels_N >= 0
    labels_C = np.bincount(ledger.labels_N[labelled_N]).tolist()
    credible_C = np.bincount(
        ledger.labels_N[ledger.credible_N & labelled_N], minlength=len(labels_C)
    ).tolist()
    streaks = np.bincount(ledger.streaks_N[~ledger.credible_N]).tolist()
    return (
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
    )
