"""Shards that stay on a GPU between tasks: the ones used last, as many as there is room for."""

from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor

_SHARE_OF_MEMORY = 0.25


class DeviceCache:
    def __init__(self, device: torch.device, limit_bytes: int) -> None:
        self._device, self._limit_bytes = device, limit_bytes
        self._kept: OrderedDict[int, Tensor] = OrderedDict()

    def get(self, client: int, load: Callable[[], Tensor]) -> Tensor:
        if client in self._kept:
            self._kept.move_to_end(client)
            return self._kept[client]
        loaded = load()
        # First out, then in: the two need not fit at the same time.
        keep = loaded.nbytes <= self._limit_bytes
        while (
            keep
            and self._kept
            and sum(t.nbytes for t in self._kept.values()) + loaded.nbytes > self._limit_bytes
        ):
            self._kept.popitem(last=False)
        # To a GPU from memory that does not move, while this thread goes on.
        is_gpu = self._device.type == "cuda"
        moved = (loaded.pin_memory() if is_gpu else loaded).to(self._device, non_blocking=is_gpu)
        if keep:
            self._kept[client] = moved
        return moved

    def clear(self) -> None:
        self._kept.clear()


def cache_bytes(device: torch.device, asked_megabytes: int | None, sharing: int) -> int:
    """As asked, or a quarter of a GPU among the processes that share it. On a CPU nothing: what is memory-mapped
    need not be kept."""
    if device.type != "cuda":
        return 0
    if asked_megabytes is not None:
        return asked_megabytes * 10**6
    return int(torch.cuda.get_device_properties(device).total_memory * _SHARE_OF_MEMORY / sharing)
