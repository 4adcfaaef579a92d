"""FEDIL_ACCOUNT_FILE: addresses with passwords as a file, for places that hand secrets out as files."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from broker_config.process.addresses import read_account_file
from broker_config.protocol.errors import AddressMissing, AddressWrong
from ops.broker.accounts import write_environment
from tests.deployment import ROOT

URLS = {
    "FEDIL_BROKER_URL": "amqps://site-a:word@mq:5671/fedil?cafile=/a/ca.pem&certfile=/a/b c.pem",
    "FEDIL_STORE_URL": "rediss://site-a:word@r/0",
}


def test_addresses_come_from_the_file_as_broker_init_writes_it(tmp_path: Path) -> None:
    environment = {"FEDIL_ACCOUNT_FILE": str(write_environment(tmp_path, "site-a", URLS))}
    read_account_file(environment)
    assert {name: environment[name] for name in URLS} == URLS


def test_what_is_set_already_counts_and_other_variables_do_not(tmp_path: Path) -> None:
    (tmp_path / "env").write_text(
        "# by hand\n\nFEDIL_BROKER_URL=amqp://file\nLD_PRELOAD=/evil.so\nFEDIL_DATA=/x\n"
    )
    environment = {"FEDIL_ACCOUNT_FILE": str(tmp_path / "env"), "FEDIL_BROKER_URL": "amqp://set"}
    read_account_file(environment)
    assert environment == {"FEDIL_ACCOUNT_FILE": str(tmp_path / "env"), "FEDIL_BROKER_URL": "amqp://set"}


def test_a_file_that_cannot_be_read_is_named_without_its_passwords(tmp_path: Path) -> None:
    with pytest.raises(
        AddressMissing, match=r"cannot read /nowhere, which FEDIL_ACCOUNT_FILE names: No such file"
    ):
        read_account_file({"FEDIL_ACCOUNT_FILE": "/nowhere"})
    (tmp_path / "env").write_text("FEDIL_BROKER_URL='amqp://u:secret@h\n")
    with pytest.raises(AddressWrong, match="is not an environment file") as said:
        read_account_file({"FEDIL_ACCOUNT_FILE": str(tmp_path / "env")})
    assert "secret" not in str(said.value)


@pytest.mark.parametrize(
    "words",
    [
        ["server_worker", "--recipe", "ops/recipes/digits.toml"],
        ["client_worker", "--site", "s", "--shards", "/nowhere"],
        ["ops.cli", "server", "--recipe", "digits"],
        ["ops.cli", "worker", "--site", "s", "--shards", "/nowhere"],
        ["ops.cli", "broker", "init", "--sites", "s"],
        ["ops.cli", "status", "--once"],
    ],
    ids=" ".join,
)
def test_every_command_reads_it(words: list[str], tmp_path: Path) -> None:
    wrong = dict.fromkeys(("FEDIL_BROKER_URL", "FEDIL_STORE_URL", "FEDIL_ADMIN_STORE_URL"), "foo://h")
    file = write_environment(tmp_path, "site-a", {**wrong, "FEDIL_MANAGEMENT_URL": "foo://h"})
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FEDIL_")}
    done = subprocess.run(
        [sys.executable, "-m", *words],
        env={**environment, "FEDIL_ACCOUNT_FILE": str(file)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (1, 2)
    assert "must begin with" in done.stderr or "management URL cannot be read" in done.stderr, done.stderr
