"""The generated configuration of the brokers; tests/integration applies it to real brokers."""

import base64
import hashlib
import re

import pytest

from broker_config.brokers.definitions import (
    SERVER_USER,
    SiteLimits,
    check_sites,
    consumer_timeout_seconds,
    import_steps,
    policies,
    rabbitmq_conf,
    rabbitmq_definitions,
    rabbitmq_password_hash,
    redis_acl,
    redis_conf,
    redis_password_hash,
    server_rights,
    site_rights,
    users_of,
)
from broker_config.brokers.topology import (
    DEAD_LETTERS,
    QUEUE_KINDS,
    REPLICATED,
    body_queue,
    lead_queue,
    models_queue,
    site_user,
    tasks_queue,
    updates_queue,
)
from broker_config.protocol.errors import FedILError
from fedil_model.errors import LearningError
from tests.federation import blobs_recipe
from tests.services import read_settings

NAMES = [
    "a",
    "North-1",
    "9_",
    "a" * 40,
    "",
    "a" * 41,
    "-a",
    "_a",
    "a.b",
    "a*",
    "a b",
    "a\n",
    "ä",
    "a/b",
    "{a}",
]


@pytest.mark.parametrize("name", NAMES)
def test_brokers_and_recipes_accept_the_same_names_of_sites(name: str) -> None:
    def accepts(check: object) -> bool:
        try:
            check()  # type: ignore[operator]
        except (FedILError, LearningError):
            return False
        return True

    by_recipe = accepts(lambda: blobs_recipe(federation={"sites": {name: 6}}))
    assert accepts(lambda: check_sites([name])) == by_recipe


def test_a_site_named_twice_is_one_site() -> None:
    assert users_of(["b", "a", "b"]) == (SERVER_USER, "site-b", "site-a")


OTHERS = ("ab", "a-b", "b", "A")
"""Names similar to that of site a"""


@pytest.mark.parametrize("other", OTHERS)
def test_permissions_of_a_site_do_not_match_names_of_other_sites(other: str) -> None:
    rights = site_rights("a")
    foreign = [
        tasks_queue(other),
        f"fedil.site.{other}",
        body_queue(site_user(other), "0" * 32),
        f"x{tasks_queue('a')}",
        f"{tasks_queue('a')}x",
    ]
    for pattern in (rights.configure, rights.write, rights.read):
        assert [name for name in foreign if re.search(pattern, name)] == []
    for patterns in rights.topics.values():
        assert [
            key for pattern in patterns for key in (f"site-{other}.0", "#", "*.0") if re.search(pattern, key)
        ] == []


def test_a_site_has_no_permissions_on_names_of_the_server() -> None:
    rights = site_rights("a")
    servers = [
        "fedil.models",
        "fedil.lead",
        lead_queue("r"),
        updates_queue("r"),
        models_queue("r"),
        "amq.default",
        "",
    ]
    assert [
        name for name in servers if re.search(rights.write, name) or re.search(rights.configure, name)
    ] == []
    secret = [lead_queue("r"), updates_queue("r"), DEAD_LETTERS, body_queue("site-a", "0"), "fedil.site.a"]
    assert [name for name in secret if re.search(rights.read, name)] == []


def test_the_server_has_permissions_on_all_names_of_fedil_only() -> None:
    rights = server_rights()
    for pattern in (rights.configure, rights.write, rights.read):
        assert re.search(pattern, lead_queue("r"))
        assert not re.search(pattern, "amq.default")
        assert not re.search(pattern, "others.fedil.x")


def test_only_users_with_a_new_password_are_defined_but_all_get_permissions() -> None:
    definitions = rabbitmq_definitions(["a", "b"], {"server": None, "site-a": "hash", "site-b": None}, "v")
    assert [user["name"] for user in definitions["users"]] == ["site-a"]
    assert [entry["user"] for entry in definitions["permissions"]] == ["server", "site-a", "site-b"]
    places = ("permissions", "queues", "bindings", "exchanges")
    assert {entry["vhost"] for kind in places for entry in definitions[kind]} == {"v"}
    assert [queue["name"] for queue in definitions["queues"]] == [
        DEAD_LETTERS,
        tasks_queue("a"),
        tasks_queue("b"),
    ]


def test_exchanges_are_imported_before_the_topic_permissions_that_name_them() -> None:
    definitions = rabbitmq_definitions(["a"], {"server": None, "site-a": "hash"})
    first, then = import_steps(definitions)
    assert definitions["topic_permissions"]
    assert {rule["exchange"] for rule in then["topic_permissions"]} <= names(first["exchanges"])
    assert "topic_permissions" not in first


def test_the_import_steps_leave_nothing_out_and_bring_users_and_site_exchanges_last() -> None:
    definitions = rabbitmq_definitions(["a"], {"server": None, "site-a": "hash"})
    first, then = import_steps(definitions)
    for kind, items in definitions.items():
        assert [item for item in items if item not in first.get(kind, []) + then.get(kind, [])] == []
    assert {"users", "permissions", "bindings"}.isdisjoint(first)
    assert names(then["exchanges"]) - names(first["exchanges"]) == {"fedil.site.a"}


def test_the_queues_of_a_cluster_outlive_a_node() -> None:
    definitions = rabbitmq_definitions(["a"], {"server": None}, replicated=True)
    assert {queue["arguments"]["x-queue-type"] for queue in definitions["queues"]} == {"quorum"}
    assert REPLICATED.name in names(definitions["exchanges"])
    assert "fedil.replicated" not in names(rabbitmq_definitions(["a"], {"server": None})["exchanges"])
    for kind in QUEUE_KINDS:
        replicated = kind.on_cluster(True)
        assert replicated.type in ("quorum", "stream")
        assert replicated.options.items() >= kind.options.items()
        # RabbitMQ 4 drops a message that was returned 20 times, unless a limit is set.
        assert replicated.has_delivery_limit == (replicated.type == "quorum")
        assert kind.on_cluster(False) == kind


def names(items: list[dict[str, str]]) -> set[str]:
    return {item["name"] for item in items}


def test_a_password_hash_is_salted_by_the_user_name_and_reproducible() -> None:
    first = rabbitmq_password_hash("site-a", "word")
    assert first == rabbitmq_password_hash("site-a", "word")
    assert first != rabbitmq_password_hash("site-b", "word")
    raw = base64.b64decode(first)
    assert raw[4:] == hashlib.sha256(raw[:4] + b"word").digest()


def test_all_redis_users_need_a_password() -> None:
    hashed = redis_password_hash("word")
    default, site, without_hash = redis_acl({"site-a": hashed, "site-b": None}).splitlines()
    assert default.startswith("user default off")
    assert f"on #{hashed} " in site
    assert "#" not in without_hash
    assert "nopass" not in site + without_hash


def test_the_consumer_timeout_is_derived_from_the_deadline() -> None:
    assert consumer_timeout_seconds(7200.0) == 14400.0
    # RabbitMQ's default covers the default deadline.
    assert consumer_timeout_seconds(1.0) == consumer_timeout_seconds(1800.0) == 1800.0
    assert read_settings(rabbitmq_conf(7200.0))["consumer_timeout"] == "14400000"


def test_a_policy_sets_the_consumer_timeout_in_versions_that_support_it() -> None:
    for version in ((), (3, 11, 28)):
        before = policies(SiteLimits(), deadline_seconds=7200.0, version=version)
        assert not any("consumer-timeout" in policy["definition"] for policy in before)
    policy = policies(SiteLimits(), deadline_seconds=7200.0, version=(3, 12, 0))[0]
    assert policy["definition"]["consumer-timeout"] == 14400000
    names = [tasks_queue("a"), updates_queue("r"), lead_queue("r"), DEAD_LETTERS]
    assert [bool(re.search(policy["pattern"], name)) for name in names] == [True, True, False, False]


def test_every_queue_that_a_site_writes_to_has_one_policy_that_bounds_its_bytes() -> None:
    found = policies(SiteLimits(update_bytes=7))
    written = [tasks_queue("a"), updates_queue("r", "a"), body_queue("site-a", "0" * 32), DEAD_LETTERS]
    for name in written:
        (policy,) = (policy for policy in found if re.search(policy["pattern"], name))
        assert policy["definition"]["max-length-bytes"] > 0
    assert not [
        policy
        for policy in found
        for name in (lead_queue("r"), models_queue("r"))
        if re.search(policy["pattern"], name)
    ]
    assert policies(SiteLimits(update_bytes=7))[1]["definition"] == {
        "max-length-bytes": 7,
        "overflow": "reject-publish",
    }


def test_sites_and_nobody_else_have_limits_of_connections() -> None:
    hashes = {"server": "hash", "site-a": "hash", "admin": "hash"}
    users = rabbitmq_definitions(["a"], hashes, limits=SiteLimits(workers=10))["users"]
    limits = {user["name"]: user.get("limits") for user in users}
    assert limits == {"server": None, "site-a": {"max-connections": 60, "max-channels": 200}, "admin": None}


def test_configuration_without_tls_has_no_tls_settings() -> None:
    assert "ssl" not in rabbitmq_conf(60.0)
    assert "tls" not in redis_conf()


def test_configuration_with_tls_has_no_plain_listener() -> None:
    settings = read_settings(rabbitmq_conf(60.0, "/certificates"))
    assert settings["listeners.tcp"] == "none"
    assert settings["ssl_options.cacertfile"] == "/certificates/ca.pem"
    lines = redis_conf("/certificates").splitlines()
    assert [line for line in lines if line.startswith("port ")][-1] == "port 0"
    assert "tls-key-file /certificates/server.key" in lines
