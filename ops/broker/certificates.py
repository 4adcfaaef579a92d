"""Certificates for mutual TLS, signed by an authority that belongs to the federation.

DIR/ca.key, ca.pem                       the authority; only `fedil credentials` needs the key
DIR/brokers/ca.pem, server.pem and .key  for RabbitMQ and Redis
DIR/server/ca.pem, client.pem and .key   for the FedIL server
DIR/site-NAME/…                          for the workers of a site, likewise
"""

import datetime
import ipaddress
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from broker_config.process.durable import make_directory, write_atomically, write_privately
from broker_config.protocol.errors import FedILError

_AUTHORITY_DAYS = 3650
_EARLIER = datetime.timedelta(minutes=10)
"""Certificates are valid from so long ago on: clocks differ."""
_RENEWED_BEFORE = 1 / 3
"""Share of its days that a certificate has left when it is renewed"""
_PEM = serialization.Encoding.PEM
_SIGNING = ("key_cert_sign", "crl_sign")
_OTHER_USES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
    *("key_agreement", "encipher_only", "decipher_only"),
)


@dataclass(frozen=True)
class Issued:
    path: Path
    until: datetime.datetime
    is_new: bool


@dataclass(frozen=True)
class Authority:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def issue(
        self, folder: Path, name: str, days: int, hosts: Collection[str] = (), renew: bool = False
    ) -> Issued:
        """A certificate for brokers at `hosts`, or for a client where there are none. One that is in the folder and
        good is kept, unless `renew`."""
        kind = "server" if hosts else "client"
        path, key_path = folder / f"{kind}.pem", folder / f"{kind}.key"
        make_directory(folder)
        write_atomically(folder / "ca.pem", [self.certificate.public_bytes(_PEM)])
        if path.exists() and key_path.exists() and not renew:
            kept = _certificate_in(path)
            if self._is_good(kept, _key_in(key_path), days, hosts):
                return Issued(path, kept.not_valid_after_utc, is_new=False)
        key = ec.generate_private_key(ec.SECP256R1())
        purpose = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = _builder(_named(name), self.certificate.subject, key, self.key, days)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName(map(_host, hosts)), critical=False)
        certificate = builder.sign(self.key, hashes.SHA256())
        if certificate.not_valid_after_utc > self.certificate.not_valid_after_utc:
            raise FedILError(
                f"the authority is valid for less than {days} days (until "
                f"{self.certificate.not_valid_after_utc:%Y-%m-%d}): give fewer --days, or another --out"
            )
        # A process that reads both in between finds a pair that does not match, and tries again.
        write_privately(key_path, [_bytes_of(key)])
        write_atomically(path, [certificate.public_bytes(_PEM)])
        return Issued(path, certificate.not_valid_after_utc, is_new=True)

    def _is_good(
        self, kept: x509.Certificate, key: ec.EllipticCurvePrivateKey, days: int, hosts: Collection[str]
    ) -> bool:
        try:
            kept.verify_directly_issued_by(self.certificate)
        except Exception:  # cryptography raises several kinds
            return False
        left = kept.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
        return (
            kept.public_key() == key.public_key()
            and _hosts_of(kept) == set(hosts)
            and left > _RENEWED_BEFORE * datetime.timedelta(days=days)
        )


def open_authority(folder: Path) -> Authority:
    """The authority in this folder, which is made where there is none"""
    path, key_path = folder / "ca.pem", folder / "ca.key"
    make_directory(folder)
    if path.exists() or key_path.exists():
        certificate, key = _certificate_in(path), _key_in(key_path)
        if certificate.public_key() != key.public_key():
            raise FedILError(f"{key_path} is not the key of {path}: restore it, or use another --out")
        return Authority(certificate, key)
    key, name = ec.generate_private_key(ec.SECP256R1()), _named("FedIL authority")
    uses: Any = {use: use in _SIGNING for use in (*_SIGNING, *_OTHER_USES)}
    certificate = (
        _builder(name, name, key, key, _AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(**uses), critical=True)
        .sign(key, hashes.SHA256())
    )
    write_privately(key_path, [_bytes_of(key)])
    write_atomically(path, [certificate.public_bytes(_PEM)])
    return Authority(certificate, key)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    days: int,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    public, signing = key.public_key(), signer.public_key()
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public)
    builder = builder.not_valid_before(now - _EARLIER).not_valid_after(now + datetime.timedelta(days=days))
    builder = builder.serial_number(x509.random_serial_number())
    # Python 3.13 and later accept no certificate without these two.
    own, signers = x509.SubjectKeyIdentifier, x509.AuthorityKeyIdentifier
    builder = builder.add_extension(own.from_public_key(public), critical=False)
    return builder.add_extension(signers.from_issuer_public_key(signing), critical=False)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _hosts_of(certificate: x509.Certificate) -> set[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    return {str(name.value) for name in names}


def _bytes_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _certificate_in(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise _unreadable(path, "certificate", error) from error


def _key_in(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise _unreadable(path, "key", error) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise FedILError(f"{path} is not a key that FedIL has made: use another --out")
    return key


def _unreadable(path: Path, what: str, error: Exception) -> FedILError:
    why = error.strerror if isinstance(error, OSError) else "it is damaged"
    return FedILError(f"cannot read the {what} {path} ({why}): restore it, or use another --out")
