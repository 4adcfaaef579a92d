"""A store that a site fills: room is made, and the site named."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from broker_config.protocol.errors import BrokerUnavailable
from broker_config.stores.redis.room import SiteMemory
from server_worker.watch import room
from server_worker.watch.notices import Notice
from server_worker.watch.room import EVERY_SECONDS, SOON_SECONDS, RoomKeeper, pause_after
from tests.federation import SOON
from tests.serving import Clock, until


class Room:
    """Away at first"""

    def __init__(self) -> None:
        self.calls = 0

    def make(self) -> dict[str, SiteMemory]:
        self.calls += 1
        if self.calls == 1:
            raise BrokerUnavailable("Redis is away")
        return {} if self.calls == 2 else {"north": SiteMemory(3_000_000, 2_000_000), "south": SiteMemory(7)}


def test_a_thread_makes_room_again_and_again_and_names_the_site_that_takes_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(room, "EVERY_SECONDS", 0.01)
    notices, noted, there = list[Notice](), threading.Event(), Room()

    def note(notice: Notice) -> None:
        notices.append(notice)
        noted.set()

    @contextmanager
    def opened() -> Iterator[Any]:
        yield there

    with RoomKeeper(cast(Any, opened), note):
        assert noted.wait(SOON)
        enough = there.calls + 10
        until(lambda: there.calls >= enough)
    assert [str(notice).partition(";")[0] for notice in notices] == [
        "Redis is nearly full: site north takes 3.0 MB, of which 2.0 MB belonged to no run and were deleted"
    ]


def test_a_site_is_named_once_a_minute() -> None:
    notices, clock = list[Notice](), Clock()
    keeper, taken = RoomKeeper(cast(Any, None), notices.append, clock), {"north": SiteMemory(1)}
    for now in (0.0, 1.0, 59.0, 61.0):
        clock.now = now
        keeper.tell(taken)
        keeper.tell({})
    assert len(notices) == 2


def test_after_something_was_deleted_the_next_look_is_soon_but_looks_take_a_small_share_of_the_time() -> None:
    filled, ledgers = {"north": SiteMemory(9, 5), "south": SiteMemory(7)}, {"south": SiteMemory(7)}
    assert pause_after(filled, 0.001) == SOON_SECONDS
    assert [pause_after(taken, 0.001) for taken in (ledgers, {})] == [EVERY_SECONDS] * 2
    assert [pause_after(taken, 2.0) for taken in (filled, ledgers)] == [8.0] * 2
