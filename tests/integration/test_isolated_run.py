"""A run of two sites that have nothing but their own users at the brokers; and a site that is not honest."""

import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pika
import pytest
import torch

from broker_config.brokers.topology import DEAD_LETTERS, body_queue, updates_queue
from broker_config.protocol.errors import BrokerUnavailable
from broker_config.protocol.messages import ModelEntry, Refusal, TrainTask
from broker_config.protocol.wire import encode_message
from broker_config.stores import connect_store
from broker_config.transports import connect_transport
from broker_config.transports.interface import ModelAddress, Transport
from broker_config.transports.rabbitmq.transport import RabbitTransport
from client_worker.participant import Participant
from client_worker.training import Trainer
from fedil_model.data.datasets.interface import Samples
from fedil_model.methods import make_method
from server_worker.coordinator import Coordinator, ServerContext
from server_worker.round.dead_letters import DeadTasks
from server_worker.round.inbox import Inbox
from server_worker.round.sites import Sites
from server_worker.run.checkpoint import CheckpointFolder
from tests.federation import ArrayShards, Diary, Federation, blobs_recipe, count_parameters
from tests.integration.configured_brokers import Brokers, configured_brokers
from tests.memory_store import new_store

SITES = {"north": range(3), "south": range(3, 6)}
SOON, NOTHING = 60.0, 0.3


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with configured_brokers(tmp_path_factory.mktemp("brokers"), *SITES) as brokers:
        yield brokers


# Two honest sites


def participant(federation: Federation, brokers: Brokers, site: str, stack: ExitStack) -> Participant:
    transport = stack.enter_context(closing(connect_transport(brokers.broker_url(f"site-{site}"))))
    store = stack.enter_context(
        closing(connect_store(brokers.store_url(f"site-{site}"), site_of=lambda _: site))
    )
    shards = ArrayShards(federation.train.inputs, federation.split.clients)
    plugins = [federation.recipe.data.name]
    return Participant(transport, Trainer(transport, store, shards, torch.device("cpu"), plugins), site)


def coordinator(federation: Federation, brokers: Brokers, stack: ExitStack) -> Coordinator:
    recipe = federation.recipe
    transport = stack.enter_context(closing(connect_transport(brokers.broker_url("server"))))
    store = stack.enter_context(closing(connect_store(brokers.store_url("server"), site_of=recipe.site_of)))
    federation.store = store  # type: ignore[assignment]
    context = context_of(federation, brokers, transport, sites_of(recipe.sites, store))
    chosen = torch.from_numpy(federation.split.labelled)
    labelled = Samples(federation.train.inputs[chosen], federation.train.labels[chosen])
    method = make_method(recipe.learning(), federation.dataset, torch.device("cpu"))
    return Coordinator(recipe.name, recipe, method, labelled, context)


def sites_of(sites: dict[str, range], store: Any) -> Sites:
    return Sites(sites, store, lambda: 0.0, 60.0, "server", lambda _: None)


def context_of(federation: Federation, brokers: Brokers, transport: Transport, sites: Sites) -> ServerContext:
    return ServerContext(
        transport=transport,
        store=federation.store,
        checkpoints=CheckpointFolder(federation.directory / "checkpoints"),
        evaluate=count_parameters,
        watcher=federation.diary,
        clock=federation.clock,
        stop=federation.stop,
        sites=sites,
        connect_for_inspection=lambda: connect_transport(brokers.broker_url("server")),
    )


def test_a_run_with_the_least_rights_gives_the_same_bits(brokers: Brokers, tmp_path: Path) -> None:
    sizes = {site: len(clients) for site, clients in SITES.items()}
    recipe = blobs_recipe(federation={"sites": sizes})
    undisturbed = Federation(blobs_recipe(), tmp_path / "memory")
    undisturbed.play()
    expected = undisturbed.fingerprint()
    federation = Federation(recipe, tmp_path / "brokers")
    with ExitStack() as stack:
        server = coordinator(federation, brokers, stack)
        workers = [participant(federation, brokers, site, stack) for site in SITES]
        threads = [threading.Thread(target=worker.serve) for worker in workers]
        for thread in threads:
            thread.start()
        try:
            server.run()
        finally:
            for worker, thread in zip(workers, threads, strict=True):
                worker.stopping.ask()
                thread.join()
        assert federation.fingerprint() == expected


# One that is not honest


@pytest.fixture
def run() -> str:
    return f"run-{uuid.uuid4().hex}"


@pytest.fixture
def diary() -> Diary:
    return Diary()


@pytest.fixture
def server(brokers: Brokers, run: str) -> Iterator[Transport]:
    with closing(connect_transport(brokers.broker_url("server"))) as transport:
        transport.declare(*(updates_queue(run, site) for site in SITES), DEAD_LETTERS)
        yield transport
        transport.retire(run, SITES)


@pytest.fixture
def context(brokers: Brokers, server: Transport, diary: Diary, tmp_path: Path) -> ServerContext:
    federation = Federation(blobs_recipe(), tmp_path, diary=diary)
    return context_of(federation, brokers, server, sites_of(SITES, new_store()))


@pytest.fixture
def inbox(run: str, context: ServerContext) -> Inbox:
    return Inbox(run, context)


@pytest.fixture
def north(brokers: Brokers) -> Iterator[Transport]:
    with closing(connect_transport(brokers.broker_url("site-north"))) as transport:
        yield transport


@pytest.fixture
def channel(brokers: Brokers) -> Iterator[pika.adapters.blocking_connection.BlockingChannel]:
    """Of somebody with a site's password and other software than ours."""
    with pika.BlockingConnection(pika.URLParameters(brokers.broker_url("site-north"))) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel


def answer(run: str, client: int) -> bytes:
    message = Refusal(run=run, round=1, client=client, activation=1, reason="tired", detail="")
    return b"".join(encode_message(message))


def reason_of_letter(server: Transport, body: bytes) -> str | None:
    while True:
        letter = server.receive(DEAD_LETTERS, SOON)
        assert letter is not None
        letter.acknowledge()
        if bytes(letter.body) == body:
            return letter.reason


def test_a_site_is_heard_for_its_own_clients(inbox: Inbox, north: Transport, run: str) -> None:
    north.publish(updates_queue(run, "north"), [answer(run, client=2)])
    arrival = inbox.next(SOON)
    assert arrival is not None
    assert arrival.answer.client == 2


@pytest.mark.parametrize("client", [3, 99])
def test_a_site_is_not_heard_for_others(
    inbox: Inbox, server: Transport, north: Transport, diary: Diary, run: str, client: int
) -> None:
    north.publish(updates_queue(run, "north"), [answer(run, client)])
    assert inbox.next(SOON) is None
    assert inbox.take_refused() == {"not_yours": 1}
    (note,) = diary.notes
    assert note.startswith(
        f"message refused (not_yours): user 'site-north' answers for client {client}, which "
    )
    assert reason_of_letter(server, answer(run, client)) == "not_yours"


def test_who_does_not_say_its_name_is_not_heard(inbox: Inbox, channel: Any, run: str) -> None:
    channel.basic_publish("fedil.site.north", f"north.{run}", answer(run, client=2), mandatory=True)
    assert inbox.next(SOON) is None
    assert inbox.take_refused() == {"not_yours": 1}


def dead_task(run: str, client: int) -> bytes:
    task = TrainTask(run, 1, client, 1, ModelEntry(ModelAddress(run, 1, 0), "0" * 32), "{}")
    return b"".join(encode_message(task))


def test_a_site_gives_up_its_own_tasks_and_not_those_of_others(
    context: ServerContext, north: Transport, run: str
) -> None:
    for client in (2, 3):
        north.publish(DEAD_LETTERS, [dead_task(run, client)])
    seen: list[int] = []
    DeadTasks(run, context).look(lambda task, _: seen.append(task.client))
    assert seen == [2]


TRAPS: dict[str, dict[str, Any]] = {
    "a stream": {"durable": True, "arguments": {"x-queue-type": "stream"}},
    "locked": {"exclusive": True},
    "empty": {"durable": True, "arguments": {"x-queue-type": "quorum"}},
}


@pytest.mark.parametrize("trap", TRAPS.values(), ids=TRAPS.keys())
def test_a_body_that_is_none_is_refused_and_the_next_update_heard(
    inbox: Inbox, north: Transport, channel: Any, run: str, trap: dict[str, Any]
) -> None:
    place = body_queue("site-north", uuid.uuid4().hex)
    channel.queue_declare(place, **trap)
    notice = pika.BasicProperties(user_id="site-north", headers={"x-fedil-body": place})
    channel.basic_publish("fedil.site.north", f"north.{run}", b"", notice, mandatory=True)
    assert inbox.next(SOON) is None
    assert inbox.take_refused() == {"body_missing": 1}
    north.publish(updates_queue(run, "north"), [answer(run, client=2)])
    assert inbox.next(SOON) is not None


def test_an_update_whose_body_could_not_be_fetched_comes_again(
    brokers: Brokers, server: Transport, north: Transport, run: str
) -> None:
    body = bytes(10_000_000)
    north.publish(updates_queue(run, "north"), [body])
    with closing(RabbitTransport(brokers.broker_url("server"))) as unlucky:
        update = unlucky.receive(updates_queue(run, "north"), SOON)
        assert update is not None
        unlucky._session.fetching.close()
        with pytest.raises(BrokerUnavailable):
            _ = update.body
        with pytest.raises(BrokerUnavailable):
            unlucky.receive(updates_queue(run, "north"), NOTHING)
        again = server.receive(updates_queue(run, "north"), SOON)
    assert again is not None
    assert again.redelivered
    assert bytes(again.body) == body
