"""Differences between the definitions that a federation needs and those that a RabbitMQ broker exports."""

from collections.abc import Iterator, Mapping
from typing import Any

from broker_config.brokers.definitions import Definitions

_IDENTITY = ("vhost", "name", "user", "exchange", "source", "destination", "routing_key")
_LABELS = {
    "vhosts": "virtual host {name}",
    "users": "user {name}",
    "permissions": "permission of {user}",
    "topic_permissions": "topic permission of {user} on {exchange}",
    "policies": "policy {name}",
    "parameters": "{name} of virtual host {vhost}",
    "exchanges": "exchange {name}",
    "queues": "queue {name}",
    "bindings": "binding of {destination}",
}
_RUN_INIT = "run fedil broker init"
_REMEDIES = {
    # RabbitMQ never changes an existing queue or exchange: an import passes over it without an error.
    "queues": "it is used as it is; when it is empty: rabbitmqctl delete_queue --vhost {vhost} {name}, then "
    "fedil broker init",
    "exchanges": "delete it in the management UI (virtual host {vhost}), then fedil broker init",
}


def differences(wanted: Definitions, found: Mapping[str, Any]) -> Iterator[str]:
    """One line with the remedy for each wanted item that is missing or differs. Other items are ignored."""
    for kind, items in wanted.items():
        existing = {_identity(item): item for item in found.get(kind, ())}
        for item in items:
            label, other = _LABELS[kind].format(**item), existing.get(_identity(item))
            if other is None:
                yield f"{label} is missing: {_RUN_INIT}"
            elif changed := _changed(item, other):
                yield f"{label} differs ({changed}): {_REMEDIES.get(kind, _RUN_INIT).format(**item)}"


def _identity(item: Mapping[str, Any]) -> tuple[object, ...]:
    return tuple(item.get(key) for key in _IDENTITY)


def _changed(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Only fields that this broker exports: RabbitMQ 4.2.9 and later omit `internal` of exchanges."""
    fields = wanted.keys() & found.keys()
    expected, actual = (_flat({field: item[field] for field in fields}) for item in (wanted, found))
    return "; ".join(
        f"{name} is {actual.get(name, 'not set')}, expected {expected.get(name, 'not set')}"
        for name in sorted(expected | actual)
        if expected.get(name) != actual.get(name)
    )


def _flat(item: Mapping[str, Any]) -> dict[str, Any]:
    """With the arguments of a queue or exchange as fields of their own."""
    return {key: item[key] for key in item if key != "arguments"} | dict(item.get("arguments", {}))
