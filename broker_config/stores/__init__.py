"""Ledger stores by URL scheme. What each needs is imported only when it is asked for."""

from collections.abc import Callable
from urllib.parse import urlsplit

from broker_config.protocol.errors import AddressWrong
from broker_config.stores.interface import Store
from broker_config.transports.reconnecting import Patience

SiteOf = Callable[[int], str]
"""Client → the site that owns it."""


def _connect_memory(url: str, *_: object) -> Store:
    from broker_config.embedded.frames import path_of
    from broker_config.stores.memory.socket import SocketStore

    return SocketStore(path_of(url))


def _connect_redis(url: str, site_of: SiteOf | None, patience: Patience | None) -> Store:
    from broker_config.stores.redis.store import RedisStore

    store = RedisStore(url, site_of, patience)
    try:
        store.check()
    except BaseException:
        store.close()
        raise
    return store


STORES: dict[str, Callable[[str, SiteOf | None, Patience | None], Store]] = {
    "memory": _connect_memory,
    "redis": _connect_redis,
    "rediss": _connect_redis,
}


def connect_store(url: str, site_of: SiteOf | None = None, patience: Patience | None = None) -> Store:
    """One connection; each thread has its own. Only Redis asks whose a client is: without `site_of`, all belong to
    the site "default"."""
    scheme = urlsplit(url).scheme
    if scheme not in STORES:
        # Not the whole URL: there may be a password in it.
        raise AddressWrong(f"no store for {scheme!r} URLs: the scheme must be one of {', '.join(STORES)}")
    return STORES[scheme](url, site_of, patience)
