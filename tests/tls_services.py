"""Private RabbitMQ and Redis with a second listener that requires client certificates of the same authority."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ops.local.services import Redis
from ops.local.services.process import LOOPBACK, listens
from ops.local.services.rabbitmq import SETTINGS
from tests.services import RabbitMQ, read_settings


@dataclass(frozen=True)
class Tls:
    authority: Path
    certificate: Path
    key: Path


class RabbitMQWithTls(RabbitMQ):
    port_names = (*RabbitMQ.port_names, "amqps")

    def __init__(self, directory: Path, tls: Tls, config: str = "", plugins: Sequence[str] = ()) -> None:
        self._tls = tls
        super().__init__(directory, SETTINGS | read_settings(config), plugins)

    @property
    def tls_url(self) -> str:
        return f"amqps://guest:guest@localhost:{self.ports['amqps']}/%2F"

    def _all_settings(self) -> dict[str, str]:
        return super()._all_settings() | {
            "listeners.ssl.1": f"{LOOPBACK}:{self.ports['amqps']}",
            "ssl_options.cacertfile": str(self._tls.authority),
            "ssl_options.certfile": str(self._tls.certificate),
            "ssl_options.keyfile": str(self._tls.key),
            "ssl_options.verify": "verify_peer",
            "ssl_options.fail_if_no_peer_cert": "true",
        }


class RedisWithTls(Redis):
    port_names = (*Redis.port_names, "tls")

    def __init__(self, directory: Path, tls: Tls) -> None:
        self._tls = tls
        super().__init__(directory)

    @property
    def tls_url(self) -> str:
        return f"rediss://localhost:{self.ports['tls']}/0"

    def _command(self) -> Sequence[str]:
        options = {
            "port": self.ports["tls"],
            "auth-clients": "yes",
            "cert-file": self._tls.certificate,
            "key-file": self._tls.key,
            "ca-cert-file": self._tls.authority,
        }
        words = (word for name, value in options.items() for word in (f"--tls-{name}", str(value)))
        return [*super()._command(), *words]

    def _answers(self) -> bool:
        return super()._answers() and listens(self.ports["tls"])
