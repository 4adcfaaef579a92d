"""`fedil credentials`: what it writes, and a run over brokers that accept only clients with such a certificate."""

import json
import socket
import ssl
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509

from ops.cli.main import main
from ops.local.services.process import free_ports
from tests.deployment import ROOT, Deployed, ended_with, write_all_shards, write_recipe
from tests.integration.test_broker_command import written
from tests.integration.test_broker_files import brokers_with_files, write

SOON = 120.0
HELLO = {"amqps": b"AMQP\0\0\x09\x01", "rediss": b"PING\r\n"}
LEAVES = ("brokers/server.pem", "server/client.pem", "site-north/client.pem", "site-south/client.pem")


def make(out: Path, *more: str) -> int:
    return main(
        ["credentials", "--hosts", "localhost,127.0.0.1", "--sites", "north,south", "--out", str(out), *more]
    )


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def serials(out: Path) -> dict[str, int]:
    return {name: certificate(out / name).serial_number for name in LEAVES}


def test_keys_are_private_and_every_user_has_a_certificate_of_the_authority(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make(tmp_path) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said] == [str(tmp_path / name) for name in ("ca.pem", *LEAVES)]
    authority = certificate(tmp_path / "ca.pem")
    for name in LEAVES:
        leaf = certificate(tmp_path / name)
        leaf.verify_directly_issued_by(authority)
        assert (tmp_path / name).with_name("ca.pem").read_bytes() == (tmp_path / "ca.pem").read_bytes()
    for key in tmp_path.rglob("*.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    subject = certificate(tmp_path / "site-north/client.pem").subject.rfc4514_string()
    assert subject == "CN=site-north"


def test_repeating_it_keeps_what_is_good_and_makes_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path)
    first = serials(tmp_path)
    capsys.readouterr()
    assert make(tmp_path) == 0
    assert serials(tmp_path) == first
    assert capsys.readouterr().out.count(", kept") == len(LEAVES)
    (tmp_path / "site-north" / "client.key").unlink()
    assert make(tmp_path) == 0
    again = serials(tmp_path)
    assert {name for name in LEAVES if again[name] != first[name]} == {"site-north/client.pem"}


@pytest.mark.parametrize(
    ("more", "renewed"),
    [
        (("--renew",), set(LEAVES)),
        (("--hosts", "localhost"), {"brokers/server.pem"}),
        # 365 of 2000 days are less than a third.
        (("--days", "2000"), set(LEAVES)),
        (("--days", "700"), set()),
    ],
)
def test_certificates_are_renewed_when_they_must_and_the_authority_stays(
    tmp_path: Path, more: tuple[str, ...], renewed: set[str]
) -> None:
    make(tmp_path)
    first, authority = serials(tmp_path), (tmp_path / "ca.pem").read_bytes()
    assert make(tmp_path, *more) == 0
    again = serials(tmp_path)
    assert {name for name in LEAVES if again[name] != first[name]} == renewed
    assert (tmp_path / "ca.pem").read_bytes() == authority


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--hosts", "a b"), "--hosts: 'a b' is neither a host name nor an IP address"),
        (("--hosts", ","), "--hosts names no host"),
        (("--sites", ""), "no sites: give --sites a,b or --recipe R"),
        (("--sites", "a.b"), "a.b"),
        (("--days", "100000"), "the authority is valid for less than 100000 days"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], complaint: str
) -> None:
    assert make(tmp_path, *words) in (1, 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert complaint in line


def test_an_authority_that_is_damaged_is_named_and_nothing_is_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path)
    key = (tmp_path / "ca.key").read_bytes()
    (tmp_path / "ca.key").unlink()
    assert make(tmp_path, "--renew") == 1
    assert f"cannot read the key {tmp_path / 'ca.key'} (No such file or directory)" in capsys.readouterr().err
    (tmp_path / "ca.key").write_bytes(key[:50])
    assert make(tmp_path) == 1
    assert "(it is damaged): restore it, or use another --out" in capsys.readouterr().err
    other = tmp_path / "other"
    make(other)
    (tmp_path / "ca.key").write_bytes((other / "ca.key").read_bytes())
    assert make(tmp_path) == 1
    assert f"{tmp_path / 'ca.key'} is not the key of {tmp_path / 'ca.pem'}" in capsys.readouterr().err


def test_a_run_over_mutual_tls_survives_the_renewal_of_all_certificates_with_the_same_bits(
    tmp_path: Path,
) -> None:
    recipe = write_recipe(tmp_path, rounds=8, more="[federation.sites]\nnorth = 6\nsouth = 6\n")
    write_all_shards(recipe, tmp_path / "shards")
    credentials, out, ports = tmp_path / "credentials", tmp_path / "files", free_ports(["amqps", "rediss"])
    assert make(credentials) == 0
    own, brokers = credentials / "{user}", credentials / "brokers"
    broker = (
        f"localhost:{ports['amqps']}?cafile={own}/ca.pem&certfile={own}/client.pem&keyfile={own}/client.key"
    )
    store = f"localhost:{ports['rediss']}/0?ssl_ca_certs={own}/ca.pem&ssl_certfile={own}/client.pem"
    addresses = [
        *("--broker-address", f"amqps://{broker}"),
        *("--store-address", f"rediss://{store}&ssl_keyfile={own}/client.key"),
    ]
    write(out, "--tls", str(brokers), "--mutual", *addresses)
    with brokers_with_files(tmp_path, out, ports) as (rabbitmq, redis):
        first = {name: served_serial(name, port, credentials) for name, port in ports.items()}
        for name, port in ports.items():
            with pytest.raises((ssl.SSLError, ConnectionError)):
                served_serial(name, port, credentials, with_certificate=False)
        environment = written(out / "server.env")
        urls = (environment["FEDIL_BROKER_URL"], environment["FEDIL_STORE_URL"])
        with Deployed(tmp_path / "run", recipe, *urls, workers=0) as run:
            for site in ("north", "south"):
                run.add_worker(site, environment=written(out / f"site-{site}.env"))
            run.wait_for_progress(4, SOON)
            assert make(credentials, "--renew") == 0
            for service in (redis, rabbitmq):
                service.kill()
                service.start()
            run.workers[0].kill()
            assert not run.server.finished.is_set()
            run.wait(SOON)
        for name, port in ports.items():
            assert served_serial(name, port, credentials) != first[name]
    assert ended_with(run.server_log) == simulated(recipe, tmp_path / "simulated")


def served_serial(name: str, port: int, credentials: Path, with_certificate: bool = True) -> int:
    """Of the certificate that a broker has; asks it for something, since TLS 1.3 refuses clients late."""
    context = ssl.create_default_context(cafile=str(credentials / "ca.pem"))
    if with_certificate:
        client = credentials / "site-north"
        context.load_cert_chain(client / "client.pem", client / "client.key")
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10.0) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        secure.sendall(HELLO[name])
        if not secure.recv(1):
            raise ConnectionError("the broker has closed the connection")
        served = secure.getpeercert(binary_form=True)
    assert served is not None
    return x509.load_der_x509_certificate(served).serial_number


def simulated(recipe: Path, run_dir: Path) -> tuple[str, str]:
    command = [sys.executable, "-m", "ops.cli", "simulate", str(recipe), "--run-dir", str(run_dir)]
    told = subprocess.run(
        [*command, "--json", "--quiet"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    summary = json.loads(told.stdout.splitlines()[-1])
    return summary["model_digest"], summary["ledger_digest"]
