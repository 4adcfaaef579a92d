"""One batch of Algorithm 2 with its views made, which may be trained in parts that fit into less memory.

B unlabelled samples, S of them with a strong view, L credible ones.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class ViewedBatch:
    weak_B: Tensor
    """Empty where no loss needs it"""
    labels_B: Tensor
    """Pseudo-labels, where they are known beforehand"""
    sure_B: Tensor
    """Which samples have a strong view"""
    strong_S: Tensor
    trusted_L: Tensor
    labels_L: Tensor

    def parts(self, size: int | None) -> "Iterator[tuple[ViewedBatch, float, float]]":
        """Parts of at most `size` samples of each kind, and what part of the B and of the L samples each is: losses are
        means, so weighted by this they add up. The gradients add up to the batch's, but for rounding, and but for what
        looks at its neighbours: batch norm sees the part's statistics."""
        num_unlabelled, num_trusted = len(self.labels_B), len(self.trusted_L)
        largest = max(num_unlabelled, num_trusted)
        if size is None or largest <= size:
            yield self, 1.0, 1.0
            return
        count = -(-largest // size)
        sure = self.sure_B.tensor_split(count)
        strong = self.strong_S.split([int(part.sum()) for part in sure])  # type: ignore[no-untyped-call]
        columns = (
            self.weak_B.tensor_split(count),
            self.labels_B.tensor_split(count),
            sure,
            strong,
            self.trusted_L.tensor_split(count),
            self.labels_L.tensor_split(count),
        )
        for fields in zip(*columns, strict=True):
            part = ViewedBatch(*fields)
            share_B = len(part.labels_B) / max(num_unlabelled, 1)
            yield part, share_B, len(part.trusted_L) / max(num_trusted, 1)
