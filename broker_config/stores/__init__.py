"""Ledger stores by URL scheme. An implementation is imported when it is used."""

from collections.abc import Callable
from urllib.parse import urlsplit

from broker_config.process.retry import RetryPolicy
from broker_config.protocol.errors import AddressWrong
from broker_config.stores.interface import Store

SiteOf = Callable[[int], str]
"""client → the site that owns it"""


def _connect_memory(url: str, _: SiteOf | None, retry: RetryPolicy | None) -> Store:
    from broker_config.embedded.frames import path_of
    from broker_config.stores.memory.socket import SocketStore

    return SocketStore(path_of(url), retry)


def _connect_redis(url: str, site_of: SiteOf | None, retry: RetryPolicy | None) -> Store:
    from broker_config.stores.redis.store import RedisStore

    store = RedisStore(url, site_of, retry)
    try:
        store.check()
    except BaseException:
        store.close()
        raise
    return store


REDIS_SCHEMES = tuple(
    f"{scheme}{kind}" for kind in ("", "+sentinel", "+cluster") for scheme in ("redis", "rediss")
)
STORES: dict[str, Callable[[str, SiteOf | None, RetryPolicy | None], Store]] = {
    "memory": _connect_memory,
    **dict.fromkeys(REDIS_SCHEMES, _connect_redis),
}


def is_redis_url(url: str) -> bool:
    return urlsplit(url).scheme in REDIS_SCHEMES


def connect_store(url: str, site_of: SiteOf | None = None, retry: RetryPolicy | None = None) -> Store:
    """One connection, for any number of threads. Only Redis uses `site_of`; without it all clients belong to the site
    "default"."""
    scheme = urlsplit(url).scheme
    if scheme not in STORES:
        # Without the URL: it may contain a password.
        raise AddressWrong(f"no store for {scheme!r} URLs: the scheme must be one of {', '.join(STORES)}")
    return STORES[scheme](url, site_of, retry)
