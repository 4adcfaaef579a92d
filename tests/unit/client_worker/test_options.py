import argparse
from pathlib import Path

import numpy as np
import pytest

from broker_config.process.addresses import WebAddress, fill_from_environment
from broker_config.protocol.errors import AddressWrong, FedILError
from client_worker.options import add_arguments, check_shards, for_children, web_address
from client_worker.placement import Slot
from client_worker.shards import ShardFolder, has_shards, write_shards
from fedil_model.errors import DataError, SettingError

NEEDED = ["--site", "s", "--shards", "folder"]


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_arguments(parser)
    return parser.parse_args([*NEEDED, *words])


def test_addresses_come_from_the_environment_unless_they_are_given() -> None:
    options = parsed("--broker", "memory:///a")
    fill_from_environment(options, {"FEDIL_BROKER_URL": "memory:///b", "FEDIL_STORE_URL": "memory:///c"})
    assert (options.broker, options.store) == ("memory:///a", "memory:///c")


def test_a_missing_address_is_named_with_both_ways_to_give_it() -> None:
    with pytest.raises(FedILError, match="give --store URL, or set FEDIL_STORE_URL"):
        fill_from_environment(parsed("--broker", "memory:///a"), {})


@pytest.mark.parametrize(
    "url", ["foo://u:secret@h", "u:secret@h", "redis://:secret@h", "secret", "amqp:/secret"]
)
def test_an_address_that_no_broker_has_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(
        AddressWrong, match=r"^--broker \(or FEDIL_BROKER_URL\) must begin with amqp:// or amqps://"
    ) as said:
        fill_from_environment(parsed("--broker", url, "--store", "redis://h"), {})
    assert "secret" not in str(said.value)
    with pytest.raises(
        AddressWrong, match=r"^--store \(or FEDIL_STORE_URL\) must begin with redis:// or rediss://"
    ):
        fill_from_environment(parsed("--broker", "AMQPS://h"), {"FEDIL_STORE_URL": "amqp://h"})


def test_a_folder_has_shards_when_they_are_whole(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="there is no folder"):
        check_shards(tmp_path / "no")
    with pytest.raises(SettingError, match=f"^there are no shards in {tmp_path}: make them first"):
        check_shards(tmp_path)
    write_shards(tmp_path, {0: np.zeros((2, 3), dtype=np.uint8)})
    check_shards(tmp_path)
    (tmp_path / "offsets.npy").unlink()
    assert not has_shards(tmp_path)
    with pytest.raises(SettingError, match="there are no shards"):
        check_shards(tmp_path)
    with pytest.raises(DataError, match=r"^no shards in [^ ]* \(it has no offsets\.npy\): make them"):
        ShardFolder(tmp_path)


def test_children_get_the_same_options_and_the_addresses_where_others_do_not_see_them() -> None:
    words = ["--device", "cuda:1", "--grace", "2.5", "--cache", "100", "--plugin", "a:b", "--plugin", "c:d"]
    options = parsed(
        *words,
        "--limits",
        "limits.toml",
        "--processes",
        "3",
        "--broker",
        "amqp://u:secret@h",
        "--store",
        "redis://u:secret@h",
    )
    arguments, environment = for_children(options)
    assert not any("secret" in word for word in arguments)
    child = parsed(*arguments, "--slot", "1/3")
    fill_from_environment(child, environment)
    assert child.slot == Slot(1, 3)
    assert child.processes == 1
    same = set(vars(options)) - {"slot", "processes"}
    assert {name: getattr(child, name) for name in same} == {name: getattr(options, name) for name in same}


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--device", "gpu"], "wants auto, cpu or cuda:N"),
        (["--processes", "0"], "wants a number from 1 up"),
        (["--grace", "-1"], "wants seconds"),
        (["--grace", "soon"], "wants seconds"),
        (["--cache", "1.5"], "wants megabytes"),
        (["--web", "somewhere"], "wants HOST:PORT, PORT or off, got 'somewhere'$"),
        (["--web", "65536"], "ports end at 65535$"),
        (["--web", "host:1000000"], "ports end at 65535$"),
    ],
)
def test_mistakes_are_named(words: list[str], complaint: str) -> None:
    with pytest.raises(argparse.ArgumentError, match=complaint):
        parsed(*words)


@pytest.mark.parametrize("words", [[], ["--web", "off"], ["--web", ":9000"], ["--web", "[::1]:9000"]])
def test_children_serve_where_they_are_told(words: list[str]) -> None:
    options = parsed(*words, "--processes", "3", "--broker", "x", "--store", "y")
    child = parsed(*for_children(options)[0], "--slot", "2/3")
    assert child.web == options.web
    served = web_address(child, child.slot)
    if served is None or not served.port:
        assert served == options.web
    else:
        assert (served.host, served.port) == (options.web.host, 9002)


def test_a_free_port_on_this_machine_is_the_default() -> None:
    assert web_address(parsed(), Slot()) == WebAddress("127.0.0.1", 0)
    with pytest.raises(SettingError, match=r"--web 127\.0\.0\.1:65534 leaves no ports for 3 processes"):
        web_address(parsed("--web", "65534"), Slot(0, 3))
