"""Redis behind Sentinels: a client that follows the primary.

    redis+sentinel://user:password@host1:26379,host2:26379/service/0?sentinel_username=…&sentinel_password=…

`rediss+sentinel://` uses TLS for Redis and for the Sentinels. The other options are those of redis-py.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from redis import exceptions
from redis.sentinel import MasterNotFoundError, Sentinel

from broker_config.stores.redis.address import name_of, parse_address, wrong_address
from broker_config.stores.redis.nodes import KnownNodes, Node, OneNode, common_options

SUFFIX = "+sentinel"
_USUAL_PORT = 26379
_EXAMPLE = f"host1:{_USUAL_PORT},host2:{_USUAL_PORT}/service/0"
_SERVICE = re.compile(r"[\w.-]+", re.ASCII)
_LOGIN = {"sentinel_username": "username", "sentinel_password": "password"}
PATIENCE = {"socket_connect_timeout": 1.0, "socket_timeout": 2.0}
"""With one that tells where others are; the next is asked then."""


class SentinelRefuses(exceptions.RedisError):
    """Asking again does not help."""


class NodesBehindSentinels(OneNode):
    """The client's new connections go to the primary of the moment."""

    replaces_primaries = True

    def __init__(self, url: str) -> None:
        address = parse_address(url, _USUAL_PORT, "Sentinels", _EXAMPLE)
        service, _, database = address.path.partition("/")
        if not _SERVICE.fullmatch(service):
            raise wrong_address(url, "names no service of the Sentinels", _EXAMPLE)
        if database and not database.isdecimal():
            raise wrong_address(url, "has a database that is no number", _EXAMPLE)
        login = {_LOGIN[name]: value for name, value in address.options.items() if name in _LOGIN}
        others = {name: value for name, value in address.options.items() if name not in _LOGIN}
        self._address, self._service = replace(address, options=others), service
        self._database = database or "0"
        options = self._address.node_options(common_options(), self._database)
        tls = {name: value for name, value in options.items() if name.startswith("ssl")}
        make: Any = _Sentinels  # redis-py's annotations differ from version to version
        self._sentinels = make(
            address.places, sentinel_kwargs={**common_options(), **PATIENCE, **tls, **login}
        )
        client = self._sentinels.master_for(service, **options)
        client.connection_pool.make_connection()
        super().__init__(url, client, f"{service} (Sentinel {address})")

    def known(self) -> KnownNodes:
        states = self._sentinels.ask(self._service, lambda one: one.sentinel_slaves(self._service))
        places = [(state["ip"], state["port"], state["is_sdown"]) for state in states]
        replicas = [
            Node(self._address.node_url(host, port, self._database), is_replica=True)
            for host, port, is_down in places
            if not is_down
        ]
        primary = Node(self._url, lacks_replica=not replicas)
        return KnownNodes(
            [primary, *replicas], [name_of(host, port) for host, port, is_down in places if is_down]
        )

    def close(self) -> None:
        super().close()
        self._sentinels.close()


class _Sentinels(Sentinel):
    """Finds the primary, or says why not. redis-py's own way reorders a list that threads share, and takes a wrong
    password or name for an outage."""

    def discover_master(self, service_name: str) -> tuple[str, int]:
        def primary(sentinel: Any) -> tuple[str, int]:
            state = sentinel.sentinel_master(service_name)
            # A Sentinel that is cut off from the others goes on naming the old one.
            if not state["is_master"] or state["is_sdown"] or state["is_odown"]:
                raise exceptions.ConnectionError("the primary does not answer")
            return state["ip"], state["port"]

        found: tuple[str, int] = self.ask(service_name, primary)
        return found

    def ask(self, service: str, question: Callable[[Any], Any]) -> Any:
        """The first answer"""
        unknown = f"know no service {service!r}: check the name after the hosts in the store's URL"
        failures: list[Exception] = []
        for sentinel in self.sentinels:
            try:
                return question(sentinel)
            except (exceptions.RedisError, OSError) as error:
                if "No such master" not in str(error):
                    failures.append(error)
        for refusal in failures:
            if isinstance(refusal, exceptions.AuthenticationError | exceptions.NoPermissionError):
                raise SentinelRefuses(
                    f"a Sentinel does not let FedIL in ({str(refusal).rstrip('.')}): check sentinel_username and "
                    "sentinel_password in the store's URL"
                ) from refusal
        if not failures:
            raise SentinelRefuses(f"the Sentinels {unknown}")
        if len(failures) < len(self.sentinels):
            raise MasterNotFoundError(f"the Sentinels that answer {unknown}")
        # With its cause: a wrong certificate is told from an outage by it.
        raise MasterNotFoundError(f"no Sentinel names one: {failures[-1]}") from failures[-1].__context__

    def close(self) -> None:
        for sentinel in self.sentinels:
            sentinel.close()
