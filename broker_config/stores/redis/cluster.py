"""Redis Cluster: which node has a key.

    redis+cluster://user:password@host1:6379,host2:6379/

`rediss+cluster://` uses TLS. A few nodes will do: they name the others. The options are those of redis-py.

redis-py's RedisCluster only says here which node has which slots. Commands go to clients of single nodes: a transaction
needs a connection of its own, INFO and WAIT must reach the node that a key was written to, and a thread that looks for
slots anew must not close a connection of another.
"""

import random
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from redis import cluster, exceptions

from broker_config.stores.redis.address import Place, name_of, parse_address, wrong_address
from broker_config.stores.redis.nodes import Client, KnownNodes, Node, common_options, node_client
from broker_config.stores.redis.sentinel import PATIENCE

_T = TypeVar("_T")
SUFFIX = "+cluster"
_USUAL_PORT = 6379
_EXAMPLE = f"host1:{_USUAL_PORT},host2:{_USUAL_PORT}/"
_Map = Any
"""redis.cluster.RedisCluster; its annotations differ from version to version."""


class ClusterNodes:
    replaces_primaries = is_cluster = True

    def __init__(self, url: str) -> None:
        self._address = address = parse_address(url, _USUAL_PORT, "nodes", _EXAMPLE)
        if {address.path or "0", address.options.get("db", "0")} != {"0"}:
            raise wrong_address(url, "has a database, but a cluster has only database 0", _EXAMPLE)
        self.endpoint = f"{address} (Redis Cluster)"
        self.options: Mapping[str, Any] = address.node_options(common_options())
        self._places: Iterable[Place] = address.places
        """Of all nodes, as far as known"""
        self._map: _Map = None
        """None until it is needed"""
        self._clients: dict[str, Client] = {}
        self._lock = threading.Lock()
        self._clients_of(address.places[:1])  # notices wrong options

    def keeping(self, key: str | None, /) -> Mapping[str, Client]:
        def find(slots: _Map) -> Any:
            return random.choice(slots.get_primaries()) if key is None else slots.get_node_from_key(key)

        return self._clients_of([self._look_up(lambda slots: _place(find(slots)))])

    def primaries(self) -> Mapping[str, Client]:
        def find(slots: _Map) -> list[Place]:
            slots.nodes_manager.initialize()  # slots may have moved, and no command has noticed it yet
            return sorted(map(_place, slots.get_primaries()))

        return self._clients_of(self._look_up(find))

    def known(self) -> KnownNodes:
        hosts = self._look_up(lambda slots: {node.host for node in slots.get_nodes()})
        (client,) = self.keeping(None).values()
        own_host = client.connection_pool.connection_kwargs["host"]
        lines = client.execute_command("CLUSTER", "NODES").decode().splitlines()
        nodes = [node for line in lines if (node := _Line(line, hosts, own_host)).is_known]
        guarded = {node.primary for node in nodes if node.answers}
        found = [
            Node(
                self._address.node_url(*node.place),
                node.is_replica,
                node.has_slots and node.id not in guarded,
            )
            for node in nodes
            if node.answers or node.has_slots
        ]
        missing = [name_of(*node.place) for node in nodes if not node.answers and not node.has_slots]
        return KnownNodes(sorted(found, key=lambda node: (node.is_replica, node.url)), sorted(missing))

    def look_again(self) -> None:
        with self._lock:
            slots, self._map = self._map, None
            if slots is not None:
                slots.close()

    def close(self) -> None:
        self.look_again()
        for client in self._clients.values():
            client.close()

    def _look_up(self, question: Callable[[_Map], _T]) -> _T:
        with self._lock:
            try:
                if self._map is None:
                    self._map = self._read_map()
                return question(self._map)
            except exceptions.RedisClusterException as error:
                reason = _reason(error)
        raise reason  # here, not above: so it keeps its own cause

    def _read_map(self) -> _Map:
        options = self._address.node_options({**common_options(), **PATIENCE})
        del options["db"]
        node: Any = cluster.ClusterNode
        connect: Any = cluster.RedisCluster
        # In random order: one that is cut off from the others tells of an earlier time.
        places = list(self._places)
        seeds = [node(*place) for place in random.sample(places, len(places))]
        slots = connect(startup_nodes=seeds, require_full_coverage=True, **options)
        self._places = dict.fromkeys([*map(_place, slots.get_nodes()), *self._address.places])
        return slots

    def _clients_of(self, places: Iterable[Place]) -> dict[str, Client]:
        found: dict[str, Client] = {}
        with self._lock:
            for place in places:
                name = name_of(*place)
                if name not in self._clients:
                    self._clients[name] = node_client(self._address.node_url(*place))
                found[name] = self._clients[name]
        return found


class _Line:
    """Of CLUSTER NODES: `id ip:port@bus[,hostname] flags primary ping pong epoch link [slot …]`"""

    def __init__(self, line: str, hosts: set[str], own_host: str) -> None:
        """`hosts`: under which the cluster names its nodes; `own_host`: where a node is that does not know its own"""
        self.id, where, flags, self.primary, *rest = line.split()
        where, *names = where.split(",")
        host, _, port = where.partition("@")[0].rpartition(":")
        self.place = (next((name for name in names if name in hosts), host or own_host), int(port))
        states = set(flags.split(","))
        self.is_known = not states & {"noaddr", "handshake"}
        self.is_replica = "slave" in states
        self.answers = not states & {"fail", "fail?"}
        self.has_slots = len(rest) > 4


def _place(node: Any) -> Place:
    return node.host, int(node.port)


def _reason(error: Exception) -> Exception:
    """redis-py wraps what nodes have answered, and takes every refusal for a node that is in no cluster."""
    while isinstance(error, exceptions.RedisClusterException):
        below = error.__cause__ or error.__context__
        if not isinstance(below, Exception):
            return exceptions.ClusterDownError(str(error))
        error = below
    return error
