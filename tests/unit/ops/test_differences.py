"""Which differences from its wanted definitions a RabbitMQ broker is reported with."""

import copy
from typing import Any

import pytest

from broker_config.brokers.definitions import rabbitmq_definitions, users_of
from ops.broker.differences import differences

WANTED = rabbitmq_definitions(["north"], dict.fromkeys(users_of(["north"])))


@pytest.fixture
def exported() -> dict[str, Any]:
    """As a broker exports them that has all of it, and more."""
    found: dict[str, Any] = copy.deepcopy(WANTED)
    found["vhosts"][0] |= {"description": "", "tags": []}
    found["queues"].append({"name": "other", "vhost": "fedil", "durable": False, "arguments": {}})
    return found


def item_of(exported: dict[str, Any], kind: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(item for item in exported[kind] if name in item.values())
    return found


def test_a_broker_with_all_definitions_and_others_has_no_difference(exported: dict[str, Any]) -> None:
    assert list(differences(WANTED, exported)) == []


def test_a_field_that_the_broker_does_not_export_is_no_difference(exported: dict[str, Any]) -> None:
    for exchange in exported["exchanges"]:
        del exchange["internal"]
    assert list(differences(WANTED, exported)) == []


@pytest.mark.parametrize(
    ("kind", "name", "label"),
    [
        ("vhosts", "fedil", "virtual host fedil"),
        ("permissions", "site-north", "permission of site-north"),
        ("topic_permissions", "site-north", "topic permission of site-north on fedil.bodies"),
        ("exchanges", "fedil.site.north", "exchange fedil.site.north"),
        ("queues", "fedil.tasks.north", "queue fedil.tasks.north"),
        ("bindings", "fedil.tasks.north", "binding of fedil.tasks.north"),
    ],
)
def test_a_missing_item_is_named(exported: dict[str, Any], kind: str, name: str, label: str) -> None:
    exported[kind].remove(item_of(exported, kind, name))
    assert list(differences(WANTED, exported)) == [f"{label} is missing: run fedil broker init"]


def test_a_changed_permission_is_named_with_both_values(exported: dict[str, Any]) -> None:
    item_of(exported, "permissions", "server")["read"] = ".*"
    assert list(differences(WANTED, exported)) == [
        r"permission of server differs (read is .*, expected ^fedil\.): run fedil broker init"
    ]


def test_a_queue_with_other_arguments_must_be_deleted(exported: dict[str, Any]) -> None:
    arguments = item_of(exported, "queues", "fedil.tasks.north")["arguments"]
    arguments |= {"x-delivery-limit": 7, "x-max-length": 1}
    (line,) = differences(WANTED, exported)
    assert "x-delivery-limit is 7, expected 3; x-max-length is 1, expected not set" in line
    assert line.endswith("rabbitmqctl delete_queue --vhost fedil fedil.tasks.north, then fedil broker init")


def test_an_exchange_of_another_type_must_be_deleted(exported: dict[str, Any]) -> None:
    item_of(exported, "exchanges", "fedil.bodies")["type"] = "fanout"
    (line,) = differences(WANTED, exported)
    assert line.startswith("exchange fedil.bodies differs (type is fanout, expected topic): delete it")
