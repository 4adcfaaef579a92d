"""A private RabbitMQ node with its own Erlang cookie and port mapper (epmd)."""

import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from ops.local.services.brokers_root import broker_command, find_broker_program
from ops.local.services.process import LOOPBACK, PrivateService, ask, listens

_MISSING = "RabbitMQ is not installed: apt install rabbitmq-server"
# Not /usr/sbin: Debian's wrapper there changes to the system's user and files.
_SCRIPTS = "/usr/lib/rabbitmq/bin"
_NODE = "fedil@localhost"

SETTINGS = {
    "log.console": "true",
    "log.console.level": "info",
    "log.file": "false",
    "disk_free_limit.absolute": "64MB",
    # A task is acknowledged at its end, which may be hours later.
    "consumer_timeout": str(24 * 3600 * 1000),
    "heartbeat": "20",
    # Also held in memory; the default is 512 MiB.
    "raft.wal_max_size_bytes": str(64 * 1024**2),
}


class RabbitMQ(PrivateService):
    name = "RabbitMQ"
    port_names: tuple[str, ...] = ("amqp", "epmd", "distribution", "management", "prometheus")

    def __init__(
        self, directory: Path, settings: Mapping[str, str] = SETTINGS, plugins: Sequence[str] = ()
    ) -> None:
        """`settings` of rabbitmq.conf. `plugins`: management and prometheus may be among them."""
        self._program = find_script("rabbitmq-server")
        self._epmd = find_broker_program("epmd", missing="Erlang is not installed: apt install erlang-base")
        self._settings, self._plugins = dict(settings), tuple(plugins)
        super().__init__(directory)

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{LOOPBACK}:{self.port}/%2F"

    @property
    def metrics_place(self) -> str:
        """host:port of the node's Prometheus metrics; of a node with the plugin prometheus."""
        return f"{LOOPBACK}:{self.ports['prometheus']}"

    def _command(self) -> Sequence[str]:
        cookie = self.directory / "home" / ".erlang.cookie"
        if not cookie.exists():
            cookie.parent.mkdir(exist_ok=True)
            cookie.touch(mode=0o600)
            cookie.write_text(secrets.token_hex(16))
            cookie.chmod(0o400)
        (self.directory / "rabbitmq.conf").write_text(write_settings(self._all_settings()))
        plugins = ",".join(f"rabbitmq_{plugin}" for plugin in self._plugins)
        (self.directory / "enabled_plugins").write_text(f"[{plugins}].\n")
        # One process group for both, so that they are killed together.
        script = f'"$1" -port {self.ports["epmd"]} -address {LOOPBACK} & exec "$2"'
        return broker_command("sh", "-c", script, "rabbitmq", self._epmd, self._program)

    def _all_settings(self) -> dict[str, str]:
        addresses = {f"{plugin}.tcp.ip": LOOPBACK for plugin in self._plugins}
        ports = {f"{plugin}.tcp.port": str(self.ports[plugin]) for plugin in self._plugins}
        return addresses | ports | self._settings

    def _environment(self) -> Mapping[str, str]:
        replaced = ("RABBITMQ_", "ERL_", "NOTIFY_SOCKET")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(replaced)}
        schedulers = min(2, os.cpu_count() or 1)
        busy_wait_off = "+sbwt none +sbwtdcpu none +sbwtdio none"  # leaves the cores to the trainers
        loopback_only = "-kernel inet_dist_use_interface {127,0,0,1}"
        return inherited | {
            "HOME": str(self.directory / "home"),
            "ERL_EPMD_PORT": str(self.ports["epmd"]),
            "ERL_EPMD_ADDRESS": LOOPBACK,
            "ERL_CRASH_DUMP_BYTES": "0",
            # Does not depend on the ports: the data belongs to the node name.
            "RABBITMQ_NODENAME": _NODE,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_NODE_IP_ADDRESS": LOOPBACK,
            "RABBITMQ_DIST_PORT": str(self.ports["distribution"]),
            "RABBITMQ_MNESIA_BASE": str(self.directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.directory / "log"),
            "RABBITMQ_PID_FILE": str(self.directory / "pid"),
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_CONFIG_FILE": str(self.directory / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.directory / "enabled_plugins"),
            "RABBITMQ_SCHEDULER_BIND_TYPE": "u",  # several nodes would bind to the same cores
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"{loopback_only} +S {schedulers}:{schedulers} {busy_wait_off}",
        }

    def _answers(self) -> bool:
        # TLS listeners start after the plain one.
        tls = [place for key, place in self._all_settings().items() if key.startswith("listeners.ssl.")]
        return rabbitmq_answers(self.port) and all(listens(int(place.rpartition(":")[2])) for place in tls)


def find_script(name: str) -> str:
    return find_broker_program(name, f"{_SCRIPTS}/{name}", missing=_MISSING)


def rabbitmq_answers(port: int, host: str = LOOPBACK) -> bool:
    """Whether it answers with a method frame: the AMQP listener starts after queues and definitions are recovered."""
    return ask(b"AMQP\0\0\x09\x01", port, host)[:1] == b"\x01"


def write_settings(settings: Mapping[str, str]) -> str:
    return "".join(f"{key} = {value}\n" for key, value in settings.items())
