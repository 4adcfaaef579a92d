"""`fedil broker check`: correctly configured brokers pass, and each fault is reported in one line."""

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis as Client

from broker_config.brokers.definitions import ADMIN_USER, permission, rabbitmq_password_hash, redis_rules
from broker_config.process.addresses import BROKER_URL, MANAGEMENT_URL, STORE_URL
from ops.cli.main import main
from ops.local.services import Redis
from ops.local.services.process import LOOPBACK, free_ports, wait_until
from tests.integration.configured_brokers import Brokers, configured_brokers, password_of, put_rabbitmqctl
from tests.services import needed, rabbitmqctl


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with configured_brokers(tmp_path_factory.mktemp("brokers"), "north", "south") as brokers:
        yield brokers


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    for name in (BROKER_URL, STORE_URL, MANAGEMENT_URL):
        monkeypatch.delenv(name, raising=False)
    # The system's rabbitmqctl needs seconds to fail, because it cannot connect to the private node.
    put_rabbitmqctl(tmp_path_factory.mktemp("bin"), "exit 1", monkeypatch)


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> "Check":
    return Check(capsys)


class Check:
    """Runs the command and returns its exit code and its lines by verdict."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, dict[str, list[str]]]:
        code = main(["broker", "check", *arguments])
        found: dict[str, list[str]] = {"ok": [], "wrong": [], "unknown": []}
        for line in self._capsys.readouterr().out.splitlines():
            verdict, _, text = line.partition(": ")
            found[verdict].append(text)
        return code, found


def management_url(brokers: Brokers) -> str:
    return brokers.rabbitmq.management_url.replace("//", f"//{ADMIN_USER}:{password_of(ADMIN_USER)}@")


@pytest.fixture
def _with_rabbitmqctl(brokers: Brokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rabbitmqctl that connects to the private node."""
    program = shlex.join(rabbitmqctl())
    home, epmd = brokers.rabbitmq.directory / "home", brokers.rabbitmq.ports["epmd"]
    put_rabbitmqctl(tmp_path, f'HOME={home} ERL_EPMD_PORT={epmd} exec {program} "$@"', monkeypatch)


@pytest.mark.parametrize(("user", "called"), [("server", "a server"), ("site-north", "a site")])
def test_configured_brokers_pass_for_the_server_and_for_a_site(
    brokers: Brokers, lines: Check, user: str, called: str
) -> None:
    code, found = lines("--broker", brokers.broker_url(user), "--store", brokers.store_url(user))
    assert (code, found["wrong"]) == (0, [])
    rights, messages, keeps, clock = found["ok"]
    assert rights.endswith(f"the rights of {called}")
    assert messages.endswith("takes bodies in messages of 4194304 bytes")
    assert keeps.endswith(f"(alone) keeps what it confirms, and has the rights of {called}")
    assert clock.endswith("has the time of this machine")


@pytest.mark.usefixtures("_with_rabbitmqctl")
def test_an_administrator_sees_permissions_and_the_timeout(brokers: Brokers, lines: Check) -> None:
    code, found = lines("--management", management_url(brokers))
    rights, alarms, clock, timeout = found["ok"]
    assert (code, found["wrong"], found["unknown"]) == (0, [], [])
    assert rights.endswith("has the rights and queues of north, south")
    assert alarms.endswith("has no alarm; nodes that run: 1")
    assert clock.endswith("has the time of this machine")
    assert timeout.endswith("consumer_timeout is 86400000")


@pytest.mark.usefixtures("_with_rabbitmqctl")
def test_a_timeout_that_is_too_short_for_the_deadline_is_wrong(brokers: Brokers, lines: Check) -> None:
    code, found = lines("--management", management_url(brokers), "--deadline", "90000")
    assert (code, len(found["wrong"])) == (1, 1)
    assert "consumer_timeout is 86400000: set it to at least 180000000" in found["wrong"][0]


def test_without_rabbitmqctl_the_timeout_is_unknown(
    brokers: Brokers, lines: Check, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    code, found = lines("--management", management_url(brokers), "--deadline", "3600")
    assert (code, found["wrong"]) == (0, [])
    assert "consumer_timeout in its rabbitmq.conf must be at least 7200000" in found["unknown"][0]


def test_a_site_that_was_not_set_up_is_missing(brokers: Brokers, lines: Check) -> None:
    code, found = lines("--management", management_url(brokers), "--sites", "west")
    assert code == 1
    wrong = "\n".join(found["wrong"])
    for item in (
        "permission of site-west",
        "topic permission of site-west on fedil.bodies",
        "exchange fedil.site.west",
        "queue fedil.tasks.west",
        "binding of fedil.tasks.west",
    ):
        assert f"{item} is missing: run fedil broker init" in wrong


def test_changed_permissions_are_wrong(brokers: Brokers, lines: Check) -> None:
    ours = permission("site-south")
    try:
        brokers.management.post(
            "definitions", {"permissions": [{**ours, "configure": ".*", "write": ".*", "read": ".*"}]}
        )
        code, found = lines(
            "--management", management_url(brokers), "--broker", brokers.broker_url("site-south")
        )
        assert code == 1
        assert any(
            "permission of site-south differs (configure is .*, expected ^(" in text
            for text in found["wrong"]
        )
        assert any("the user of site 'south' may lead runs" in text for text in found["wrong"])
        brokers.management.post("definitions", {"permissions": [{**ours, "write": "^$"}]})
        code, found = lines("--broker", brokers.broker_url("site-south"))
        assert code == 1
        assert any(
            "refused the user 'site-south'" in text and "fedil.site.south" in text for text in found["wrong"]
        )
    finally:
        brokers.management.post("definitions", {"permissions": [ours]})


def user(name: str, password: str, *tags: str) -> dict[str, object]:
    hashed = rabbitmq_password_hash(name, password)
    algorithm = "rabbit_password_hashing_sha256"
    return {"name": name, "password_hash": hashed, "hashing_algorithm": algorithm, "tags": tags}


def test_a_site_with_a_tag_is_wrong(brokers: Brokers, lines: Check) -> None:
    name, password = "site-south", password_of("site-south")
    brokers.management.post("definitions", {"users": [user(name, password, "monitoring")]})
    try:
        code, found = lines("--management", management_url(brokers))
    finally:
        brokers.management.post("definitions", {"users": [user(name, password)]})
    assert (code, len(found["wrong"])) == (1, 1)
    assert found["wrong"][0].endswith("site-south has tags: rabbitmqctl set_user_tags site-south")


def test_a_user_guest_with_its_default_password_is_wrong(brokers: Brokers, lines: Check) -> None:
    nothing = {"user": "guest", "vhost": "fedil", "configure": "^$", "write": "^$", "read": "^$"}
    brokers.management.post("definitions", {"users": [user("guest", "guest")], "permissions": [nothing]})
    try:
        code, found = lines("--broker", brokers.broker_url("server"))
    finally:
        brokers.rabbitmq.ctl("delete_user", "guest")
    assert (code, len(found["wrong"])) == (1, 1)
    assert found["wrong"][0].endswith("rabbitmqctl delete_user guest")


def test_a_broker_with_an_alarm_is_wrong_after_seconds(brokers: Brokers, lines: Check) -> None:
    brokers.rabbitmq.ctl("set_vm_memory_high_watermark", "absolute", "1MB")
    try:
        code, found = lines("--broker", brokers.broker_url("server"))
    finally:
        brokers.rabbitmq.ctl("set_vm_memory_high_watermark", "0.5")
    assert (code, found["ok"]) == (1, [])
    assert "has blocked publishing (memory or disk alarm) for longer than 5 s" in found["wrong"][0]


def test_a_redis_that_loses_ledgers_is_wrong(lines: Check, tmp_path: Path) -> None:
    careless = ["--appendonly", "no", "--maxmemory-policy", "allkeys-lru"]
    with needed(lambda: Redis(tmp_path, options=careless)) as redis:
        code, found = lines("--store", redis.url)
    assert (code, len(found["ok"])) == (1, 1)
    assert found["ok"][0].endswith("has the time of this machine")
    keeping, evicting, open_to_all = found["wrong"]
    assert keeping.endswith("redis-cli CONFIG SET appendonly yes, and in redis.conf")
    assert evicting.endswith("redis-cli CONFIG SET maxmemory-policy noeviction, and in redis.conf")
    assert open_to_all.endswith("ACL SETUSER default off")


def test_a_node_of_a_redis_cluster_is_wrong(lines: Check, tmp_path: Path) -> None:
    with needed(lambda: Redis(tmp_path, options=["--cluster-enabled", "yes"])) as redis:
        with Client.from_url(redis.url) as admin:
            admin.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            assert wait_until(
                lambda: "cluster_state:ok" in str(admin.execute_command("CLUSTER", "INFO")), 30.0
            )
        code, found = lines("--store", redis.url)
    assert (code, len(found["ok"])) == (1, 1)
    assert found["ok"][0].endswith("has the time of this machine")
    assert "it is a node of a cluster: write redis+cluster://user:password@host1" in found["wrong"][0]


def test_the_store_is_named_with_its_own_version(brokers: Brokers, lines: Check) -> None:
    with Client.from_url(brokers.store_url(ADMIN_USER)) as admin:
        info = admin.info()
    valkey = info.get("valkey_version")
    name = f"Valkey {valkey}" if valkey else f"Redis {info['redis_version']}"
    _, found = lines("--store", brokers.store_url("server"))
    assert found["ok"][0].startswith(f"{name} at {LOOPBACK}:")


def test_a_missing_aclfile_is_wrong_for_an_administrator_and_unknown_for_others(
    lines: Check, tmp_path: Path
) -> None:
    with needed(lambda: Redis(tmp_path)) as redis:
        with Client.from_url(redis.url) as admin:
            admin.execute_command("ACL", "SETUSER", "admin", "on", ">word", *redis_rules("admin"))
            admin.execute_command("ACL", "SETUSER", "server", "on", ">word", *redis_rules("server"))
            admin.execute_command("ACL", "SETUSER", "default", "off")
        code, found = lines("--store", redis.url.replace("//", "//admin:word@"))
        assert (code, found["unknown"]) == (1, [])
        assert found["wrong"][0].endswith("give it an aclfile, then run fedil broker init again")
        code, found = lines("--store", redis.url.replace("//", "//server:word@"))
        assert (code, found["wrong"]) == (0, [])
        assert "it must have an aclfile" in found["unknown"][0]


def test_an_administrator_of_a_redis_with_an_aclfile_gets_no_warning(brokers: Brokers, lines: Check) -> None:
    code, found = lines("--store", brokers.store_url(ADMIN_USER))
    assert (code, found["wrong"], found["unknown"]) == (0, [], [])


def test_a_refused_login_names_the_missing_aclfile_as_a_possible_cause(lines: Check, tmp_path: Path) -> None:
    with needed(lambda: Redis(tmp_path)) as redis:
        code, found = lines("--store", redis.url.replace("//", "//server:word@"))
    assert code == 1
    assert "does not let in user 'server'" in found["wrong"][0]
    assert found["wrong"][0].endswith("then run fedil broker init again")


def test_a_redis_that_is_full_is_wrong(lines: Check, tmp_path: Path) -> None:
    with needed(lambda: Redis(tmp_path, options=["--maxmemory", "1"])) as redis:
        code, found = lines("--store", redis.url)
    assert (code, len(found["ok"])) == (1, 1)
    assert found["ok"][0].endswith("has the time of this machine")
    assert "it is full and refuses to write: redis-cli CONFIG SET maxmemory BYTES" in found["wrong"][0]


def test_a_site_that_can_read_ledgers_of_other_sites_is_wrong(lines: Check, tmp_path: Path) -> None:
    acl = tmp_path / "users.acl"
    acl.write_text("user default off\nuser site-north on >word ~* +@all\n")
    with needed(lambda: Redis(tmp_path / "redis", options=["--aclfile", str(acl)])) as redis:
        code, found = lines("--store", redis.url.replace("//", "//site-north:word@"))
    assert (code, len(found["wrong"])) == (1, 1)
    assert "may read the ledgers of other sites" in found["wrong"][0]


def test_an_unreachable_broker_is_wrong_and_the_others_are_still_checked(
    brokers: Brokers, lines: Check
) -> None:
    nowhere = f"amqp://server:word@{LOOPBACK}:{free_ports(['nowhere'])['nowhere']}/fedil"
    code, found = lines("--broker", nowhere, "--store", brokers.store_url("server"))
    assert (code, len(found["wrong"]), len(found["ok"])) == (1, 1, 2)
    assert "no RabbitMQ answers" in found["wrong"][0]


@pytest.mark.parametrize("option", ["--broker", "--store", "--management"])
def test_an_address_of_another_scheme_is_wrong(lines: Check, option: str) -> None:
    code, found = lines(option, "memory:///somewhere")
    assert (code, len(found["wrong"])) == (1, 1)
    assert "write " in found["wrong"][0]


def test_no_password_is_shown(brokers: Brokers, capsys: pytest.CaptureFixture[str]) -> None:
    broker, store = brokers.broker_url("server"), brokers.store_url("server")
    wrong = [url.replace("word-of-server", "s3cret") for url in (broker, store, management_url(brokers))]
    assert main(["broker", "check", "--broker", wrong[0], "--store", wrong[1], "--management", wrong[2]]) == 1
    captured = capsys.readouterr()
    # One line per broker, and three more of the management: the administrator's password is right.
    assert captured.out.count("\n") == 3 + 3
    assert "s3cret" not in captured.out + captured.err
