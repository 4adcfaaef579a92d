"""Ledger stores by URL scheme. What each needs is imported only when it is asked for."""

from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from broker_config.errors import FedILError
from broker_config.stores.interface import Store

if TYPE_CHECKING:
    from broker_config.stores.memory import MemoryStore


def _connect_memory(url: str) -> Store:
    from broker_config.link import path_of
    from broker_config.stores.memory_socket import SocketStore

    return SocketStore(path_of(url))


STORES: dict[str, Callable[[str], Store]] = {
    "memory": _connect_memory,
}


def connect_store(url: str, store: "MemoryStore | None" = None) -> Store:
    """One connection; each thread has its own. Plain `memory://` means the `store` handed in."""
    if url == "memory://" and store is not None:
        return store
    scheme = urlsplit(url).scheme
    if scheme not in STORES:
        raise FedILError(f"no store for {url!r}: its scheme must be one of {', '.join(STORES)}")
    return STORES[scheme](url)
