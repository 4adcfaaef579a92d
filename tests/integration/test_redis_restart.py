"""After kill -9 a Redis with ACL users replays all that it confirmed. It replays its append-only file as the user
`default`, which operators disable, and skips transactions that this user has no permission for (redis/redis#14541)."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis as Client

from broker_config.brokers.definitions import redis_acl, redis_password_hash
from broker_config.brokers.topology import workers_topic
from broker_config.stores import connect_store
from broker_config.stores.redis import server_check
from ops.local.services import Redis
from tests.services import Service, needed

RUN = "run"
USERS = ("server", "site-north", "admin")
OURS = redis_acl({user: redis_password_hash("word") for user in USERS})
WITHOUT_PERMISSIONS = "\n".join(["user default off", *OURS.splitlines()[1:], ""])


@contextmanager
def redis_with(acl: str, directory: Path) -> Iterator[Redis]:
    file = directory / "users.acl"
    file.write_text(acl)
    with needed(lambda: Redis(directory / "redis", options=["--aclfile", str(file)])) as redis:
        yield redis


def url_of(redis: Redis, user: str) -> str:
    return redis.url.replace("//", f"//{user}:word@")


@pytest.mark.parametrize("acl", [OURS, WITHOUT_PERMISSIONS], ids=["ours", "an operator's"])
def test_ledgers_survive_sigkill_with_the_default_user_off(tmp_path: Path, acl: str) -> None:
    with redis_with(acl, tmp_path) as redis:
        with (
            closing(connect_store(url_of(redis, "server"), site_of=lambda _: "north")) as server,
            closing(connect_store(url_of(redis, "site-north"), site_of=lambda _: "north")) as north,
        ):
            server.begin(RUN, "north")
            for activation in (1, 2, 3, 4):
                server.open_activation(RUN, 7, activation)
                north.commit(RUN, 7, activation, b"ledger %d" % activation)
            north.announce(workers_topic("north"), "worker", {"state": "idle"}, 60.0)
        redis.kill()
        redis.start()
        with closing(connect_store(url_of(redis, "server"), site_of=lambda _: "north")) as server:
            assert server.count(RUN, "north", 0) == 1
            assert server.latest(RUN) == {7: (4, b"ledger 4")}
            assert server.read(RUN, 7, 4) == b"ledger 3"
            assert server.notices(workers_topic("north")) == {"worker": {"state": "idle"}}


def test_with_our_acl_larger_transactions_survive_too(tmp_path: Path) -> None:
    with redis_with(OURS, tmp_path) as redis:
        with closing(client_of(redis)) as client, client.pipeline() as transaction:
            transaction.set("a", 1).set("b", 2).execute()
        redis.kill()
        redis.start()
        with closing(client_of(redis)) as client:
            assert client.mget("a", "b") == [b"1", b"2"]


def test_a_redis_that_is_too_old_is_logged(
    redis: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    connect_store(redis.url).close()
    assert not caplog.records
    monkeypatch.setattr(server_check, "MIN_VERSION", "99.10")
    connect_store(redis.url).close()
    assert "may lose ledgers when it restarts: use 99.10 or later" in caplog.text


def client_of(redis: Redis) -> Any:
    return Client.from_url(url_of(redis, "admin"))
