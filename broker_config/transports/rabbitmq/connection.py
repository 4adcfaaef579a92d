"""A connection to RabbitMQ that one thread at a time may use, and that is opened when it is needed."""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, ChannelClosedByBroker

from broker_config.protocol.errors import BrokerBlocked, BrokerRefused, BrokerUnavailable, FedILError
from broker_config.transports.rabbitmq import pika_errors, pika_private
from broker_config.transports.rabbitmq.pika_errors import MessageTooLarge
from broker_config.transports.rabbitmq.url import BrokerAddress

_log = logging.getLogger(__name__)

_SLOW_SECONDS = 10.0
_ATTEMPTS_TO_CLOSE = 3


class Connection:
    def __init__(self, addresses: Sequence[BrokerAddress], purpose: str, *, reconnects: bool) -> None:
        """A connection that consumes must not reconnect: its unacknowledged messages were lost with it. Connects to the
        first node that answers."""
        self._addresses = addresses
        self.address = addresses[0]
        """Of the node to which it is, or was last, connected"""
        self._purpose, self._reconnects = purpose, reconnects
        self._lock = threading.RLock()
        self._connection: pika.BlockingConnection | None = None
        self._closed: str | None = None
        """Why it cannot be used any more"""
        self._busy_since: float | None = None
        self._warned_at = 0.0

    @contextmanager
    def exclusive(self) -> Iterator[pika.BlockingConnection]:
        """pika's connection, for this thread alone. Errors of pika are translated into FedILErrors."""
        with self._lock:
            if self._closed is not None:
                raise BrokerUnavailable(self._closed)
            connection = self._connection or self._open()
            try:
                yield connection
            except (FedILError, MessageTooLarge):
                raise
            except ChannelClosedByBroker as error:
                raise pika_errors.channel_error(self.address, error) from error
            except (AMQPError, OSError) as error:
                self._drop(pika_errors.lost(self.address, error))
                raise pika_errors.connection_error(self.address, error) from error
            except BaseException:
                # A signal may have interrupted pika in the middle of a frame.
                self._drop(
                    f"the connection to RabbitMQ at {self.address.endpoint} was interrupted: open another"
                )
                raise

    @contextmanager
    def logged_if_slow(self) -> Iterator[None]:
        """For calls that should be quick: the heartbeat thread logs a warning while one is not."""
        self._busy_since = time.monotonic()
        try:
            yield
        finally:
            self._busy_since = None

    def service_heartbeats(self) -> None:
        """Sends and answers heartbeats, unless another thread uses the connection and so does it anyway."""
        if not self._lock.acquire(blocking=False):
            self._warn_if_slow()
            return
        try:
            if self._connection is not None:
                # Not a subclass's `exclusive`: this thread must not wait for another connection.
                with suppress(FedILError), Connection.exclusive(self) as connection:
                    connection.process_data_events(0)
        finally:
            self._lock.release()

    def is_alive(self) -> bool:
        """A lost connection is detected only by reading from it."""
        with suppress(FedILError), self.exclusive() as connection:
            connection.process_data_events(0)
            return True
        return False

    def close(self) -> None:
        with self._lock:
            self._closed = "this connection to RabbitMQ is closed: open another"
            self._close_pika()

    @property
    def broker_version(self) -> tuple[int, ...]:
        """A high one if the broker does not send it."""
        with self.exclusive() as connection:
            text = str(pika_private.server_properties(connection).get("version", ""))
        numbers = text.split("-", maxsplit=1)[0].split(".")
        return tuple(int(number) for number in numbers if number.isdecimal()) or (99,)

    def closed_channel_error(self, channel: BlockingChannel, queue: str) -> FedILError:
        """For a channel that is found closed."""
        reason = pika_private.closing_reason(channel)
        if isinstance(reason, ChannelClosedByBroker):
            return pika_errors.channel_error(self.address, reason, queue)
        return BrokerUnavailable(f"the channel of {queue} at RabbitMQ {self.address.endpoint} is closed")

    def cancelled_error(self, queue: str) -> FedILError:
        """For a consumer that the broker cancelled."""
        # The queue was deleted, or moves to another node of a cluster: the next call finds out.
        return BrokerUnavailable(
            f"RabbitMQ at {self.address.endpoint} delivers nothing more from {queue!r}: ask again"
        )

    def _open(self) -> pika.BlockingConnection:
        _silence_pika()
        pika_private.read_large_pieces()
        pika_private.accept_unreadable_headers()
        errors: list[FedILError] = []
        for address in self._addresses:
            parameters = copy(address.parameters)
            parameters.client_properties = {"connection_name": f"fedil {self._purpose}"}
            try:
                self._connection = pika.BlockingConnection(parameters)
            except (AMQPError, OSError) as error:
                errors.append(pika_errors.connect_error(address, error))
            else:
                pika_private.decode_in_place(self._connection)
                self.address = address
                return self._connection
        raise next((error for error in errors if isinstance(error, BrokerRefused)), errors[0])

    def _drop(self, cause: str) -> None:
        self._close_pika()
        if not self._reconnects:
            self._closed = cause

    def _close_pika(self) -> None:
        connection, self._connection = self._connection, None
        # pika raises if the broker closes a channel while pika closes the others; the next attempt succeeds.
        for _ in range(_ATTEMPTS_TO_CLOSE):
            if connection is not None and connection.is_open:
                with suppress(Exception):  # the connection may be in any state
                    connection.close()

    def _warn_if_slow(self) -> None:
        since, now = self._busy_since, time.monotonic()
        if since is not None and now - max(since, self._warned_at) > _SLOW_SECONDS:
            self._warned_at = now
            _log.warning(
                "RabbitMQ at %s has not taken a message for %.0f s: it may be overloaded, or block publishers "
                "because of a memory or disk alarm (rabbitmqctl status)",
                self.address.endpoint,
                now - since,
            )


class PublishingConnection(Connection):
    """Raises BrokerBlocked instead of BrokerUnavailable while the receiving connection works: then the messages that
    this one holds unacknowledged need not return to their queues."""

    def __init__(self, addresses: Sequence[BrokerAddress], receiving: Connection) -> None:
        super().__init__(addresses, "publishing", reconnects=True)
        self._receiving = receiving

    @contextmanager
    def exclusive(self) -> Iterator[pika.BlockingConnection]:
        try:
            with super().exclusive() as connection:
                yield connection
        except BrokerBlocked:
            raise
        except BrokerUnavailable as error:
            if not self._receiving.is_alive():
                raise
            raise BrokerBlocked(str(error)) from error


def is_usable(channel: BlockingChannel, connection: pika.BlockingConnection) -> bool:
    """The broker closes a channel after every error, and a lost connection loses its channels."""
    return channel.connection is connection and bool(channel.is_open)


def _silence_pika() -> None:
    """Our errors say what went wrong; pika would log tracebacks too. A level that was set before is kept."""
    logger = logging.getLogger("pika")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL)
