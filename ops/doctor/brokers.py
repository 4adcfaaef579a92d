"""All checks of the brokers that are named."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker_config.process.addresses import BROKER_URL, MANAGEMENT_URL, STORE_URL
from ops.broker.accounts import Addresses
from ops.broker.management import Management
from ops.doctor.finding import Finding, findings_of
from ops.doctor.management import check_management
from ops.doctor.rabbitmq import check_rabbitmq
from ops.doctor.redis import check_redis

if TYPE_CHECKING:
    from ops.plan.trial import Sizes


@dataclass(frozen=True)
class BrokerAddresses:
    broker: str | None
    store: str | None
    management: str | None

    @property
    def unnamed(self) -> Iterator[Finding]:
        named = {
            "RabbitMQ": (self.broker, "--broker", BROKER_URL),
            "Redis": (self.store, "--store", STORE_URL),
            "RabbitMQ's management": (self.management, "--management", MANAGEMENT_URL),
        }
        for what, (url, option, variable) in named.items():
            if url is None:
                yield Finding("unknown", f"{what}: no address is named: give {option} URL, or set {variable}")


def check_brokers(
    addresses: BrokerAddresses,
    sites: Sequence[str] = (),
    deadline_seconds: float = 0.0,
    sizes: "Sizes | None" = None,
) -> Iterator[Finding]:
    """`sizes`: of what a recipe sends; without, what limits them is not looked at."""
    broker, store, management = addresses.broker, addresses.store, addresses.management
    vhost = Addresses(broker or "", "").vhost
    if broker is not None:
        yield from findings_of(lambda: check_rabbitmq(broker, sizes))
    if management is not None:
        yield from findings_of(
            lambda: check_management(Management(management), vhost, sites, deadline_seconds, sizes)
        )
    if store is not None:
        yield from findings_of(lambda: check_redis(store))
