"""A RabbitMQ cluster on this machine, whose nodes tests may kill."""

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ops.local.services.brokers_root import broker_command
from ops.local.services.process import LOOPBACK, PrivateService, listens
from ops.local.services.rabbitmq import SETTINGS
from tests.services import RabbitMQ

NUM_NODES = 3


class PortMapper(PrivateService):
    """The epmd that all nodes of a cluster share"""

    name = "epmd"
    port_names = ("epmd",)

    @property
    def url(self) -> str:
        return f"epmd://{LOOPBACK}:{self.ports['epmd']}"

    def _command(self) -> Sequence[str]:
        return broker_command("epmd", "-port", str(self.ports["epmd"]), "-address", LOOPBACK)

    def _answers(self) -> bool:
        return listens(self.ports["epmd"])


class Node(RabbitMQ):
    def __init__(self, directory: Path, number: int, mapper: PortMapper, plugins: Sequence[str]) -> None:
        self._node, self._mapper, self._home = _node(number), mapper, directory.parent / "home"
        # RabbitMQ 4 waits for all that are listed.
        nodes = {f"cluster_formation.classic_config.nodes.{other}": _node(other) for other in {1, number}}
        backend = {"cluster_formation.peer_discovery_backend": "classic_config"}
        super().__init__(directory, SETTINGS | backend | nodes, plugins)

    def _command(self) -> Sequence[str]:
        super()._command()  # writes the configuration
        return broker_command(self._program)

    def _environment(self) -> Mapping[str, str]:
        return {
            **super()._environment(),
            "HOME": str(self._home),
            "ERL_EPMD_PORT": str(self._mapper.ports["epmd"]),
            "RABBITMQ_NODENAME": self._node,
        }


def _node(number: int) -> str:
    return f"fedil{number}@localhost"


@dataclass(frozen=True)
class Cluster:
    nodes: tuple[Node, ...]

    @property
    def url(self) -> str:
        places = ",".join(f"{LOOPBACK}:{node.port}" for node in self.nodes)
        return f"amqp://guest:guest@{places}/%2F"

    def members(self) -> dict[str, int]:
        """Queue → number of nodes that have a copy"""
        queues = json.loads(self.nodes[0].ctl("list_queues", "name", "members", "--formatter", "json"))
        return {queue["name"]: len(queue["members"]) for queue in queues}


@contextmanager
def rabbitmq_cluster(folder: Path, plugins: Sequence[str] = ()) -> Iterator[Cluster]:
    cookie = folder / "home" / ".erlang.cookie"
    cookie.parent.mkdir(parents=True)
    cookie.write_text("a cluster of one test")
    cookie.chmod(0o400)
    with ExitStack() as stack:
        mapper = stack.enter_context(PortMapper(folder / "epmd"))

        def start(number: int) -> Node:
            return stack.enter_context(Node(folder / str(number), number, mapper, plugins))

        # The others join the first.
        nodes = [start(1)]
        with ThreadPoolExecutor() as pool:
            nodes += pool.map(start, range(2, NUM_NODES + 1))
        yield Cluster(tuple(nodes))
