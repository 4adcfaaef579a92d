"""`fedil ledger`, on a real Redis and on a simulation's folder."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from broker_config.protocol.messages import LEDGER_KIND
from broker_config.protocol.wire import encode_arrays
from broker_config.stores.interface import Store
from broker_config.stores.memory.store import MemoryStore
from broker_config.stores.redis.store import RedisStore
from fedil_model.methods import find_method
from fedil_model.methods.fedil.ledger import NO_LABEL, Ledger
from fedil_model.methods.interface import MethodSpec
from ops.cli.main import main
from server_worker.run.folder import RunDir
from tests.foreign_code import foreign_code
from tests.services import Service

RUN = "looked-at"


@pytest.fixture(scope="module")
def url(redis: Service) -> Iterator[str]:
    """Client 7 at one site, 12 at another with an activation that is not answered, 13 with a damaged ledger."""
    north, south = RedisStore(redis.url, lambda _: "north"), RedisStore(redis.url, lambda _: "south")
    for activation in (1, 2):
        north.commit(RUN, 7, activation, ledger_bytes())
    south.commit(RUN, 12, 1, ledger_bytes())
    south.open_activation(RUN, 12, 2)
    south.commit(RUN, 13, 1, b"no ledger")
    yield redis.url
    north.close()
    south.close()


def ledger_bytes() -> bytes:
    """Six samples: two credible threes, a three and a nought that are not, two without a label."""
    ledger = Ledger(
        streaks_N=np.array([0, 0, 2, 1, 0, 0], np.uint8),
        labels_N=np.array([3, 3, 3, 0, NO_LABEL, NO_LABEL], np.int16),
        credible_N=np.array([True, True, False, False, False, False]),
    )
    return b"".join(encode_arrays(LEDGER_KIND, {}, ledger.to_arrays()))


COUNTS = {
    "samples": 6,
    "pseudo_labels": 4,
    "credible": 2,
    "labels": {"0": {"samples": 1, "credible": 0}, "3": {"samples": 3, "credible": 2}},
    "streaks": {"0": 2, "1": 1, "2": 1},
}


def test_one_ledger_as_json(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = said(capsys, "ledger", "show", "7", "--run", RUN, "--store", url, "--json")
    assert json.loads(shown) == COUNTS | {
        "run": RUN,
        "site": "north",
        "client": 7,
        "generation": 2,
        "kept_generations": [1, 2],
        "open_activation": None,
    }


def test_one_ledger_for_people(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDIL_STORE_URL", url)
    lines = said(capsys, "ledger", "show", "12", "--run", RUN).splitlines()
    assert lines[:3] == [
        f"{RUN}, client 12 at south",
        "generation 1 (kept: 1), open activation 2",
        "6 samples, 4 with a pseudo-label, 2 credible",
    ]
    cells = [line.split()[:3] for line in lines]
    assert ["3", "3", "2"] in cells


def test_all_ledgers_of_all_sites(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        line.split() for line in said(capsys, "ledger", "list", "--run", RUN, "--store", url).splitlines()
    ]
    assert rows[0] == ["client", "site", "generation", "open", "samples", "pseudo", "credible"]
    assert rows[1] == ["7", "north", "2", "–", "6", "4", "2"]
    assert rows[2] == ["12", "south", "1", "2", "6", "4", "2"]
    assert rows[3][:7] == ["13", "south", "1", "–", "–", "–", "–"]
    assert "not_fedil" in " ".join(rows[3])
    assert " ".join(rows[-1]) == f"{RUN}: 3 clients, 12 samples, 8 with a pseudo-label, 4 credible"


def test_the_ledgers_of_one_site_as_json(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    listed = json.loads(
        said(capsys, "ledger", "list", "--run", RUN, "--store", url, "--site", "south", "--json")
    )
    assert [(one["client"], one.get("samples"), "trouble" in one) for one in listed] == [
        (12, 6, False),
        (13, None, True),
    ]


def test_a_client_with_ledgers_at_two_sites_must_be_told_apart(
    redis: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    for site in ("north", "south"):
        store = RedisStore(redis.url, dict.fromkeys([7], site).__getitem__)
        store.commit("twice", 7, 1, ledger_bytes())
        store.close()
    assert "north, south: choose one with --site" in complaint(
        capsys, 1, "ledger", "show", "7", "--run", "twice", "--store", redis.url
    )


@pytest.fixture(params=[RUN, "recipe"])
def run_dir(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Of a simulation that was called by its recipe, and of one with a name of its own"""
    where = RunDir(tmp_path)
    where.recipe.write_text(json.dumps({"name": request.param}), encoding="utf-8")
    if request.param != RUN:
        where.identity.write_text(json.dumps({"run": RUN}), encoding="utf-8")
    store: Store = MemoryStore(where.ledgers)
    store.commit(RUN, 4, 1, ledger_bytes())
    store.open_activation(RUN, 5, 1)
    return tmp_path


def test_a_simulation_is_looked_at_in_its_folder(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed: list[dict[str, Any]] = json.loads(
        said(capsys, "ledger", "list", "--run-dir", str(run_dir), "--json")
    )
    assert [(one["client"], one["generation"], one["open_activation"]) for one in listed] == [
        (4, 1, None),
        (5, None, 1),
    ]
    assert {key: listed[0][key] for key in COUNTS} == COUNTS
    shown = said(capsys, "ledger", "show", "4", "--run-dir", str(run_dir))
    assert shown.startswith(f"{RUN}, client 4\n")


def keeps_bytes() -> MethodSpec:
    """A method whose states nothing can view"""
    return dataclasses.replace(find_method("fedil"), view_state=None)


def test_of_a_method_without_a_view_sizes_are_shown(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--run", RUN, "--store", url, "--site", "north", "--method", f"{__name__}:keeps_bytes")
    shown = json.loads(said(capsys, "ledger", "show", "7", *where, "--json"))
    assert (shown["generation"], shown["bytes"], shown.get("samples")) == (2, len(ledger_bytes()), None)
    rows = [line.split() for line in said(capsys, "ledger", "list", *where).splitlines()]
    assert rows[:2] == [
        ["client", "site", "generation", "open", "bytes"],
        ["7", "north", "2", "–", str(len(ledger_bytes()))],
    ]
    assert f"{len(ledger_bytes())} bytes" in said(capsys, "ledger", "show", "7", *where)


def test_a_method_that_only_the_folder_names_is_not_imported(
    run_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = foreign_code(run_dir, monkeypatch)
    RunDir(run_dir).recipe.write_text(json.dumps({"name": RUN, "method": {"name": trap.name}}), "utf-8")
    words = ("ledger", "list", "--run-dir", str(run_dir))
    assert f"--method {trap.name}" in complaint(capsys, 2, *words)
    assert not trap.ran
    main([*words, "--method", trap.name])
    assert trap.ran


@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        (["list"], 2, "FEDIL_STORE_URL"),
        (["list", "--store", "URL"], 2, "--run ID"),
        (["list", "--store", "memory:///run.sock", "--run", RUN], 2, "--run-dir"),
        (["list", "--store", "URL", "--run", "unknown"], 1, "no ledgers of run 'unknown'"),
        (["show", "99", "--store", "URL", "--run", RUN], 1, "has nothing of client 99"),
        (["show", "13", "--store", "URL", "--run", RUN], 1, "not_fedil"),
        (["list", "--store", "redis://:secret@127.0.0.1:1/0", "--run", RUN], 1, "127.0.0.1:1 is away"),
        (["list", "--run-dir", "nowhere"], 2, "there is no folder nowhere"),
        (["list", "--run-dir", "nowhere", "--site", "north"], 2, "leave out"),
    ],
)
def test_what_cannot_be_shown_is_said_in_one_line(
    url: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    code: int,
    what: str,
) -> None:
    monkeypatch.delenv("FEDIL_STORE_URL", raising=False)
    line = complaint(capsys, code, "ledger", *[url if word == "URL" else word for word in words])
    assert what in line
    assert "secret" not in line


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 0
    return capsys.readouterr().out


def complaint(capsys: pytest.CaptureFixture[str], code: int, *words: str) -> str:
    assert main(words) == code
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert out == ""
    return str(line)
