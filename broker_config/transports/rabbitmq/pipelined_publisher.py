"""Publishes a series of messages with publisher confirms, without waiting for each confirm before the next message.

pika's blocking channel waits for every confirm, and the connection is idle meanwhile. Without `start_confirms` this
works in the same way, only more slowly.
"""

from collections.abc import Callable

from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import NackError, UnroutableError
from pika.frame import Method
from pika.spec import Basic, BasicProperties

from broker_config.transports.rabbitmq.pika_private import start_confirms

_MAX_UNCONFIRMED = 4
"""Enough to keep the broker busy, few enough for its memory and ours"""


class PipelinedPublisher:
    """Needs a channel of its own. After an error it cannot be used again: the state of the last messages is unknown."""

    def __init__(self, channel: BlockingChannel) -> None:
        self.channel = channel
        self._published = 0
        self._unconfirmed: set[int] = set()
        self._unroutable = self._refused = False
        self._process_until = start_confirms(channel, self._on_confirm, self._on_return)
        if self._process_until is None:
            channel.confirm_delivery()

    def publish(self, exchange: str, key: str, body: bytes, properties: BasicProperties) -> None:
        if self._process_until is not None:
            # Before publishing: the confirm may arrive before pika returns.
            self._published += 1
            self._unconfirmed.add(self._published)
        self.channel.basic_publish(exchange, key, body, properties, mandatory=True)
        self._wait(lambda: len(self._unconfirmed) < _MAX_UNCONFIRMED)

    def wait_for_confirms(self) -> None:
        self._wait(lambda: not self._unconfirmed)

    def _wait(self, is_ready: Callable[[], bool]) -> None:
        if self._process_until is None:
            return
        self._process_until(lambda: self._unroutable or self._refused or is_ready())
        if self._unroutable:
            raise UnroutableError([])
        if self._refused:
            raise NackError([])

    def _on_confirm(self, frame: Method) -> None:
        confirm: Basic.Ack | Basic.Nack = frame.method
        self._refused = self._refused or isinstance(confirm, Basic.Nack)
        if confirm.multiple:
            self._unconfirmed = {tag for tag in self._unconfirmed if tag > confirm.delivery_tag}
        else:
            self._unconfirmed.discard(confirm.delivery_tag)

    def _on_return(self, *_: object) -> None:
        self._unroutable = True
