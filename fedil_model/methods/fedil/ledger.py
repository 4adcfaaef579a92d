"""Incremental credibility (eq. 17-21): which of a client's samples carry which label, and how surely.

One ledger per client, one observation per activation. N samples of the client.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedil_model.errors import StateError

NO_LABEL = -1
NEVER = 256
"""A credibility that no streak reaches"""


@dataclass(frozen=True)
class Observation:
    """What the frozen, received models say of each sample at the start of an activation."""

    labels_N: np.ndarray
    """arg max of θ′'s prediction"""
    sure_N: np.ndarray
    """confident (max ≥ τ) and agreed (arg max of θ₀ is the same). Eq. 19 as printed takes ε(indicator), which
    is always 1; the indicator itself is meant."""


@dataclass(frozen=True)
class Ledger:
    streaks_N: np.ndarray
    """Activations in a row that agreed on the label; for a credible sample, that were sure of another one."""
    labels_N: np.ndarray
    """int16; NO_LABEL where the streak is broken"""
    credible_N: np.ndarray
    """Member of the pseudo-label set D^l, its label fixed."""

    @staticmethod
    def empty(num_samples: int) -> "Ledger":
        return Ledger(
            np.zeros(num_samples, np.uint8),
            np.full(num_samples, NO_LABEL, np.int16),
            np.zeros(num_samples, np.bool_),
        )

    def __len__(self) -> int:
        return len(self.streaks_N)

    def observe(self, seen: Observation, credibility: int, demote_after: int = 0) -> "Ledger":
        """The automaton: same sure label → one more; another sure label → one; otherwise zero and no label.
        At `credibility` (T) a sample is promoted and keeps its label."""
        same_N = seen.sure_N & (seen.labels_N == self.labels_N)
        streaks_N = np.where(same_N, np.minimum(self.streaks_N, 254) + 1, np.where(seen.sure_N, 1, 0))
        labels_N = np.where(seen.sure_N, seen.labels_N, NO_LABEL)
        promoted_N = ~self.credible_N & (streaks_N >= credibility)

        strikes_N = np.where(seen.sure_N & ~same_N, np.minimum(self.streaks_N, 254) + 1, 0)
        demoted_N = self.credible_N & (strikes_N >= demote_after) & (demote_after > 0)
        kept_N = self.credible_N & ~demoted_N
        streaks_N = np.where(promoted_N | demoted_N, 0, np.where(kept_N, strikes_N, streaks_N))
        return Ledger(
            streaks_N.astype(np.uint8),
            np.where(kept_N, self.labels_N, np.where(demoted_N, NO_LABEL, labels_N)).astype(np.int16),
            kept_N | promoted_N,
        )

    def to_arrays(self) -> dict[str, np.ndarray]:
        """2⅛ bytes a sample while there are fewer than 256 classes."""
        return {
            "streaks": self.streaks_N,
            "labels": encode_labels(self.labels_N),
            "credible": np.packbits(self.credible_N),
        }

    @staticmethod
    def from_arrays(arrays: Mapping[str, np.ndarray], num_samples: int) -> "Ledger":
        missing = {"streaks", "labels", "credible"} - set(arrays)
        if missing:
            raise StateError(f"a ledger lacks {', '.join(sorted(missing))}")
        streaks, labels, credible = arrays["streaks"], arrays["labels"], arrays["credible"]
        sizes = (streaks.shape, labels.shape, credible.shape)
        if sizes != ((num_samples,), (num_samples,), (-(-num_samples // 8),)):
            raise StateError(f"a ledger of {streaks.size} samples does not fit a shard of {num_samples}")
        if any(array.dtype.kind != "u" for array in (streaks, labels)) or credible.dtype != np.uint8:
            raise StateError("a ledger holds something other than small whole numbers")
        return Ledger(
            streaks.astype(np.uint8),
            decode_labels(labels),
            np.unpackbits(credible, count=num_samples).astype(np.bool_),
        )


def encode_labels(labels_N: np.ndarray) -> np.ndarray:
    """Label + 1, so that NO_LABEL is 0; one byte each while there are fewer than 255 classes."""
    small = labels_N.max(initial=NO_LABEL) < 255
    return (labels_N + 1).astype(np.uint8 if small else np.uint16)


def decode_labels(encoded_N: np.ndarray) -> np.ndarray:
    return (encoded_N.astype(np.int32) - 1).astype(np.int16)
