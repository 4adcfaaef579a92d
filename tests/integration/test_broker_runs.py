"""`fedil broker runs` and `fedil broker retire` on real brokers with generated permissions."""

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from redis import Redis as Client

from broker_config.brokers.definitions import ADMIN_USER
from broker_config.brokers.topology import (
    DEAD_LETTERS,
    DEFAULT_SITE,
    RUNS_TOPIC,
    run_of,
    tasks_queue,
    updates_queue,
)
from broker_config.process.addresses import BROKER_URL, MANAGEMENT_URL, STORE_URL
from broker_config.protocol.errors import ModelMissing
from broker_config.stores import connect_store
from broker_config.stores.redis.keys import clients_key, ledger_key, mark_key
from broker_config.transports import connect_transport
from broker_config.transports.interface import Transport
from ops.cli.main import main
from ops.local.services.process import wait_until
from tests.integration.configured_brokers import Brokers, configured_brokers, password_of

SOON = 60.0
BIG = bytes(10_000_000)


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with configured_brokers(tmp_path_factory.mktemp("brokers"), "north", "south") as brokers:
        yield brokers


@pytest.fixture(autouse=True)
def _addresses(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sets an operator's environment, and empties Redis afterwards."""
    login = f"//{ADMIN_USER}:{password_of(ADMIN_USER)}@"
    monkeypatch.setenv(BROKER_URL, brokers.broker_url("server"))
    monkeypatch.setenv(STORE_URL, brokers.store_url("server"))
    monkeypatch.setenv(MANAGEMENT_URL, brokers.rabbitmq.management_url.replace("//", login))
    yield
    with Client.from_url(brokers.store_url(ADMIN_USER)) as admin:
        admin.flushall()


@pytest.fixture
def server(brokers: Brokers) -> Iterator[Transport]:
    with closing(connect_transport(brokers.broker_url("server"))) as transport:
        yield transport


def begin(server: Transport, brokers: Brokers, run: str, clients: dict[str, list[int]]) -> None:
    """Leaves the data at the brokers that a server leaves which is killed during a round."""
    server.declare(updates_queue(run), DEAD_LETTERS)
    server.append_model(run, 1, [b"weights"])
    for body in (b"update", BIG):
        server.publish(updates_queue(run), [body])
    for site, numbers in (clients or {DEFAULT_SITE: []}).items():
        with closing(
            connect_store(brokers.store_url("server"), site_of=dict.fromkeys(numbers, site).__getitem__)
        ) as store:
            store.begin(run, site)
            for client in numbers:
                store.open_activation(run, client, 1)
                store.commit(run, client, 1, b"ledger")


def runs(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, Any]]:
    assert main(["broker", "runs", "--json", *arguments]) == 0
    return {known["run"]: known for known in json.loads(capsys.readouterr().out)}


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["broker", *arguments]) != 0
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


def queues_of(brokers: Brokers, run: str) -> set[str]:
    return {
        queue["name"]
        for queue in brokers.management.get("queues/fedil?columns=name")
        if run_of(queue["name"]) == run
    }


def bodies(brokers: Brokers) -> list[str]:
    names = [queue["name"] for queue in brokers.management.get("queues/fedil?columns=name")]
    return [name for name in names if name.startswith("fedil.body.")]


# runs


def test_runs_are_listed_with_leader_queues_and_ledgers(
    brokers: Brokers, server: Transport, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(server, brokers, "left", {"north": [1, 2], "south": [3]})
    begin(server, brokers, "led", {})
    assert server.acquire_leadership("led", SOON)
    # RabbitMQ updates its statistics every five seconds.
    assert wait_until(lambda: runs(capsys)["left"]["updates"] == 2, SOON)
    assert wait_until(lambda: runs(capsys)["led"]["led"] is True, SOON)
    found = runs(capsys)
    assert (found["left"]["led"], found["left"]["ledgers"], found["left"]["has_models"]) == (False, 3, True)
    assert found["left"]["last_sign"].startswith("20")
    assert (found["led"]["last_sign"], found["led"]["ledgers"]) == ("now", 0)
    assert main(["broker", "runs"]) == 0
    table = capsys.readouterr().out
    heading, *rows = table.splitlines()
    assert heading.split()[:3] == ["run", "led", "by"]
    assert ["led", "yes"] in [row.split()[:2] for row in rows]
    for run in ("left", "led"):
        server.retire(run, [DEFAULT_SITE])


def test_a_run_with_a_notice_of_its_server_has_a_leader(
    brokers: Brokers, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(connect_store(brokers.store_url("server"))) as store:
        store.announce(RUNS_TOPIC, "announced", {"state": "running", "host": "gpu-7"}, 60.0)
    known = runs(capsys)["announced"]
    assert (known["led"], known["leader"], known["state"]) == (True, "gpu-7", "running")
    assert (known["ledgers"], known["has_models"]) == (0, False)


def test_one_broker_alone_is_enough_and_the_rest_is_unknown(
    brokers: Brokers,
    server: Transport,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin(server, brokers, "half", {"north": [1]})
    with monkeypatch.context() as patch:
        patch.delenv(MANAGEMENT_URL)
        known = runs(capsys)["half"]
        assert (known["ledgers"], known["led"], known["has_models"]) == (1, None, None)
    monkeypatch.delenv(STORE_URL)
    known = runs(capsys)["half"]
    assert (known["ledgers"], known["has_models"]) == (None, True)
    server.retire("half", [DEFAULT_SITE])
    monkeypatch.delenv(MANAGEMENT_URL)
    assert "--management" in error_of(capsys, "runs")


def test_malformed_keys_of_a_site_are_not_shown_as_runs(
    brokers: Brokers, capsys: pytest.CaptureFixture[str]
) -> None:
    with Client.from_url(brokers.store_url("site-north")) as north:
        north.sadd(clients_key("north", "\x1b[2Jgone"), 1)
        north.set(clients_key("north", "odd"), "text")
    assert {name: known["ledgers"] for name, known in runs(capsys).items()} == {"odd": 0}


def test_an_empty_list_is_printed_as_no_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["broker", "runs"]) == 0
    assert capsys.readouterr().out == "no runs\n"


# retire


def test_a_retired_run_is_removed_and_other_runs_stay(
    brokers: Brokers, server: Transport, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(server, brokers, "old", {"north": [1, 2], "south": [3]})
    begin(server, brokers, "old-2", {"north": [1]})
    assert len(bodies(brokers)) == 2
    assert main(["broker", "retire", "old", "--ledgers", "--yes"]) == 0
    said = capsys.readouterr().out
    assert "fedil.updates.default.old, fedil.models.old" in said
    assert "2 unread updates" in said
    assert "removed 3 ledgers" in said
    assert queues_of(brokers, "old") == set()
    assert len(queues_of(brokers, "old-2")) == 2
    assert len(bodies(brokers)) == 1
    with Client.from_url(brokers.store_url(ADMIN_USER)) as admin:
        kept = {key.decode() for key in admin.keys("fedil:*")}
    assert kept == {
        clients_key("north", "old-2"),
        ledger_key("north", "old-2", 1),
        mark_key("north", "old-2"),
    }
    assert "knows" not in said
    assert "know of no run 'old'" in error_of(capsys, "retire", "old", "--ledgers", "--yes")
    server.retire("old-2", [DEFAULT_SITE])


def test_ledgers_stay_without_the_option_ledgers(
    brokers: Brokers, server: Transport, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(server, brokers, "kept", {"north": [1]})
    assert main(["broker", "retire", "kept"]) == 0
    assert "--ledgers" in capsys.readouterr().out
    assert queues_of(brokers, "kept") == set()
    with closing(connect_store(brokers.store_url("server"), site_of=lambda _: "north")) as store:
        assert store.latest("kept") == {1: (1, b"ledger")}
    # They can be removed later.
    assert main(["broker", "retire", "kept", "--ledgers", "--yes"]) == 0
    assert "removed 1 ledgers" in capsys.readouterr().out


def test_a_run_without_ledgers_is_listed_until_it_is_retired(
    brokers: Brokers, server: Transport, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(server, brokers, "begun", {})
    assert main(["broker", "retire", "begun"]) == 0
    capsys.readouterr()
    assert runs(capsys)["begun"]["ledgers"] == 0
    assert main(["broker", "retire", "begun", "--ledgers", "--yes"]) == 0
    capsys.readouterr()
    assert runs(capsys) == {}


def test_a_run_with_a_leader_is_not_retired(
    brokers: Brokers, server: Transport, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(server, brokers, "busy", {"north": [1]})
    assert server.acquire_leadership("busy", SOON)
    assert "a server leads run busy: stop it first" in error_of(
        capsys, "retire", "busy", "--ledgers", "--yes"
    )
    assert len(queues_of(brokers, "busy")) == 3
    assert server.acquire_leadership("busy", 0.0)
    address = server.append_model("busy", 2, [b"later"])
    assert bytes(server.read_model(address)) == b"later"
    with closing(connect_store(brokers.store_url("server"), site_of=lambda _: "north")) as store:
        assert store.latest("busy") == {1: (1, b"ledger")}
    server.retire("busy", [DEFAULT_SITE])


def test_a_retired_run_may_start_again(
    brokers: Brokers, server: Transport, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(server, brokers, "again", {})
    assert main(["broker", "retire", "again"]) == 0
    capsys.readouterr()
    with closing(connect_transport(brokers.broker_url("server"))) as successor:
        assert successor.acquire_leadership("again", SOON)
        successor.declare(updates_queue("again"))
        assert successor.receive(updates_queue("again"), 0.0) is None
        address = successor.append_model("again", 1, [b"anew"])
        assert bytes(successor.read_model(address)) == b"anew"
        successor.retire("again", [DEFAULT_SITE])


def test_a_worker_of_a_retired_run_drops_its_task(
    brokers: Brokers, server: Transport, capsys: pytest.CaptureFixture[str]
) -> None:
    address = server.append_model("gone", 1, [b"weights"])
    server.publish(tasks_queue("north"), [b"task"])
    assert main(["broker", "retire", "gone"]) == 0
    capsys.readouterr()
    with closing(connect_transport(brokers.broker_url("site-north"))) as worker:
        task = worker.receive(tasks_queue("north"), SOON)
        assert task is not None
        with pytest.raises(ModelMissing):
            worker.read_model(address)
        task.acknowledge()


def test_a_site_cannot_retire_a_run(
    brokers: Brokers, server: Transport, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(server, brokers, "theirs", {"north": [1]})
    said = error_of(capsys, "retire", "theirs", "--broker", brokers.broker_url("site-north"))
    assert "'site-north'" in said
    assert len(queues_of(brokers, "theirs")) == 2
    said = error_of(
        capsys, "retire", "theirs", "--ledgers", "--yes", "--store", brokers.store_url("site-north")
    )
    assert "'site-north' has too few rights" in said
    assert len(queues_of(brokers, "theirs")) == 2
    server.retire("theirs", [DEFAULT_SITE])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["retire", "a/b"], "of which the first is a letter or a digit"),
        (["retire", "unknown"], "know of no run 'unknown'"),
        (["retire", "x", "--ledgers"], "removes what the clients remember, for ever: add --yes"),
        (["retire", "x", "--broker", "redis://h"], "--broker must begin with amqp://"),
        (["retire", "x", "--ledgers", "--store", "amqp://h"], "--store must begin with redis://"),
        (["runs", "--store", "memory:///x"], "--store must begin with redis://"),
    ],
)
def test_invalid_arguments_are_named_in_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in error_of(capsys, *arguments)


def test_missing_arguments_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(STORE_URL)
    assert "--ledgers needs the store: give --store URL" in error_of(capsys, "retire", "x", "--ledgers")
    monkeypatch.delenv(BROKER_URL)
    assert "no broker: give --broker URL" in error_of(capsys, "retire", "x")
