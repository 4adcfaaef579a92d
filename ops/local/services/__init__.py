"""Private instances of RabbitMQ, Redis and Prometheus, for tests and for clusters on one machine."""

from ops.local.services.process import ServiceFailed, ServiceMissing
from ops.local.services.prometheus import Prometheus, private_prometheus
from ops.local.services.rabbitmq import RabbitMQ, private_rabbitmq
from ops.local.services.redis import Redis, private_redis

__all__ = [
    "Prometheus",
    "RabbitMQ",
    "Redis",
    "ServiceFailed",
    "ServiceMissing",
    "private_prometheus",
    "private_rabbitmq",
    "private_redis",
]
