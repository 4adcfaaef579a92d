"""A certificate authority for tests of TLS, made with openssl."""

import subprocess
from pathlib import Path


class Authority:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.certificate, self._key = folder / "ca.pem", folder / "ca.key"
        self._openssl(
            "req", "-x509", *_new_key(self._key), "-subj", "/CN=authority", "-out", self.certificate
        )

    def sign(self, name: str, host: str = "") -> tuple[Path, Path]:
        """Makes a certificate and its key: for a server if `host` is given, else for a client."""
        certificate, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        alternatives = ["-addext", f"subjectAltName=DNS:{host}"] if host else []
        request = self._folder / f"{name}.csr"
        self._openssl("req", *_new_key(key), "-subj", f"/CN={name}", *alternatives, "-out", request)
        signer = ("-CA", self.certificate, "-CAkey", self._key, "-CAcreateserial", "-copy_extensions", "copy")
        self._openssl("x509", "-req", "-in", request, *signer, "-days", "2", "-out", certificate)
        return certificate, key

    def _openssl(self, *arguments: str | Path) -> None:
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, cwd=self._folder)


def _new_key(path: Path) -> tuple[str | Path, ...]:
    return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", path)
