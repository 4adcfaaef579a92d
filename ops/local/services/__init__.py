"""Private instances of RabbitMQ, Redis and Prometheus, for tests and for clusters on one machine."""

from ops.local.services.process import ServiceFailed, ServiceMissing
from ops.local.services.prometheus import Prometheus
from ops.local.services.rabbitmq import RabbitMQ
from ops.local.services.redis import Redis

__all__ = ["Prometheus", "RabbitMQ", "Redis", "ServiceFailed", "ServiceMissing"]
