"""Message brokers by URL scheme. An implementation is imported when it is used."""

from collections.abc import Callable

from broker_config.protocol.errors import AddressWrong
from broker_config.transports.interface import Transport


def _connect_memory(url: str) -> Transport:
    from broker_config.embedded.frames import path_of
    from broker_config.transports.memory.transport import MemoryTransport

    return MemoryTransport(path_of(url))


def _connect_rabbitmq(url: str) -> Transport:
    from broker_config.transports.rabbitmq.transport import RabbitTransport

    return RabbitTransport(url)


TRANSPORTS: dict[str, Callable[[str], Transport]] = {
    "memory": _connect_memory,
    "amqp": _connect_rabbitmq,
    "amqps": _connect_rabbitmq,
}


def connect_transport(url: str) -> Transport:
    """One connection, for one thread at a time."""
    scheme = url[: max(url.find("://"), 0)].lower()
    if scheme not in TRANSPORTS:
        # Without the URL: it may contain a password.
        raise AddressWrong(
            f"no transport for {scheme!r} URLs: the scheme must be one of {', '.join(TRANSPORTS)}"
        )
    return TRANSPORTS[scheme](url)
