"""Keeps a site from filling the store that all share."""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING

from broker_config.protocol.errors import FedILError
from server_worker.watch.notices import Notice

if TYPE_CHECKING:
    from broker_config.stores.redis.room import RedisRoom, SiteMemory

EVERY_SECONDS, SOON_SECONDS = 0.25, 0.02
"""Between two looks: usually, and after one that found something to delete: a site that fills the store without end
would else have it full, and others could write nothing, for most of the time."""
_LARGEST_SHARE = 0.2
"""Of the time"""
_NOTED_EVERY_SECONDS = 60.0


class RoomKeeper:
    """A thread with a connection of its own: the run's may be waiting for room just now."""

    def __init__(
        self,
        open_room: "Callable[[], AbstractContextManager[RedisRoom]]",
        note: Callable[[Notice], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open_room, self._note, self._clock = open_room, note, clock
        self._next_note = clock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fedil-room", daemon=True)

    def __enter__(self) -> "RoomKeeper":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join(EVERY_SECONDS)

    def _run(self) -> None:
        with self._open_room() as room:
            pause_seconds = EVERY_SECONDS
            while not self._closing.wait(pause_seconds):
                began = self._clock()
                taken: dict[str, SiteMemory] = {}
                with suppress(FedILError):  # the run reports that the store is away
                    taken = room.make()
                    self.tell(taken)
                pause_seconds = pause_after(taken, self._clock() - began)

    def tell(self, taken: "dict[str, SiteMemory]") -> None:
        if not taken or self._clock() < self._next_note:
            return
        self._next_note = self._clock() + _NOTED_EVERY_SECONDS
        site, most = next(iter(taken.items()))
        words = (
            f"Redis is nearly full: site {site} takes {most.num_bytes / 1e6:.1f} MB, of which "
            f"{most.deleted_bytes / 1e6:.1f} MB belonged to no run and were deleted; if that goes on, remove its user "
            f"from Redis (ACL DELUSER site-{site}), else raise maxmemory or retire old runs"
        )
        self._note(Notice(words, site=site))


def pause_after(taken: "dict[str, SiteMemory]", seconds: float) -> float:
    """Until the next look; `seconds`: what this one took"""
    found = any(memory.deleted_bytes for memory in taken.values())
    return max(SOON_SECONDS if found else EVERY_SECONDS, seconds * (1.0 - _LARGEST_SHARE) / _LARGEST_SHARE)
