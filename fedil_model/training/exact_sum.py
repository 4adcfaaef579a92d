"""A sum of float32 vectors with the same bits in whatever order they come.

Float addition is not associative, integer addition is: each entry is rounded to a multiple of GRID and summed
as a 64-bit integer.
"""

import struct
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from fedil_model.errors import NumericError

GRID = 2.0**-40
MAX_ENTRY = 2.0**10
"""Largest entry that may be added; from twice this on, _MAGIC does not round."""
ROOM = 2.0**62 * GRID
# Scratch of this size stays in the cache; smaller blocks lose more to the cost of each call.
BLOCK = 1 << 18
# Adding this to a small float64 leaves the nearest number of GRIDs in its low bits.
_MAGIC = 1.5 * 2**52 * GRID
_MAGIC_BITS: int = struct.unpack("<q", struct.pack("<d", _MAGIC))[0]


class ExactSum:
    def __init__(self, size: int, device: torch.device) -> None:
        self._totals = torch.split(torch.zeros(size, dtype=torch.int64, device=device), BLOCK)
        scratch = torch.empty(min(size, BLOCK), dtype=torch.float64, device=device)
        values = [scratch[: len(total)] for total in self._totals]
        self._blocks = [
            (_native(value), _native(value.view(torch.int64)), _native(total))
            for value, total in zip(values, self._totals, strict=True)
        ]
        self._num_added = 0
        self._bound = 0.0

    def add(
        self,
        x: Tensor,
        largest: float,
        scale: float = 1.0,
        along: Callable[[int, int], Tensor] | None = None,
        by: float = 0.0,
    ) -> None:
        """Adds scale·x + by·along, no entry of which may exceed `largest`. `along` gives entries from one place to
        another."""
        self._make_room(largest)
        for number, (part, (value, bits, total)) in enumerate(
            zip(torch.split(x, BLOCK), self._blocks, strict=True)
        ):
            value[...] = _native(part)
            if scale != 1.0:
                value *= scale
            if along is not None:
                start = number * BLOCK
                value += _native(along(start, start + len(part)).double() * by)
            value += _MAGIC
            total += bits
        self._num_added += 1

    def _make_room(self, largest: float) -> None:
        """Keeps the totals inside 64 bits; the bound is a cheap guess, renewed when it runs out."""
        if self._bound + largest > ROOM:
            self._bound = max(largest_entry(part) for part in self._sums())
        if not largest <= MAX_ENTRY or self._bound + largest > ROOM:
            raise NumericError(f"{largest:.3g} on top of {self._bound:.3g} cannot be summed exactly")
        self._bound += largest

    def _sums(self) -> Iterator[Tensor]:
        """As float64, block by block. A total carries _MAGIC_BITS once per addition; wrapping around 64 bits
        does no harm, since taking them out wraps back."""
        magic = self._num_added * _MAGIC_BITS % 2**64
        magic -= 2**64 if magic >= 2**63 else 0
        return ((total - magic).double().mul_(GRID) for total in self._totals)

    def mean(self, weight: float) -> Tensor:
        mean = self._totals[0].new_empty(sum(map(len, self._totals)), dtype=torch.float32)
        for place, part in zip(torch.split(mean, BLOCK), self._sums(), strict=True):
            place.copy_(part.div_(weight))
        return mean


def _native(x: Tensor) -> Any:
    """numpy's view where there is one: torch multiplies by alpha in every addition, which integers feel."""
    return x.numpy() if x.device.type == "cpu" else x


def blocks(*vectors: Tensor) -> "zip[tuple[Tensor, ...]]":
    """Side by side: differences of whole models would take memory."""
    return zip(*(torch.split(vector, BLOCK) for vector in vectors), strict=True)


def largest_entry(x: Tensor) -> float:
    return float(x.abs().max()) if x.numel() else 0.0
