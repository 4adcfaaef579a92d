"""A flood of bad messages: counted, sampled, and its site named."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker_config.brokers.topology import DEAD_LETTERS, updates_queue
from broker_config.protocol.messages import Refusal
from broker_config.protocol.wire import encode_message
from broker_config.transports.memory.broker import EmbeddedBroker
from broker_config.transports.memory.transport import MemoryTransport
from server_worker.round.inbox import Inbox
from server_worker.round.refusals import KEPT_PER_MINUTE, RefusalSampler
from server_worker.watch.metrics import ServerMetrics
from server_worker.watch.notices import Notice
from tests.exposition import value
from tests.federation import SITE, blobs_recipe
from tests.serving import THERE, TwoSites

NORTH, SOUTH = updates_queue("run", SITE), updates_queue("run", THERE)


def flooded(notices: list[Notice], clock: Callable[[], float] = lambda: 0.0) -> tuple[MemoryTransport, Inbox]:
    """By one of two sites"""
    transport = MemoryTransport(EmbeddedBroker())
    transport.declare(NORTH, SOUTH, DEAD_LETTERS)
    for _ in range(1000):
        transport.publish(NORTH, [b"garbage"])
    context = SimpleNamespace(
        transport=transport,
        watcher=SimpleNamespace(note=notices.append),
        clock=clock,
        stop=threading.Event(),
        sites=TwoSites(),
    )
    return transport, Inbox("run", cast(Any, context))


def test_amid_a_flood_the_answer_of_another_site_is_read_next() -> None:
    transport, inbox = flooded([])
    answer = Refusal("run", 1, 3, 1, "no", "no data")
    for _ in range(2):
        assert inbox.next(0.0) is None
    transport.publish(SOUTH, encode_message(answer))
    assert any(inbox.next(0.0) is not None for _ in range(2))
    for _ in range(2 * KEPT_PER_MINUTE):
        assert inbox.next(0.0) is None
    # The site is over its rate now: all of another's answers come first.
    for _ in range(3):
        transport.publish(SOUTH, encode_message(answer))
    assert [inbox.next(0.0) is not None for _ in range(4)] == [True, True, True, False]


def test_behind_a_flood_good_answers_of_the_same_site_are_found_and_bad_ones_are_discarded_in_bulk() -> None:
    notices, discarded = list[Notice](), list[int]()
    transport, inbox = flooded(notices)
    discard_while = transport.discard_while

    def counted(*arguments: Any) -> int:
        discarded.append(discard_while(*arguments))
        return discarded[-1]

    transport.discard_while = counted  # type: ignore[method-assign,assignment]
    answer = encode_message(Refusal("run", 1, 1, 1, "no", "no data"))
    transport.publish(NORTH, answer)
    for _ in range(100):
        transport.publish(NORTH, [b"garbage"])
    transport.publish(NORTH, answer)
    found = []
    while not inbox.is_empty:
        if (arrival := inbox.next(0.0)) is not None:
            found.append(arrival.answer.client)
    assert found == [1, 1]
    assert sum(discarded) == 1100 - KEPT_PER_MINUTE - 1
    assert len(discarded) < 10
    assert inbox.take_refused() == {"not_fedil": 1100}
    assert sum(notice.num_refused for notice in notices) == 1100


def test_a_flood_gets_a_share_of_the_time_and_the_answers_of_others_all_of_it() -> None:
    now, looks, waits = [0.0], list[float](), list[float]()
    transport, inbox = flooded([], lambda: now[0])
    discard_while, receive = transport.discard_while, transport.receive

    def slow(*arguments: Any) -> int:
        looks.append(now[0])
        now[0] += 0.01
        return discard_while(*arguments)

    def waiting(queue: Any, timeout_seconds: float) -> Any:
        delivery = receive(queue, 0.0)
        if delivery is None and timeout_seconds:
            waits.append(timeout_seconds)
            now[0] += timeout_seconds
        return delivery

    transport.discard_while, transport.receive = slow, waiting  # type: ignore[method-assign,assignment]
    for _ in range(KEPT_PER_MINUTE + 1):
        assert inbox.next(0.5) is None
    assert not looks
    while now[0] < 1.0:
        for _ in range(1000 - (transport.depth(NORTH) or 0)):
            transport.publish(NORTH, [b"garbage"])
        assert inbox.next(0.5) is None
    assert len(looks) == pytest.approx(20, abs=2)
    assert max(waits) == pytest.approx(0.04)
    for _ in range(3):
        transport.publish(SOUTH, encode_message(Refusal("run", 1, 3, 1, "no", "no data")))
    looks.clear()
    assert [inbox.next(0.5) is not None for _ in range(3)] == [True] * 3
    assert not looks


def test_only_the_first_bad_messages_of_a_minute_become_dead_letters() -> None:
    notices = list[Notice]()
    transport, inbox = flooded(notices)
    while not inbox.is_empty:
        assert inbox.next(0.0) is None
    assert transport.depth(DEAD_LETTERS) == KEPT_PER_MINUTE
    assert transport.depth(NORTH) == 0
    assert inbox.take_refused() == {"not_fedil": 1000}
    assert sum(notice.num_refused for notice in notices) == 1000
    rest = [notice for notice in notices if "not kept as dead letters" in notice.text]
    assert len(notices) - len(rest) == KEPT_PER_MINUTE
    assert sum(notice.num_refused for notice in rest) == 1000 - KEPT_PER_MINUTE
    assert len(rest) == 2


def test_of_many_late_answers_of_a_site_only_the_first_are_told_one_by_one() -> None:
    notices = list[Notice]()
    transport, inbox = flooded(notices)
    for activation in range(3 * KEPT_PER_MINUTE):
        transport.publish(SOUTH, encode_message(Refusal("run", 0, 5, activation + 1, "no", "no data")))
    dropped = 0
    while dropped < 3 * KEPT_PER_MINUTE:
        if (arrival := inbox.next(0.0)) is not None:
            inbox.drop(arrival, "late")
            dropped += 1
    assert inbox.take_refused()["late"] == 3 * KEPT_PER_MINUTE
    assert sum(notice.text == "late" for notice in notices) == KEPT_PER_MINUTE
    (*_, last) = [notice for notice in notices if "late or again" in notice.text]
    assert f"site {THERE} sends more than {KEPT_PER_MINUTE} answers" in last.text
    assert last.num_refused == 0


def test_a_site_over_its_rate_is_named_and_the_letters_of_others_are_kept() -> None:
    now, notices = [0.0], list[Notice]()
    sampler, north, south = RefusalSampler(lambda: now[0], notices.append), "north", "south"
    assert sum(sampler.keeps(north) for _ in range(3 * KEPT_PER_MINUTE)) == KEPT_PER_MINUTE
    assert sampler.keeps(south)
    assert [sampler.is_over_rate(site) for site in (north, south)] == [True, False]
    assert str(notices[0]).startswith(
        f"site north sends more than {KEPT_PER_MINUTE} bad messages a minute: 1 more"
    )
    now[0] = 61.0
    assert not sampler.is_over_rate(north)
    assert sampler.keeps(north)
    assert [notice.num_refused for notice in notices] == [1, 2 * KEPT_PER_MINUTE - 1]
    sampler.tell_rest()
    assert len(notices) == 2


def test_metrics_count_bad_messages_by_site() -> None:
    metrics = ServerMetrics("r", blobs_recipe())
    metrics.note(Notice("message refused (schema): ", num_refused=1, site="north"))
    metrics.note(Notice("7 more refused", num_refused=7, site="north"))
    assert value(metrics.render(), "fedil_site_messages_refused_total", site="north") == 8
