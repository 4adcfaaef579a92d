"""Nothing of a run is on one RabbitMQ node only: any may be killed, for a while or for ever."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from broker_config.brokers.topology import DEAD_LETTERS, DEFAULT_SITE, tasks_queue, updates_queue
from broker_config.protocol.errors import BrokerUnavailable, QueueMissing
from broker_config.transports.rabbitmq.transport import RabbitTransport
from ops.local.services.process import wait_until
from tests.federation import SOON, Federation, OverBrokers, apart, at_work, blobs_recipe
from tests.rabbitmq_cluster import Cluster, Node, rabbitmq_cluster
from tests.services import Service, needed

ROUNDS_PER_KILL = 4
SECONDS_PER_UPDATE = 0.05
NOTHING = 0.3
NODE_LOST_SECONDS = 3 * SOON
"""RabbitMQ 4.3 itself waits a minute for a node that is gone."""


@dataclass
class Pace:
    """Called for each update that the server takes. Keeps the run from ending before the last kill."""

    kills: int = 0
    updates: int = 0

    def __call__(self, number: int, _: int) -> None:
        self.updates += 1
        assert wait_until(lambda: number <= ROUNDS_PER_KILL * (self.kills + 1), 4 * SOON)
        time.sleep(SECONDS_PER_UPDATE)

    def kill(self, node: Node) -> float:
        """Returns the seconds until the run goes on."""
        node.kill()
        self.kills += 1
        before, began = self.updates, time.monotonic()
        assert wait_until(lambda: self.updates > before, NODE_LOST_SECONDS)
        return time.monotonic() - began


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with ExitStack() as stack:
        folder = tmp_path_factory.mktemp("cluster")
        yield needed(lambda: stack.enter_context(rabbitmq_cluster(folder)))


def test_a_node_that_dies_gives_tasks_back_and_its_classic_queues_are_unavailable_but_not_missing(
    cluster: Cluster,
) -> None:
    home, other = cluster.nodes[0], cluster.nodes[1]
    tasks, classic = tasks_queue("site"), updates_queue("classic")
    with closing(RabbitTransport(f"{home.url}?queues=single")) as transport:
        transport.declare(classic)
        transport.publish(classic, [b"update"])
    with (
        closing(RabbitTransport(f"{other.url}?queues=replicated")) as transport,
        closing(RabbitTransport(home.url)) as worker,
    ):
        transport.declare(tasks, DEAD_LETTERS)
        assert worker.receive(tasks, NOTHING) is None  # subscribes
        transport.publish(tasks, [b"task"])
        assert worker.receive(tasks, SOON) is not None
        home.kill()
        again = transport.receive(tasks, NODE_LOST_SECONDS)
        assert again is not None
        assert (bytes(again.body), again.redelivered) == (b"task", True)
        again.acknowledge()
        for call in (
            lambda: transport.publish(classic, [b"lost"]),
            lambda: transport.depth(classic),
            lambda: transport.receive(classic, 1.0),
        ):
            with pytest.raises(BrokerUnavailable, match=r"cannot reach a queue|takes no message"):
                call()
        with pytest.raises(QueueMissing, match="declare it first"):
            transport.publish(updates_queue("other"), [b"lost"])
        home.start()
    with closing(RabbitTransport(other.url)) as transport:
        update = transport.receive(classic, SOON)
        assert update is not None
        assert bytes(update.body) == b"update"
        transport.retire("classic", [DEFAULT_SITE])


def test_no_node_of_a_cluster_is_needed(cluster: Cluster, redis: Service, tmp_path: Path) -> None:
    recipe = apart(blobs_recipe(rounds=ROUNDS_PER_KILL * (len(cluster.nodes) + 1)))
    undisturbed = Federation(recipe, tmp_path / "undisturbed")
    undisturbed.play()
    pace = Pace()
    run = OverBrokers(recipe, tmp_path / "run", broker_url=cluster.url, store_url=redis.url)
    run.diary.on_update = pace
    with run, at_work(run.participant()), at_work(run.participant()):
        served = run.serve()
        assert wait_until(lambda: pace.updates > 0, SOON)
        assert [name for name, members in cluster.members().items() if members != len(cluster.nodes)] == []
        for node in cluster.nodes:
            print(f"without node {node.directory.name}: {pace.kill(node):.1f} s to progress")
            if node is not cluster.nodes[-1]:  # the last is lost for ever
                node.start()
        assert served.result(SOON).rounds_done == recipe.rounds
        assert run.digests() == undisturbed.digests()
