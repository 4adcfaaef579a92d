"""What every transport promises about unwanted messages, which it discards many at a time."""

import pytest

from broker_config.brokers.topology import DEFAULT_SITE, updates_queue
from broker_config.protocol.errors import QueueMissing
from broker_config.transports.interface import Transport
from tests.contract.transports import NOTHING, Connect, big_body, take


def test_unwanted_messages_are_discarded_up_to_the_first_that_is_wanted(
    connect: Connect, transport: Transport, run: str
) -> None:
    queue, publishing, seen = updates_queue(run), connect(), list[bytes]()

    def is_bad(body: memoryview, _: str | None) -> bool:
        seen.append(bytes(body))
        return bytes(body[:3]) == b"bad"

    transport.declare(queue)
    bodies = [b"bad %d" % number for number in range(40)]
    bodies[25] = b"good"
    for body in bodies:
        publishing.publish(queue, [body])
    assert transport.discard_while(queue, is_bad, 5) == 5
    assert transport.discard_while(queue, is_bad, 100) == 20
    assert transport.discard_while(queue, is_bad, 100) == 0
    assert seen == [*bodies[:26], b"good"]
    good = take(transport, queue)
    assert bytes(good.body) == b"good"
    assert transport.discard_while(queue, is_bad, 100) == 14  # beside one that is not acknowledged yet
    assert transport.discard_while(queue, is_bad, 100) == 0
    good.acknowledge()
    assert connect().receive(queue, NOTHING) is None
    transport.retire(run, [DEFAULT_SITE])
    with pytest.raises(QueueMissing):
        transport.discard_while(queue, is_bad, 1)


def test_a_large_body_is_not_discarded_unread(transport: Transport, run: str) -> None:
    queue, body = updates_queue(run), big_body(5_000_000)
    transport.declare(queue)
    transport.publish(queue, [body])
    assert transport.discard_while(queue, lambda each, _: len(each) < len(body), 10) == 0
    update = take(transport, queue)
    assert bytes(update.body) == body
    update.acknowledge()
    transport.retire(run, [DEFAULT_SITE])
