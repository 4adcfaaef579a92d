"""`fedil broker files`: the files, and brokers that start with them."""

import json
import stat
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from broker_config.brokers.definitions import consumer_timeout_seconds
from ops.cli.main import main
from ops.local.services import Redis
from ops.local.services.process import LOOPBACK, free_ports
from tests.certificates import Authority
from tests.integration.test_broker_command import exchange_a_task, written
from tests.services import RabbitMQ, needed, private_rabbitmq

SECRET = ["admin.env", "server.env", "site-north.env", "site-south.env"]
READ_BY_BROKERS = ["definitions.json", "rabbitmq.conf", "redis.conf", "users.acl"]


def write(out: Path, *more: str) -> dict[str, str]:
    assert main(["broker", "files", "--sites", "north,south", "--out", str(out), *more]) == 0
    return {path.name: path.read_text() for path in out.iterdir()}


def test_only_files_with_passwords_are_private(tmp_path: Path) -> None:
    assert sorted(write(tmp_path)) == sorted(SECRET + READ_BY_BROKERS)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert {modes[name] for name in SECRET} == {0o600}
    assert all(modes[name] & 0o044 == 0o044 for name in READ_BY_BROKERS)
    passwords = [urlsplit(url).password or "" for name in SECRET for url in written(tmp_path / name).values()]
    assert len(set(passwords)) == 8
    public = "".join((tmp_path / name).read_text() for name in READ_BY_BROKERS)
    assert not any(password in public for password in passwords)


def test_files_written_again_stay_the_same_and_a_new_site_keeps_the_others(tmp_path: Path) -> None:
    first = write(tmp_path)
    assert write(tmp_path) == first
    wider = write(tmp_path, "--sites", "north,south,west")
    assert {name: wider[name] for name in SECRET} == {name: first[name] for name in SECRET}
    before, after = (json.loads(files["definitions.json"])["users"] for files in (first, wider))
    assert [user for user in after if user["name"] != "site-west"] == before


def test_a_shell_reads_an_environment_file_with_several_url_options(tmp_path: Path) -> None:
    options = ("--broker-address", "amqps://rabbitmq:5671/fedil?cafile=/a/ca.pem&certfile=/a/b c.pem")
    first = write(tmp_path, *options)
    assert write(tmp_path, *options) == first
    script = 'set -a; . "$1"; exec env'
    said = subprocess.run(
        ["sh", "-c", script, "sh", tmp_path / "site-north.env"], stdout=subprocess.PIPE, text=True, check=True
    )
    variables = dict(line.split("=", 1) for line in said.stdout.splitlines() if line.startswith("FEDIL_"))
    url = urlsplit(variables["FEDIL_BROKER_URL"])
    assert (url.username, url.query) == ("site-north", "cafile=/a/ca.pem&certfile=/a/b c.pem")
    assert urlsplit(variables["FEDIL_STORE_URL"]).hostname == "redis"


def test_rotate_replaces_all_passwords(tmp_path: Path) -> None:
    first, second = write(tmp_path), write(tmp_path, "--rotate")
    assert [name for name in (*SECRET, "definitions.json", "users.acl") if first[name] == second[name]] == []


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    return Authority(tmp_path / "tls").sign("brokers", host="localhost")[0].parent


def without(text: str, *keys: str) -> str:
    """A configuration without ports and paths that exist only in a container."""
    return "".join(f"{line}\n" for line in text.splitlines() if line.partition(" ")[0] not in keys)


@contextmanager
def brokers_with_files(folder: Path, out: Path, ports: Mapping[str, int]) -> Iterator[tuple[RabbitMQ, Redis]]:
    """RabbitMQ and Redis as these files, written with --tls, configure them, but for their ports"""
    files = {path.name: path.read_text() for path in out.iterdir()}
    config = without(files["rabbitmq.conf"], "listeners.tcp", "listeners.ssl.default", "load_definitions")
    config += f"listeners.ssl.1 = {LOOPBACK}:{ports['amqps']}\n"
    redis_conf = folder / "redis.conf"
    redis_conf.write_text(without(files["redis.conf"], "port", "tls-port", "dir", "aclfile"))
    options = ["--include", str(redis_conf), "--aclfile", str(out / "users.acl"), "--tls-port"]
    options.append(str(ports["rediss"]))
    definitions = out / "definitions.json"
    with (
        needed(lambda: private_rabbitmq(folder / "mq", config=config, definitions=definitions)) as rabbitmq,
        needed(lambda: Redis(folder / "redis", options=options)) as redis,
    ):
        yield rabbitmq, redis


def test_brokers_start_with_these_files_and_speak_tls(tmp_path: Path, certificates: Path) -> None:
    ports = free_ports(["amqps", "rediss"])
    addresses = (
        *("--broker-address", f"amqps://localhost:{ports['amqps']}?cafile={certificates}/ca.pem"),
        *("--store-address", f"rediss://localhost:{ports['rediss']}/0?ssl_ca_certs={certificates}/ca.pem"),
    )
    out = tmp_path / "files"
    write(out, "--tls", str(certificates), "--deadline", "5000", *addresses)
    with brokers_with_files(tmp_path, out, ports) as (rabbitmq, _):
        for site in ("north", "south"):
            exchange_a_task(written(out / "server.env"), written(out / f"site-{site}.env"), site)
        timeout = rabbitmq.ctl("eval", "application:get_env(rabbit, consumer_timeout).").strip()
        assert timeout == f"{{ok,{round(1000 * consumer_timeout_seconds(5000.0))}}}"
        users = rabbitmq.ctl("--silent", "list_users").splitlines()
        assert sorted(line.split()[0] for line in users) == ["admin", "server", "site-north", "site-south"]


def test_mutual_is_for_tls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["broker", "files", "--sites", "north", "--out", str(tmp_path), "--mutual"]) == 2
    assert capsys.readouterr().err == "fedil: --mutual is for --tls DIR\n"
    files = write(tmp_path, "--tls", "/tls", "--mutual")
    assert "ssl_options.fail_if_no_peer_cert = true" in files["rabbitmq.conf"]
    assert "tls-auth-clients yes" in files["redis.conf"]
    assert "certfile=/tls/client.pem" in files["site-north.env"]
    assert "ssl_keyfile=/tls/client.key" in files["site-north.env"]
