"""Translates pika's exceptions into FedIL's errors, with cause and remedy."""

import re
import ssl

from pika.exceptions import (
    AuthenticationError,
    ChannelClosedByBroker,
    ConnectionBlockedTimeout,
    IncompatibleProtocolError,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

from broker_config.protocol.errors import BrokerRefused, BrokerUnavailable, FedILError, QueueMissing
from broker_config.transports.rabbitmq.url import BrokerAddress

_ACCESS_REFUSED, _NOT_FOUND, _PRECONDITION_FAILED, _NOT_ALLOWED = 403, 404, 406, 530
# pika keeps only the text of these causes.
_CERTIFICATE_ALERT = re.compile(r"alert ([a-z ]*certificate[a-z ]*|unknown ca)")
_CLOSED_BY_BROKER = re.compile(r"ConnectionClosedByBroker: \((\d+)\)")
_QUEUE_DOWN = re.compile(r"(is down or inaccessible|due to timeout)$")
"""RabbitMQ 3 and 4 answer so to any use of a queue whose node is down: 404, as if it were deleted. At the end: the text
also quotes the queue's name, which may be a site's choice."""
_CONNECTION_LIMIT = re.compile(r"limit \(\d+\)")


class MessageTooLarge(Exception):
    """The broker accepts no message of this size; the next attempt may use smaller chunks."""


def publish_error(
    address: BrokerAddress, error: ChannelClosedByBroker, queue: str
) -> FedILError | MessageTooLarge:
    if error.reply_code == _PRECONDITION_FAILED and "max size" in error.reply_text:
        return MessageTooLarge(error.reply_text)
    return channel_error(address, error, queue)


def channel_error(address: BrokerAddress, error: ChannelClosedByBroker, queue: str = "") -> FedILError:
    """For a channel that the broker closed."""
    # pika keeps the error with its channel; the frames of its traceback would keep whole models in memory.
    error.__traceback__ = None
    code, text, where = error.reply_code, error.reply_text, f"RabbitMQ at {address.endpoint}"
    if code == _NOT_FOUND and _QUEUE_DOWN.search(text):
        # A stream for some seconds after the broker's start, or a queue on a lost node of a cluster.
        return BrokerUnavailable(
            f"{where} cannot reach a queue ({text}): it comes back when its node does; on a cluster, fedil broker init "
            "makes queues that outlive a node"
        )
    if code == _NOT_FOUND:
        return QueueMissing(f"{where} has no such queue or exchange ({text}): declare it first")
    if code == _ACCESS_REFUSED:
        return BrokerRefused(
            f"{where} refused the user {address.user!r} ({text}): "
            "give that user the permission, or use another user"
        )
    if code == _PRECONDITION_FAILED and "timed out" in text:
        return BrokerUnavailable(
            f"{where} took back what was delivered from {queue or 'a queue'}, because its consumer_timeout passed: "
            "set consumer_timeout in rabbitmq.conf above the longest training"
        )
    return BrokerUnavailable(f"{where} closed a channel of {queue or 'ours'}: {text}")


def connection_error(address: BrokerAddress, error: Exception) -> BrokerUnavailable:
    """For a connection that was lost."""
    if isinstance(error, ConnectionBlockedTimeout):
        return BrokerUnavailable(
            f"RabbitMQ at {address.endpoint} has blocked publishing (memory or disk alarm) for longer than "
            f"{address.parameters.blocked_connection_timeout:g} s: see `rabbitmqctl status`"
        )
    return BrokerUnavailable(lost(address, error))


def lost(address: BrokerAddress, error: Exception) -> str:
    return f"the connection to RabbitMQ at {address.endpoint} was lost: {_cause_text(error)}"


def connect_error(address: BrokerAddress, error: Exception) -> FedILError:
    """For a connection that could not be opened."""
    where, cause = f"RabbitMQ at {address.endpoint}", _root_cause(error)
    # pika reports every close during the handshake as a probable refusal.
    closed = _CLOSED_BY_BROKER.search(f"{error!r} {error}")
    code = int(closed[1]) if closed else None
    if isinstance(error, AuthenticationError) or code == _ACCESS_REFUSED:
        return BrokerRefused(
            f"{where} refused the user {address.user!r}: check the name and the password in the address, "
            "and that the user exists (rabbitmqctl list_users)"
        )
    if code == _NOT_ALLOWED and not _CONNECTION_LIMIT.search(str(error)):
        return BrokerRefused(
            f"{where} does not let the user {address.user!r} into the virtual host "
            f"{address.parameters.virtual_host!r}: create it, or give the user permissions there"
        )
    if isinstance(cause, ssl.SSLCertVerificationError):
        return BrokerRefused(
            f"the certificate of {where} is not to be trusted ({cause.verify_message}): "
            "name the right authority with ?cafile="
        )
    if (alert := _CERTIFICATE_ALERT.search(str(error))) is not None:
        return BrokerRefused(
            f"{where} does not trust our certificate ({alert[1].strip()}): "
            "name one of its authority with ?certfile= and &keyfile="
        )
    if isinstance(error, ProbableAuthenticationError | ProbableAccessDeniedError) or code:
        return BrokerUnavailable(
            f"{where} ended the connection before it was open ({_cause_text(error)}): try again later"
        )
    if isinstance(error, IncompatibleProtocolError) or isinstance(cause, ssl.SSLError):
        # A broker that requires a certificate may close the connection without a reason.
        more = ", and certfile" if address.parameters.ssl_options else ""
        return BrokerUnavailable(
            f"what answers at {address.endpoint} is no RabbitMQ that we understand: check the port, "
            f"amqp:// against amqps://{more}"
        )
    return BrokerUnavailable(
        f"no RabbitMQ answers at {address.endpoint} ({_cause_text(error)}): is it running, and is the address right?"
    )


def _root_cause(error: BaseException) -> BaseException:
    """The error of the operating system, which pika wraps several times."""
    inner = getattr(error, "exception", None) or (error.args[-1] if error.args else None)
    return _root_cause(inner) if isinstance(inner, BaseException) else error


def _cause_text(error: BaseException) -> str:
    cause = _root_cause(error)
    text = getattr(cause, "strerror", None) or (cause.args[-1] if cause.args else "")
    return str(text).removeprefix("Stream connection lost: ") or type(cause).__name__
