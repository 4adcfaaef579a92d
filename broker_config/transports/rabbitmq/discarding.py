"""Removes unwanted messages from the front of a queue, many with one acknowledgement."""

from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker
from pika.spec import BasicProperties

from broker_config.transports.interface import Unwanted
from broker_config.transports.rabbitmq import large_messages
from broker_config.transports.rabbitmq.connection import Connection
from broker_config.transports.rabbitmq.pika_errors import channel_error

_PREFETCHED = 16
"""Bounds memory: each may be as large as the broker's max_message_size."""
_WAIT_SECONDS = 1.0
"""For a message that was counted as ready, and that another consumer may have taken since"""


def discard_while(connection: Connection, queue: str, is_unwanted: Unwanted, most: int) -> int:
    with connection.exclusive() as pika_connection:
        channel = pika_connection.channel()
        try:
            ready = channel.queue_declare(queue, passive=True).method.message_count
            return _discard(channel, queue, is_unwanted, min(ready, most))
        except ChannelClosedByBroker as error:
            raise channel_error(connection.address, error, queue) from error
        finally:
            if channel.is_open:
                channel.close()  # unacknowledged, wanted messages return to where they were


def _discard(channel: BlockingChannel, queue: str, is_unwanted: Unwanted, most: int) -> int:
    if not most:
        return 0
    channel.basic_qos(prefetch_count=_PREFETCHED)
    discarded = acknowledged = 0  # a new channel counts its deliveries from 1, so these are delivery tags too
    for _, properties, body in channel.consume(queue, inactivity_timeout=_WAIT_SECONDS):
        if properties is None or not _is_inline(properties):
            break
        if not is_unwanted(memoryview(body), properties.user_id or ""):
            break
        discarded += 1
        if discarded == most:
            break
        if discarded - acknowledged == _PREFETCHED // 2:
            channel.basic_ack(discarded, multiple=True)
            acknowledged = discarded
    if acknowledged < discarded:
        channel.basic_ack(discarded, multiple=True)
    return discarded


def _is_inline(properties: BasicProperties) -> bool:
    return large_messages.body_queue_in(properties.headers or {}) is None
