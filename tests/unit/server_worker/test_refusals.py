"""A flood of bad messages: counted, sampled, and its site named."""

import threading
from types import SimpleNamespace
from typing import Any, cast

from broker_config.brokers.topology import DEAD_LETTERS, site_user, updates_queue
from broker_config.transports.memory.broker import EmbeddedBroker
from broker_config.transports.memory.transport import MemoryTransport
from server_worker.round.inbox import Inbox
from server_worker.round.refusals import KEPT_PER_MINUTE, RefusalSampler
from server_worker.round.sites import Sites
from server_worker.watch.metrics import ServerMetrics
from server_worker.watch.notices import UNKNOWN_SITE, Notice
from tests.exposition import value
from tests.federation import blobs_recipe
from tests.memory_store import new_store


def test_only_the_first_bad_messages_of_a_minute_become_dead_letters() -> None:
    transport, notices = MemoryTransport(EmbeddedBroker()), list[Notice]()
    queue = updates_queue("run")
    transport.declare(queue, DEAD_LETTERS)
    for _ in range(1000):
        transport.publish(queue, [b"garbage"])
    context = SimpleNamespace(
        transport=transport,
        watcher=SimpleNamespace(note=notices.append),
        clock=lambda: 0.0,
        stop=threading.Event(),
        sites=Sites({"north": range(1)}, new_store(), lambda: 0.0, 60.0, None, notices.append),
    )
    inbox = Inbox("run", cast(Any, context))
    while not inbox.is_empty:
        assert inbox.next(0.0) is None
    assert transport.depth(DEAD_LETTERS) == KEPT_PER_MINUTE
    assert transport.depth(queue) == 0
    assert inbox.take_refused() == {"not_fedil": 1000}
    assert sum(notice.num_refused for notice in notices) == 1000
    rest = [notice for notice in notices if "not kept as dead letters" in notice.text]
    assert len(notices) - len(rest) == KEPT_PER_MINUTE
    assert sum(notice.num_refused for notice in rest) == 1000 - KEPT_PER_MINUTE
    assert len(rest) == 2


def test_a_site_over_its_rate_is_named_and_the_letters_of_others_are_kept() -> None:
    now, notices = [0.0], list[Notice]()
    sampler = RefusalSampler(["north", "south"], lambda: now[0], notices.append)
    north, south = map(sampler.site_of, (site_user("north"), site_user("south")))
    assert [sampler.site_of(sender) for sender in (None, "", "mallory")] == [UNKNOWN_SITE] * 3
    assert sum(sampler.keeps(north) for _ in range(3 * KEPT_PER_MINUTE)) == KEPT_PER_MINUTE
    assert sampler.keeps(south)
    assert str(notices[0]).startswith(
        f"site north sends more than {KEPT_PER_MINUTE} bad messages a minute: 1 more"
    )
    now[0] = 61.0
    assert sampler.keeps(north)
    assert [notice.num_refused for notice in notices] == [1, 2 * KEPT_PER_MINUTE - 1]
    sampler.tell_rest()
    assert len(notices) == 2


def test_metrics_count_bad_messages_by_site() -> None:
    metrics = ServerMetrics("r", blobs_recipe())
    metrics.note(Notice("message refused (schema): ", num_refused=1, site="north"))
    metrics.note(Notice("7 more refused", num_refused=7, site="north"))
    assert value(metrics.render(), "fedil_site_messages_refused_total", site="north") == 8
