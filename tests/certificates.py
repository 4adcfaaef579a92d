"""An authority for tests of TLS, as `fedil credentials` makes it."""

from pathlib import Path

from ops.broker.certificates import open_authority


class Authority:
    def __init__(self, folder: Path) -> None:
        self._folder, self._authority = folder, open_authority(folder)
        self.certificate = folder / "ca.pem"

    def sign(self, name: str, host: str = "") -> tuple[Path, Path]:
        """A certificate and its key: for a server if `host` is given, else for a client"""
        issued = self._authority.issue(self._folder / name, name, 2, [host] if host else [])
        return issued.path, issued.path.with_suffix(".key")
