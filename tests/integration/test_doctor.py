"""`fedil doctor` with real brokers: what limits a recipe's model, and each fault with the command that mends it."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from broker_config.brokers.definitions import ADMIN_USER, SiteLimits
from ops.cli.main import main
from ops.doctor.brokers import BrokerAddresses, check_brokers
from ops.local.services import Redis
from ops.local.services.process import wait_until
from ops.plan.trial import Sizes
from tests.integration.configured_brokers import Brokers, configured_brokers, put_rabbitmqctl
from tests.services import needed
from tests.unit.ops.plans import SIZES

GIB = 1 << 30


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    limits = SiteLimits(update_bytes=8 << 20)
    with configured_brokers(tmp_path_factory.mktemp("brokers"), "default", limits=limits) as brokers:
        yield brokers


@pytest.fixture(autouse=True)
def _without_rabbitmqctl(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's needs seconds to find that it cannot connect to the private node."""
    put_rabbitmqctl(tmp_path_factory.mktemp("bin"), "exit 1", monkeypatch)


def wrong_with(addresses: BrokerAddresses, sizes: Sizes | None = None) -> list[str]:
    return [found.text for found in check_brokers(addresses, ("default",), 600.0, sizes) if found.is_wrong]


def test_good_brokers_and_a_small_recipe_pass(brokers: Brokers, capsys: pytest.CaptureFixture[str]) -> None:
    named = ["--broker", brokers.broker_url("server"), "--store", brokers.store_url("server")]
    named += ["--management", brokers.management_url, "--recipe", "digits", "--device", "cpu"]
    code = main(["doctor", "--json", *named])
    found = json.loads(capsys.readouterr().out)
    texts = [each["text"] for each in found["findings"]]
    assert (code, found["ok"]) == (0, True), texts
    for expected in (
        "takes this recipe's largest body, of 208248 bytes, in messages: 1",
        "has the rights and queues of default",
        "has no alarm; nodes that run: 1",
        "takes updates of 104440 bytes",
        "(alone) keeps what it confirms, and has the rights of a server",
    ):
        assert any(text.endswith(expected) for text in texts), expected
    assert sum(text.endswith("has the time of this machine") for text in texts) == 2


def test_an_update_that_the_site_may_not_send_names_the_bound_and_the_command(brokers: Brokers) -> None:
    (wrong,) = wrong_with(BrokerAddresses(None, None, brokers.management_url), SIZES)
    assert wrong.endswith(
        "policy fedil-bodies allows 8388608 bytes, and an update has 26280600: fedil broker init --largest-update "
        "0.1, with the same sites"
    )


def test_a_message_limit_that_is_too_small_for_the_model_names_the_setting(brokers: Brokers) -> None:
    limit = "application:set_env(rabbit, max_message_size, {})."
    addresses = BrokerAddresses(brokers.broker_url("server"), None, None)
    brokers.rabbitmq.ctl("eval", limit.format(16 << 10))
    try:
        (wrong,) = wrong_with(addresses, replace(SIZES, model=2 * GIB))
        assert wrong_with(addresses, SIZES) == []
    finally:
        brokers.rabbitmq.ctl("eval", limit.format(16 << 20))
    assert "max_message_size is too small for a body of 2147483648 bytes in 65536 messages" in wrong
    assert wrong.endswith("set max_message_size = 65536 or more in its rabbitmq.conf")
    assert wrong_with(addresses, replace(SIZES, model=2 * GIB)) == []


def test_an_alarm_is_told_with_the_node_and_its_numbers(brokers: Brokers) -> None:
    addresses = BrokerAddresses(None, None, brokers.management_url)
    brokers.rabbitmq.ctl("set_disk_free_limit", "100000GB")
    try:  # RabbitMQ's management looks at its nodes every five seconds
        assert wait_until(lambda: wrong_with(addresses) != [], 60.0)
        (wrong,) = wrong_with(addresses)
    finally:
        brokers.rabbitmq.ctl("set_disk_free_limit", "50MB")
    assert "has a disk alarm, and takes no messages (" in wrong
    assert "set_disk_free_limit 500MB" in wrong


def test_a_redis_that_evicts_or_writes_late_is_wrong(tmp_path: Path) -> None:
    careless = ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru", "--appendfsync", "everysec"]
    with needed(lambda: Redis(tmp_path, options=careless)) as redis:
        evicts, late, _ = wrong_with(BrokerAddresses(None, redis.url, None))
    assert evicts.endswith("redis-cli CONFIG SET maxmemory-policy noeviction, and in redis.conf")
    assert late.endswith("redis-cli CONFIG SET appendfsync always, and in redis.conf")


def test_an_administrator_of_redis_passes(brokers: Brokers) -> None:
    assert wrong_with(BrokerAddresses(None, brokers.store_url(ADMIN_USER), None)) == []
