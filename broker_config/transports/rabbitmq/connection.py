"""One connection to RabbitMQ: one thread in it at a time, kept alive, its errors translated here and nowhere else."""

import logging
import re
import ssl
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from functools import wraps
from typing import Any

import pika
import pika.data
from pika.adapters.blocking_connection import BlockingChannel
from pika.adapters.utils import io_services_utils
from pika.exceptions import (
    AMQPError,
    AuthenticationError,
    ChannelClosedByBroker,
    ConnectionBlockedTimeout,
    IncompatibleProtocolError,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

from broker_config.protocol.errors import BrokerRefused, BrokerUnavailable, FedILError, QueueMissing
from broker_config.transports.rabbitmq.url import Account

_log = logging.getLogger(__name__)

READ_BYTES = 256 << 10
"""Two frames: of what it has read, pika moves all that is left each time that it takes one out."""
READ_LIMITS = ("_MAX_RECV_BYTES", "_MAX_CONSUME_BYTES")
_BREATH_SECONDS = 2.0
_TRIES_TO_CLOSE = 3
_SLOW_SECONDS = 10.0
# pika has only words left of what the other side said about TLS.
_CERTIFICATE_ALERT = re.compile(r"alert ([a-z ]*certificate[a-z ]*|unknown ca)")
_REFUSED, _MISSING, _PRECONDITION, _NOT_ALLOWED = 403, 404, 406, 530
# pika calls every end of a connection that is being opened a probable refusal, and has only words left of the cause.
_CLOSED_BY_BROKER = re.compile(r"ConnectionClosedByBroker: \((\d+)\)")
_TOO_MANY = re.compile(r"limit \(\d+\)")


class TooLarge(Exception):
    """The broker takes no message of this size; the next try may cut smaller."""


class Line:
    """A connection for publishing can be replaced; one for consuming cannot: with it went what it held."""

    def __init__(self, account: Account, purpose: str, *, heals: bool) -> None:
        self.account = account
        self._purpose, self._heals = purpose, heals
        self._lock = threading.RLock()
        self._connection: pika.BlockingConnection | None = None
        self._ended: str | None = None
        self._busy_since: float | None = None
        self._warned_at = 0.0

    @contextmanager
    def talk(self) -> Iterator[pika.BlockingConnection]:
        """The connection, for this thread alone. What goes wrong inside comes out as a FedILError."""
        with self._lock:
            if self._ended is not None:
                raise BrokerUnavailable(self._ended)
            connection = self._connection or self._open()
            try:
                yield connection
            except (FedILError, TooLarge):
                raise
            except ChannelClosedByBroker as error:
                raise self.translated(error) from error
            except (AMQPError, OSError) as error:
                self._lose(self._why_lost(error))
                raise self._translated_loss(error) from error
            except BaseException:
                # A signal may have struck in the middle of a frame: nobody can go on from there.
                self._lose(f"the connection to RabbitMQ at {self.account.place} was given up: open another")
                raise

    @contextmanager
    def watched(self) -> Iterator[None]:
        """What should be quick: while it is not, the log says so."""
        self._busy_since = time.monotonic()
        try:
            yield
        finally:
            self._busy_since = None

    def breathe(self) -> None:
        """Answer heartbeats, unless somebody is in the connection and does it anyway."""
        if not self._lock.acquire(blocking=False):
            self._warn_if_slow()
            return
        try:
            if self._connection is not None:
                with suppress(FedILError), self.talk() as connection:
                    connection.process_data_events(0)
        finally:
            self._lock.release()

    def is_alive(self) -> bool:
        """A loss shows itself only to who reads."""
        with suppress(FedILError), self.talk() as connection:
            connection.process_data_events(0)
            return True
        return False

    def close(self) -> None:
        with self._lock:
            self._ended = "this connection to RabbitMQ is closed: open another"
            self._hang_up()

    @property
    def version(self) -> tuple[int, ...]:
        """Of the broker; of a future one if it does not say."""
        with self.talk() as connection:
            properties = getattr(getattr(connection, "_impl", None), "server_properties", None) or {}
        numbers = str(properties.get("version", "")).split("-")[0].split(".")
        return tuple(int(number) for number in numbers if number.isdecimal()) or (99,)

    def why_closed(self, channel: BlockingChannel, queue: str) -> FedILError:
        """For a channel that is found closed: pika says why only to whoever was in it."""
        reason = getattr(channel, "_closing_reason", None)
        if isinstance(reason, ChannelClosedByBroker):
            return self.translated(reason, queue)
        return BrokerUnavailable(f"the channel of {queue} at RabbitMQ {self.account.place} is closed")

    def translated(self, error: ChannelClosedByBroker, queue: str = "") -> FedILError:
        # pika keeps the error with its channel, and its traceback would keep whole models in the frames it names.
        error.__traceback__ = None
        code, text = error.reply_code, error.reply_text
        if code == _MISSING and "down or inaccessible" in text:
            # Also of streams for some seconds after the broker's start, and of what was on a cluster's lost node.
            return BrokerUnavailable(
                f"RabbitMQ at {self.account.place} cannot reach a queue ({text}): try again later"
            )
        if code == _MISSING:
            return QueueMissing(
                f"RabbitMQ at {self.account.place} has no such thing ({text}): declare it first"
            )
        if code == _REFUSED:
            return BrokerRefused(
                f"RabbitMQ at {self.account.place} refused the user {self.account.user!r} ({text}): "
                "give that user the permission, or use another user"
            )
        if code == _PRECONDITION and "timed out" in text:
            return BrokerUnavailable(
                f"RabbitMQ at {self.account.place} took back what was delivered from {queue or 'a queue'}, because its "
                "consumer_timeout passed: set consumer_timeout in rabbitmq.conf above the longest training"
            )
        return BrokerUnavailable(
            f"RabbitMQ at {self.account.place} closed a channel of {queue or 'ours'}: {text}"
        )

    def _open(self) -> pika.BlockingConnection:
        _quieten_pika()
        _read_in_large_pieces()
        _read_any_headers()
        parameters = copy(self.account.parameters)
        parameters.client_properties = {"connection_name": f"fedil {self._purpose}"}
        try:
            self._connection = pika.BlockingConnection(parameters)
        except (AMQPError, OSError) as error:
            raise self._translated_refusal(error) from error
        return self._connection

    def _lose(self, why: str) -> None:
        self._hang_up()
        if not self._heals:
            self._ended = why

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        # pika stumbles over a channel whose end arrives while it ends the others; the next time it is gone.
        for _ in range(_TRIES_TO_CLOSE):
            if connection is not None and connection.is_open:
                with suppress(Exception):  # it may be in any state
                    connection.close()

    def _why_lost(self, error: Exception) -> str:
        return f"the connection to RabbitMQ at {self.account.place} was lost: {_plainly(error)}"

    def _translated_loss(self, error: Exception) -> FedILError:
        if isinstance(error, ConnectionBlockedTimeout):
            return BrokerUnavailable(
                f"RabbitMQ at {self.account.place} has blocked publishing (memory or disk alarm) for longer than "
                f"{self.account.parameters.blocked_connection_timeout:g} s: see `rabbitmqctl status`"
            )
        return BrokerUnavailable(self._why_lost(error))

    def _translated_refusal(self, error: Exception) -> FedILError:
        place, user = self.account.place, self.account.user
        cause = _innermost(error)
        code = _code_of_end(error)
        if isinstance(error, AuthenticationError) or code == _REFUSED:
            return BrokerRefused(
                f"RabbitMQ at {place} refused the user {user!r}: check the name and the password in the address, "
                "and that the user exists (rabbitmqctl list_users)"
            )
        if code == _NOT_ALLOWED and not _TOO_MANY.search(str(error)):
            return BrokerRefused(
                f"RabbitMQ at {place} does not let the user {user!r} into the virtual host "
                f"{self.account.parameters.virtual_host!r}: create it, or give the user permissions there"
            )
        if isinstance(cause, ssl.SSLCertVerificationError):
            return BrokerRefused(
                f"the certificate of RabbitMQ at {place} is not to be trusted ({cause.verify_message}): "
                "name the right authority with ?cafile="
            )
        alert = _CERTIFICATE_ALERT.search(str(error))
        if alert is not None:
            return BrokerRefused(
                f"RabbitMQ at {place} does not trust our certificate ({alert[1].strip()}): "
                "name one of its authority with ?certfile= and &keyfile="
            )
        if isinstance(error, ProbableAuthenticationError | ProbableAccessDeniedError) or code:
            return BrokerUnavailable(
                f"RabbitMQ at {place} ended the connection before it was open ({_plainly(error)}): try again later"
            )
        if isinstance(error, IncompatibleProtocolError) or isinstance(cause, ssl.SSLError):
            # One that wants a certificate may hang up before it says so.
            more = ", and certfile" if self.account.parameters.ssl_options else ""
            return BrokerUnavailable(
                f"what answers at {place} is no RabbitMQ that we understand: check the port, amqp:// against amqps://{more}"
            )
        return BrokerUnavailable(
            f"no RabbitMQ answers at {place} ({_plainly(error)}): is it running, and is the address right?"
        )

    def _warn_if_slow(self) -> None:
        since, now = self._busy_since, time.monotonic()
        if since is not None and now - max(since, self._warned_at) > _SLOW_SECONDS:
            self._warned_at = now
            _log.warning(
                "RabbitMQ at %s has not taken a message for %.0f s: it may be overloaded, or block publishers "
                "because of a memory or disk alarm (rabbitmqctl status)",
                self.account.place,
                now - since,
            )


class Pump:
    """A thread that keeps idle connections alive, while their owner trains for hours."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines
        self._stop = threading.Event()
        heartbeat_seconds = min(line.account.heartbeat_seconds for line in lines)
        self._interval_seconds = min(_BREATH_SECONDS, heartbeat_seconds / 4)
        threading.Thread(target=self._run, name="rabbitmq-heartbeats", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(self._interval_seconds):
            for line in self._lines:
                try:
                    line.breathe()
                except Exception:  # whatever it is, the other connections need their heartbeats
                    _log.exception("the heartbeats of RabbitMQ at %s had trouble", line.account.place)


def _code_of_end(error: Exception) -> int | None:
    """With which the broker closed a connection that was being opened, if it said anything."""
    found = _CLOSED_BY_BROKER.search(f"{error!r} {error}")
    return int(found[1]) if found else None


def _innermost(error: BaseException) -> BaseException:
    """pika wraps what the system said several times."""
    inner = getattr(error, "exception", None) or (error.args[-1] if error.args else None)
    return _innermost(inner) if isinstance(inner, BaseException) else error


def _plainly(error: BaseException) -> str:
    cause = _innermost(error)
    text = getattr(cause, "strerror", None) or (cause.args[-1] if cause.args else "")
    return str(text).removeprefix("Stream connection lost: ") or type(cause).__name__


def _quieten_pika() -> None:
    """What goes wrong is said once, by our errors; pika adds tracebacks. Whoever wants them sets its level first."""
    logger = logging.getLogger("pika")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL)


def _read_in_large_pieces() -> None:
    """pika reads 4 KiB at a time, which halves its speed. Not its public interface, so only if it is still there."""
    base = getattr(io_services_utils, "_AsyncTransportBase", None)
    for limit in READ_LIMITS:
        if isinstance(getattr(base, limit, None), int):
            setattr(base, limit, READ_BYTES)


def _read_any_headers() -> None:
    """Where pika cannot read a table (a date beyond all calendars, a thousand tables in each other) it gives up the
    connection; the message stays, and whoever comes next stumbles over it again. Such a table is taken for an empty
    one, and its message is refused like any other that says nothing. Not pika's public interface, either."""
    decode = getattr(pika.data, "decode_table", None)
    if decode is None or hasattr(decode, "__wrapped__"):
        return

    @wraps(decode)
    def decode_table(encoded: bytes, offset: int) -> tuple[dict[Any, Any], int]:
        try:
            table, end = decode(encoded, offset)
        except Exception:  # whatever it is, a table says how long it is
            (num_bytes,) = struct.unpack_from(">I", encoded, offset)
            return {}, offset + 4 + num_bytes
        return table, end

    pika.data.decode_table = decode_table
