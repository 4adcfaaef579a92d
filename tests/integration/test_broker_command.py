"""`fedil broker init` on real brokers: its accounts work, and each error is one line."""

import logging
import shlex
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from broker_config.brokers.definitions import VHOST, import_steps, rabbitmq_definitions, users_of
from broker_config.brokers.topology import DEAD_LETTERS, TASKS, site_user, tasks_queue, updates_queue
from broker_config.process.addresses import ADMIN_STORE_URL, BROKER_URL, MANAGEMENT_URL, STORE_URL
from broker_config.protocol.errors import BrokerRefused
from broker_config.stores import connect_store
from broker_config.transports import connect_transport
from ops.broker.management import Management
from ops.cli.main import main
from ops.local.services import Redis
from ops.local.services.process import LOOPBACK, free_ports
from tests.services import RabbitMQ, needed, private_rabbitmq, read_settings

RUN, SOON = "run", 60.0
DAY_MS = 24 * 3600 * 1000


@pytest.fixture(scope="module")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    with needed(lambda: private_rabbitmq(tmp_path_factory.mktemp("mq"), management=True)) as node:
        yield node


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Redis]:
    """With an aclfile, in which the default user is the administrator."""
    acl = tmp_path / "users.acl"
    acl.write_text("user default on >secret ~* &* +@all\n")
    with needed(lambda: Redis(tmp_path / "redis", options=["--aclfile", str(acl)])) as service:
        yield service


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (BROKER_URL, STORE_URL, MANAGEMENT_URL, ADMIN_STORE_URL):
        monkeypatch.delenv(name, raising=False)


def management_url(rabbitmq: RabbitMQ, login: str = "guest:guest") -> str:
    return rabbitmq.management_url.replace("//", f"//{login}@")


def store_url(redis: Redis) -> str:
    return redis.url.replace("//", "//:secret@")


def init(rabbitmq: RabbitMQ, redis: Redis, *more: str) -> int:
    brokers = ["--management", management_url(rabbitmq), "--store", store_url(redis)]
    return main(["broker", "init", *brokers, *more])


def shown(text: str) -> dict[str, dict[str, str]]:
    """User → its variables, parsed from the output of `init`."""
    users: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            users[line.split()[1]] = {}
        else:
            name, _, value = line.partition("=")
            users[list(users)[-1]][name] = value
    return users


def written(path: Path) -> dict[str, str]:
    """As a shell reads it"""
    return dict(word.split("=", 1) for word in shlex.split(path.read_text()))


def exchange_a_task(server: dict[str, str], site: dict[str, str], name: str) -> None:
    """Passes a task to the site and an update to the server, and commits a ledger, with these accounts."""
    with (
        closing(connect_transport(server["FEDIL_BROKER_URL"])) as ours,
        closing(connect_transport(site["FEDIL_BROKER_URL"])) as theirs,
        closing(connect_store(site["FEDIL_STORE_URL"], site_of=lambda _: name)) as ledgers,
    ):
        ours.declare(updates_queue(RUN, name))
        ours.publish(tasks_queue(name), [b"task"])
        task = theirs.receive(tasks_queue(name), SOON)
        assert task is not None
        ledgers.commit(RUN, 1, 1, b"ledger")
        theirs.publish(updates_queue(RUN, name), [b"update"])
        task.acknowledge()
        update = ours.receive(updates_queue(RUN, name), SOON)
        assert update is not None
        assert update.sender == site_user(name)
        update.acknowledge()


# init


def test_init_prints_working_accounts_for_all_sites(
    rabbitmq: RabbitMQ, redis: Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init(rabbitmq, redis, "--sites", "east,west") == 0
    users = shown(capsys.readouterr().out)
    assert list(users) == ["server", "site-east", "site-west"]
    for site in ("east", "west"):
        exchange_a_task(users["server"], users[site_user(site)], site)


def test_a_repeated_init_keeps_the_passwords_and_does_not_print_them(
    rabbitmq: RabbitMQ, redis: Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    init(rabbitmq, redis, "--sites", "again", "--rotate")
    users = shown(capsys.readouterr().out)
    assert init(rabbitmq, redis, "--sites", "again") == 0
    assert capsys.readouterr().out.splitlines() == [
        f"# {user} keeps its passwords (--rotate makes new ones)" for user in ("server", "site-again")
    ]
    exchange_a_task(users["server"], users["site-again"], "again")


def test_init_completes_an_interrupted_set_up(
    rabbitmq: RabbitMQ, redis: Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    first, _ = import_steps(rabbitmq_definitions(["half"], dict.fromkeys(users_of(["half"])), "interrupted"))
    Management(management_url(rabbitmq)).post("definitions", first)
    address = ("--broker-address", f"amqp://{LOOPBACK}:{rabbitmq.port}/interrupted")
    assert init(rabbitmq, redis, "--sites", "half", "--rotate", *address) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    users = shown(captured.out)
    exchange_a_task(users["server"], users["site-half"], "half")


def test_rotate_replaces_the_passwords(
    rabbitmq: RabbitMQ, redis: Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    init(rabbitmq, redis, "--sites", "turning", "--rotate")
    before = shown(capsys.readouterr().out)
    init(rabbitmq, redis, "--sites", "turning", "--rotate")
    after = shown(capsys.readouterr().out)
    exchange_a_task(after["server"], after["site-turning"], "turning")
    with pytest.raises(BrokerRefused, match="password"):
        connect_transport(before["site-turning"]["FEDIL_BROKER_URL"])
    with pytest.raises(BrokerRefused, match="password"):
        connect_store(before["site-turning"]["FEDIL_STORE_URL"])


def test_init_writes_environment_files_that_only_their_owner_can_read(
    rabbitmq: RabbitMQ, redis: Redis, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "deep" / "accounts"
    assert init(rabbitmq, redis, "--sites", "filed", "--out", str(out), "--rotate") == 0
    files = [out / "server.env", out / "site-filed.env"]
    assert capsys.readouterr().out.splitlines() == list(map(str, files))
    assert [stat.S_IMODE(path.stat().st_mode) for path in files] == [0o600, 0o600]
    before = [path.read_text() for path in files]
    exchange_a_task(written(files[0]), written(files[1]), "filed")
    assert init(rabbitmq, redis, "--sites", "filed", "--out", str(out)) == 0
    assert [path.read_text() for path in files] == before


def test_the_addresses_for_sites_can_be_given(
    rabbitmq: RabbitMQ, redis: Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    there = [
        "--broker-address",
        "amqps://mq.example/fedil?cafile=/ca.pem",
        "--store-address",
        "rediss://r.example/1",
    ]
    init(rabbitmq, redis, "--sites", "far", "--rotate", *there)
    site = shown(capsys.readouterr().out)["site-far"]
    assert site["FEDIL_BROKER_URL"].partition("@")[2] == "mq.example/fedil?cafile=/ca.pem"
    assert site["FEDIL_STORE_URL"].partition("@")[2] == "r.example/1"


def test_users_survive_a_killed_redis(
    rabbitmq: RabbitMQ, redis: Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    init(rabbitmq, redis, "--sites", "lasting", "--rotate")
    users = shown(capsys.readouterr().out)
    redis.kill()
    redis.start()
    exchange_a_task(users["server"], users["site-lasting"], "lasting")


def test_a_redis_without_an_aclfile_causes_a_warning(
    rabbitmq: RabbitMQ, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with needed(lambda: Redis(tmp_path / "forgetful")) as redis:
        arguments = ["--management", management_url(rabbitmq), "--store", redis.url, "--sites", "lost"]
        assert main(["broker", "init", *arguments]) == 0
        (line,) = capsys.readouterr().err.splitlines()
    assert "forgets these users when it restarts: give it an aclfile" in line


def test_sites_and_deadline_come_from_a_recipe(
    rabbitmq: RabbitMQ, redis: Redis, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "recipe.toml"
    federation = "deadline_seconds = 90000\nclients_per_round = 2\nsites = { up = 2, down = 3 }"
    recipe.write_text(f"[split]\nlabelled = 10\nclients = 5\n[federation]\n{federation}\n")
    assert init(rabbitmq, redis, "--recipe", str(recipe), "--out", str(tmp_path)) == 0
    assert main(["broker", "files", "--recipe", str(recipe), "--out", str(tmp_path)]) == 0
    assert "site-up.env" in capsys.readouterr().out
    assert read_settings((tmp_path / "rabbitmq.conf").read_text())["consumer_timeout"] == str(180_000_000)


def test_a_queue_of_an_earlier_version_works_and_causes_a_warning_with_the_remedy(
    rabbitmq: RabbitMQ,
    redis: Redis,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    name = tasks_queue("grown")
    earlier = {key: value for key, value in TASKS.arguments.items() if key != "x-message-ttl"}
    management = Management(management_url(rabbitmq))
    management.post("definitions", {"vhosts": [{"name": VHOST}]})
    management.post(
        "definitions",
        {
            "queues": [
                {"name": name, "vhost": VHOST, "durable": True, "auto_delete": False, "arguments": earlier}
            ],
        },
    )
    assert init(rabbitmq, redis, "--sites", "grown", "--rotate") == 0
    captured = capsys.readouterr()
    users = shown(captured.out)
    (line,) = captured.err.splitlines()
    assert f"x-message-ttl is not set, expected {TASKS.arguments['x-message-ttl']}" in line
    assert line.endswith(f"rabbitmqctl delete_queue --vhost {VHOST} {name}, then fedil broker init")
    exchange_a_task(users["server"], users["site-grown"], "grown")
    with (
        caplog.at_level(logging.WARNING),
        closing(connect_transport(users["server"]["FEDIL_BROKER_URL"])) as transport,
    ):
        transport.declare(name)
    (said,) = caplog.messages
    assert "made by an earlier version or by its operator" in said
    assert "x-message-ttl" in said
    check = ["broker", "check", "--management", management_url(rabbitmq), "--sites", "grown"]
    assert main(check) == 1
    wrong = [text for text in capsys.readouterr().out.splitlines() if text.startswith("wrong")]
    assert [text for text in wrong if name in text and "delete_queue" in text and "run fedil" not in text]
    # The remedy is sufficient.
    rabbitmq.ctl("delete_queue", "--vhost", VHOST, name)
    assert init(rabbitmq, redis, "--sites", "grown") == 0
    assert capsys.readouterr().err == ""
    main(check)
    assert not [text for text in capsys.readouterr().out.splitlines() if name in text]


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The error line of a command that fails without printing an account."""
    assert main(["broker", *arguments]) != 0
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


def test_errors_of_the_management_api_name_cause_and_remedy(
    rabbitmq: RabbitMQ, redis: Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    rest = ["--store", store_url(redis), "--sites", "a"]
    off = f"http://guest:guest@{LOOPBACK}:{free_ports(['off'])['off']}"
    said = error_of(capsys, "init", "--management", off, *rest)
    assert "rabbitmq-plugins enable rabbitmq_management" in said
    said = error_of(capsys, "init", "--management", management_url(rabbitmq, "guest:wrong-one"), *rest)
    assert "refused the user 'guest'" in said
    assert "wrong-one" not in said
    said = error_of(capsys, "init", "--management", f"http://guest:guest@{LOOPBACK}:{rabbitmq.port}", *rest)
    assert "is not the management API of RabbitMQ: check the port (15672, not 5672)" in said
    said = error_of(
        capsys, "init", "--management", management_url(rabbitmq).replace("http:", "https:"), *rest
    )
    assert "http:// against https://" in said
    for unreadable in ("mq.example:15672", "http://mq.example:port"):
        said = error_of(capsys, "init", "--management", unreadable, *rest)
        assert "write http://user:password@host:15672" in said


def test_a_user_without_the_tag_administrator_is_refused(
    rabbitmq: RabbitMQ, redis: Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    init(rabbitmq, redis, "--sites", "curious", "--rotate")
    password = (
        shown(capsys.readouterr().out)["site-curious"]["FEDIL_BROKER_URL"].split(":")[2].partition("@")[0]
    )
    address = management_url(rabbitmq, f"site-curious:{password}")
    said = error_of(capsys, "init", "--management", address, "--store", store_url(redis), "--sites", "a")
    assert "tag administrator" in said


def test_errors_of_redis_name_the_cause(
    rabbitmq: RabbitMQ, redis: Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    rest = ["--management", management_url(rabbitmq), "--sites", "a"]
    assert "wants a password" in error_of(capsys, "init", "--store", redis.url, *rest)
    redis.kill()
    assert "is away" in error_of(capsys, "init", "--store", store_url(redis), *rest)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["init", "--sites", "a"], "give --management URL, or set FEDIL_MANAGEMENT_URL"),
        (
            ["init", "--sites", "a", "--management", "http://x"],
            "give --store URL, or set FEDIL_ADMIN_STORE_URL",
        ),
        (["files", "--out", "x"], "give --sites a,b or --recipe R"),
        (["files", "--out", "x", "--sites", "a.b"], "'a.b' is not a valid name of a site"),
        (
            ["files", "--out", "x", "--sites", "a", "--broker-address", "mq:5672"],
            "--broker-address: write amqp://",
        ),
        (
            ["files", "--out", "x", "--sites", "a", "--store-address", "redis://u:p@r"],
            "without a user or password",
        ),
        (["check"], "give --broker, --store or --management"),
    ],
)
def test_missing_and_invalid_arguments_are_named(
    arguments: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in error_of(capsys, *arguments)
    assert list(tmp_path.iterdir()) == []


# Definitions and transport


def declared(management: Management, vhost: str) -> dict[str, list[dict[str, Any]]]:
    """The exported items of a virtual host, without its name."""
    found = management.get("definitions")
    kinds = {}
    for kind in ("queues", "exchanges", "bindings", "policies"):
        items = [{**item, "vhost": ""} for item in found[kind] if item["vhost"] == vhost]
        kinds[kind] = sorted(items, key=str)
    return kinds


def test_the_definitions_and_the_transport_declare_the_same(
    rabbitmq: RabbitMQ, caplog: pytest.LogCaptureFixture
) -> None:
    management = Management(management_url(rabbitmq))
    sites = ["north", "south"]
    queues = [DEAD_LETTERS, *map(tasks_queue, sites)]
    definitions = rabbitmq_definitions(sites, dict.fromkeys(users_of(sites), ""), "imported")
    others = ("users", "permissions", "topic_permissions", "policies", "parameters")
    management.post("definitions", definitions | {kind: [] for kind in others})
    rights = {"user": "guest", "configure": ".*", "write": ".*", "read": ".*"}
    management.post(
        "definitions",
        {
            "vhosts": [{"name": "declared"}],
            "permissions": [{**rights, "vhost": vhost} for vhost in ("declared", "imported")],
        },
    )
    with closing(connect_transport(rabbitmq.url_of("guest", "guest", "declared"))) as transport:
        transport.declare(*queues)
    imported = declared(management, "imported")
    assert {queue["name"] for queue in imported["queues"]} == set(queues)
    assert declared(management, "declared") == imported
    with (
        caplog.at_level(logging.WARNING),
        closing(connect_transport(rabbitmq.url_of("guest", "guest", "imported"))) as transport,
    ):
        transport.declare(*queues)
    assert caplog.messages == []
    assert declared(management, "imported") == imported
    # Importing definitions over declared queues changes nothing either.
    definitions = rabbitmq_definitions(sites, {}, "declared")
    management.post("definitions", definitions | {kind: [] for kind in others})
    assert declared(management, "declared") == imported
