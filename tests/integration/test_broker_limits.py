"""What a site may take of RabbitMQ, set by `fedil broker init` and `files`, and missed by `check`."""

from collections.abc import Iterator
from contextlib import ExitStack, closing

import pika
import pytest
from pika.exceptions import AMQPError

from broker_config.brokers.definitions import ADMIN_USER, SiteLimits
from broker_config.brokers.topology import BODIES, body_queue, updates_queue
from broker_config.protocol.errors import QueueFull
from broker_config.transports import connect_transport
from ops.broker.management import Management
from ops.cli.main import main
from tests.integration.configured_brokers import Brokers, configured_brokers

LITTLE = SiteLimits(workers=1, update_bytes=5_000_000)
USER = "site-greedy"


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with configured_brokers(tmp_path_factory.mktemp("brokers"), "greedy", limits=LITTLE) as brokers:
        yield brokers


def init(brokers: Brokers, *more: str) -> int:
    where = ["--management", brokers.management_url, "--store", brokers.store_url(ADMIN_USER)]
    return main(["broker", "init", *where, "--sites", "greedy", *more])


def wrong(brokers: Brokers, capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    code = main(["broker", "check", "--management", brokers.management_url])
    lines = capsys.readouterr().out.splitlines()
    found = [line.partition(": ")[2].partition(": ")[2] for line in lines if line.startswith("wrong")]
    assert code == bool(found)
    return found


def test_a_site_gets_no_more_connections_and_channels_than_it_may_have(brokers: Brokers) -> None:
    address = pika.URLParameters(brokers.broker_url(USER))
    with ExitStack() as stack:
        connections = [stack.enter_context(pika.BlockingConnection(address)) for _ in range(6)]
        with pytest.raises(AMQPError, match="limit"):
            pika.BlockingConnection(address)
        for _ in range(20):
            connections[0].channel()
        with pytest.raises(AMQPError, match="limit"):
            connections[1].channel()


def test_an_update_with_more_bytes_than_it_may_have_is_not_taken_and_leaves_nothing(brokers: Brokers) -> None:
    queue = updates_queue("run", "greedy")
    with (
        closing(connect_transport(brokers.broker_url("server"))) as server,
        closing(connect_transport(brokers.broker_url(USER))) as site,
    ):
        server.declare(queue)
        site.publish(queue, [bytes(4_500_000)])
        with pytest.raises(QueueFull, match=r"fedil\.body"):
            site.publish(queue, [bytes(20_000_000)])
        update = server.receive(queue, 60.0)
        assert update is not None
        assert len(update.body) == 4_500_000
        update.acknowledge()
        assert server.receive(queue, 0.0) is None
    names = [each["name"] for each in brokers.management.get("queues/fedil?columns=name")]
    assert not [name for name in names if BODIES.holds(name)]


def test_queues_that_were_there_before_are_bounded_too(brokers: Brokers) -> None:
    """A site may also declare its bodies with arguments of its own."""
    queue = body_queue(USER, "0" * 32)
    with pika.BlockingConnection(pika.URLParameters(brokers.broker_url(USER))) as connection:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True, arguments={"x-max-length-bytes": 10**9})
        channel.queue_bind(queue, BODIES.exchange.name, BODIES.routing_key(queue))
        for _ in range(20):
            channel.basic_publish(BODIES.exchange.name, BODIES.routing_key(queue), bytes(1_000_000))
        assert channel.queue_declare(queue, passive=True).method.message_count <= 6
        channel.queue_delete(queue)


def test_init_sets_limits_of_users_that_keep_their_passwords_and_keeps_an_operators(brokers: Brokers) -> None:
    management = brokers.management
    management.put("vhost-limits/fedil/max-queues", {"value": 777})
    assert init(brokers, "--workers", "2", "--largest-update", "3") == 0
    assert management.get("vhost-limits/fedil")[0]["value"] == {"max-queues": 777}
    (user,) = (user for user in management.get("users") if user["name"] == USER)
    assert user["limits"] == {"max-connections": 12, "max-channels": 40}
    assert management.get("policies/fedil/fedil-bodies")["definition"]["max-length-bytes"] == 3 << 30


def test_what_a_site_may_fill_or_open_without_end_is_wrong_until_init(
    brokers: Brokers, capsys: pytest.CaptureFixture[str]
) -> None:
    assert wrong(brokers, capsys) == []
    for path in (
        "policies/fedil/fedil-bodies",
        f"user-limits/{USER}/max-channels",
        "vhost-limits/fedil/max-queues",
    ):
        delete(brokers.management, path)
    assert wrong(brokers, capsys) == [
        "policy fedil-bodies sets no max-length-bytes, so a site may fill the disk: run fedil broker init",
        f"user {USER} has no limit max-channels: run fedil broker init",
        "virtual host fedil has no limit max-queues: run fedil broker init",
    ]
    assert init(brokers) == 0
    assert wrong(brokers, capsys) == []


def test_a_site_with_very_many_queues_is_named(brokers: Brokers, capsys: pytest.CaptureFixture[str]) -> None:
    queues = [body_queue(USER, f"{number:032x}") for number in range(501)]
    with pika.BlockingConnection(pika.URLParameters(brokers.broker_url(USER))) as connection:
        channel = connection.channel()
        for queue in queues:
            channel.queue_declare(queue, durable=True)
    (line,) = wrong(brokers, capsys)
    assert line.startswith(f"user {USER} has 501 queues of bodies, of 1000 queues for all")
    with pika.BlockingConnection(pika.URLParameters(brokers.broker_url(USER))) as connection:
        channel = connection.channel()
        for queue in queues:
            channel.queue_delete(queue)


def delete(management: Management, path: str) -> None:
    management._request(path, None, "DELETE")
