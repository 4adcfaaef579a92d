"""The connections of one transport, and the objects that share them."""

import random

from broker_config.transports.rabbitmq.connection import Connection, PublishingConnection
from broker_config.transports.rabbitmq.heartbeats import HeartbeatThread
from broker_config.transports.rabbitmq.publisher import Publisher
from broker_config.transports.rabbitmq.queue_admin import QueueAdmin
from broker_config.transports.rabbitmq.url import parse_url


class RabbitSession:
    """Three connections:

    * `receiving` consumes. If it is lost, the whole session is: its unacknowledged messages are redelivered.
    * `publishing` publishes and declares. A memory or disk alarm blocks such a connection, and no other.
    * `fetching` reads large bodies from queues that their senders declared. An error there may close the connection.
    """

    def __init__(self, url: str, blocked_seconds: float) -> None:
        addresses = list(parse_url(url, blocked_seconds))
        random.SystemRandom().shuffle(addresses)  # spreads the processes over the nodes of a cluster
        self.receiving = Connection(addresses, "receiving", reconnects=False)
        with self.receiving.exclusive():
            pass  # connects: wrong credentials are reported now, and not at the first message
        addresses.sort(
            key=lambda address: address is not self.receiving.address
        )  # that node first, which answers
        self.publishing = PublishingConnection(addresses, self.receiving)
        self.fetching = Connection(addresses, "fetching", reconnects=True)
        self.publisher = Publisher(self.publishing)
        self.queues = QueueAdmin(self.publishing)
        self._heartbeats = HeartbeatThread([self.receiving, self.fetching, self.publishing])

    def close(self) -> None:
        self._heartbeats.stop()
        for connection in (self.receiving, self.fetching, self.publishing):
            connection.close()
