"""A flood of bad messages: counted, sampled, and its site named."""

import threading
from types import SimpleNamespace
from typing import Any, cast

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


def flooded(notices: list[Notice]) -> tuple[MemoryTransport, Inbox]:
    """By one of two sites"""
    transport = MemoryTransport(EmbeddedBroker())
    transport.declare(NORTH, SOUTH, DEAD_LETTERS)
    for _ in range(1000):
        transport.publish(NORTH, [b"garbage"])
    context = SimpleNamespace(
        transport=transport,
        watcher=SimpleNamespace(note=notices.append),
        clock=lambda: 0.0,
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
