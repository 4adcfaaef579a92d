import subprocess
import sys
from pathlib import Path

import pytest

import broker_config
from broker_config.embedded.frames import path_of, url_of
from broker_config.protocol.errors import BrokerUnavailable, FedILError
from broker_config.stores import connect_store
from broker_config.transports import connect_transport


@pytest.mark.parametrize("url", ["kafka://somewhere", "somewhere", "", "memroy:///run.sock"])
def test_an_unknown_scheme_is_refused_with_a_list_of_the_known_ones(url: str) -> None:
    with pytest.raises(FedILError, match="one of memory"):
        connect_transport(url)
    with pytest.raises(FedILError, match="one of memory"):
        connect_store(url)


@pytest.mark.parametrize("url", ["memory://", "memory://host/run.sock"])
def test_the_error_for_a_memory_url_without_a_socket_shows_the_format(url: str) -> None:
    with pytest.raises(FedILError, match=r"memory:///path/to\.sock"):
        connect_transport(url)
    with pytest.raises(FedILError, match=r"memory:///path/to\.sock"):
        connect_store(url)


def test_url_of_and_path_of_are_inverse_for_special_characters(tmp_path: Path) -> None:
    path = tmp_path / "a run # 1?%20.sock"
    assert path_of(url_of(path)) == path


def test_a_socket_without_a_listener_is_an_unavailable_broker(tmp_path: Path) -> None:
    with pytest.raises(BrokerUnavailable, match=r"missing\.sock"):
        connect_transport(url_of(tmp_path / "missing.sock"))


def test_a_path_too_long_for_a_socket_is_an_unavailable_broker(tmp_path: Path) -> None:
    with pytest.raises(BrokerUnavailable, match="too long"):
        connect_transport(url_of(tmp_path / ("x" * 200)))


def test_importing_the_registries_does_not_import_numpy() -> None:
    script = "import sys, broker_config.stores, broker_config.transports; print('numpy' in sys.modules)"
    root = Path(broker_config.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
