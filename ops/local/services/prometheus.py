"""A private Prometheus, for clusters on one machine and for tests of rules and dashboards."""

from collections.abc import Sequence
from pathlib import Path

from ops.local.services.process import LOOPBACK, PrivateService, ask, find_program

_MISSING = "Prometheus is not installed: apt install prometheus"


class Prometheus(PrivateService):
    name = "Prometheus"
    port_names = ("prometheus",)

    def __init__(self, directory: Path, config: str) -> None:
        """`config` is the text of prometheus.yml; file names in it are relative to `directory`."""
        self._program = find_program("prometheus", missing=_MISSING)
        self.config = config
        super().__init__(directory)

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def _command(self) -> Sequence[str]:
        config = self.directory / "prometheus.yml"
        config.write_text(self.config)
        return [
            self._program,
            f"--config.file={config}",
            f"--storage.tsdb.path={self.directory / 'data'}",
            f"--web.listen-address={LOOPBACK}:{self.port}",
        ]

    def _answers(self) -> bool:
        return b" 200 " in ask(b"GET /-/ready HTTP/1.0\r\n\r\n", self.port)
