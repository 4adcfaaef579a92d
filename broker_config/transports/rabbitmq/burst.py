"""Many messages in a row. Each is confirmed, but the next does not wait for that: else the wire lies idle meanwhile.

pika's blocking channel waits for every confirm. The channel beneath it does not, but is not part of pika's public
interface: where it is gone, one message at a time does as well, only slower.
"""

from collections.abc import Callable

from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import NackError, UnroutableError
from pika.frame import Method
from pika.spec import Basic, BasicProperties

_WIDTH = 4
"""Messages under way: enough to keep the broker busy, few enough for its memory and ours"""
BENEATH = ("_impl", "_flush_output")


class Burst:
    """A channel for itself. After any error it is of no use: nobody knows what the broker has taken."""

    def __init__(self, channel: BlockingChannel) -> None:
        self._channel = channel
        self._sent = 0
        self._under_way: set[int] = set()
        self._returned = self._refused = False
        beneath, self._flush = (getattr(channel, name, None) for name in BENEATH)
        if beneath is None or self._flush is None:
            channel.confirm_delivery()
            self._flush = None
        else:
            beneath.add_on_return_callback(self._on_return)
            beneath.confirm_delivery(self._on_confirm)

    def is_on(self, connection: BlockingConnection) -> bool:
        return self._channel.connection is connection and bool(self._channel.is_open)

    def put(self, exchange: str, key: str, body: bytes, properties: BasicProperties) -> None:
        if self._flush is not None:
            # First: the confirm may be there before pika has returned.
            self._sent += 1
            self._under_way.add(self._sent)
        self._channel.basic_publish(exchange, key, body, properties, mandatory=True)
        if self._flush is not None:
            self._wait(lambda: len(self._under_way) < _WIDTH)

    def finish(self) -> None:
        """Returns when the broker has taken responsibility for all."""
        if self._flush is not None:
            self._wait(lambda: not self._under_way)

    def abandon(self) -> None:
        if self._channel.is_open:
            self._channel.close()

    def _wait(self, ready: Callable[[], bool]) -> None:
        assert self._flush is not None
        self._flush(lambda: self._returned or self._refused or ready())
        if self._returned:
            raise UnroutableError([])
        if self._refused:
            raise NackError([])

    def _on_confirm(self, frame: Method) -> None:
        confirm: Basic.Ack | Basic.Nack = frame.method
        tag = confirm.delivery_tag
        self._refused = self._refused or isinstance(confirm, Basic.Nack)
        if confirm.multiple:
            self._under_way = {sent for sent in self._under_way if sent > tag}
        else:
            self._under_way.discard(tag)

    def _on_return(self, *_: object) -> None:
        self._returned = True
