"""`fedil plan`: formulas at large scale, limits in order, and what is refused."""

import json
import re

import pytest

from broker_config.protocol.errors import MessageRejected
from broker_config.protocol.wire import pack_fields
from ops.cli.main import main
from ops.cli.recipe_files import read_recipe
from ops.plan import formulas
from ops.plan.formulas import Scale, allocated
from ops.plan.limits import limits, packed_bytes
from ops.plan.trial import measure_sizes
from tests.unit.ops.plans import NETWORK, SIZES, sizes_of

GIB = 1 << 30


def names(**scale: int) -> list[str]:
    return [limit.name for limit in limits(SIZES, Scale(**scale), 1800.0, {}) if limit.share > 1]


def test_a_million_clients_are_bounded_by_what_grows_with_them() -> None:
    assert names(clients=1_000_000, per_round=900, rounds=2000, sites=20, workers=100) == []
    (first, *_) = limits(SIZES, Scale(2_200_000, 900, sites=20, workers=100, rounds=2000), 1800.0, {})
    assert (first.name, first.share > 1) == ("bytes of clients' counts in a checkpoint", True)
    assert names(clients=1_500_000, per_round=900, rounds=2000, workers=50) == [
        "bytes of a site's list of clients in Redis"
    ]


def test_a_checkpoint_takes_the_counts_of_as_many_clients_as_the_limit_says() -> None:
    def fields(clients: int) -> dict[str, list[int]]:
        return {"activations": [1] * clients, "answered": [1] * clients}

    assert pack_fields(fields(2_000_000))
    with pytest.raises(MessageRejected, match="too_large"):
        pack_fields(fields(2_100_000))


@pytest.mark.parametrize(
    ("scale", "name"),
    [
        ({"per_round": 3000, "sites": 2}, "queues in RabbitMQ"),
        ({"per_round": 60, "workers": 60}, "workers of a site"),
        ({"per_round": 5, "megabits": 1}, "seconds of a round, against the deadline"),
    ],
)
def test_the_limit_that_is_hit_first_is_named(scale: dict[str, int], name: str) -> None:
    (first, *rest) = limits(SIZES, Scale(clients=5000, **scale), 1800.0, {})
    assert (first.name, first.share > 1) == (name, True)
    assert [limit.share for limit in rest] == sorted((limit.share for limit in rest), reverse=True)


def test_small_updates_need_no_queues_of_their_own() -> None:
    small = sizes_of(update=3 << 20)
    found = {limit.name: limit for limit in limits(small, Scale(5000, 3000, sites=2), 1e9, {})}
    assert found["queues in RabbitMQ"].used == 7
    assert "bytes of an update that a site may send" not in found


def test_a_capacity_that_does_not_suffice_comes_first() -> None:
    (first, *_) = limits(SIZES, Scale(100, 5), 1800.0, {"memory of Redis": (3.0 * GIB, 2.0 * GIB)})
    assert (first.name, first.share) == ("memory of Redis", 1.5)


def test_more_workers_read_more_models_and_the_server_still_sends_one() -> None:
    one, many = Scale(100, 20), Scale(100, 20, workers=200)
    assert formulas.server_sends(SIZES, one) == formulas.server_sends(SIZES, many)
    more = formulas.broker_sends(SIZES, many) - formulas.broker_sends(SIZES, one)
    assert more == 19 * SIZES.model  # workers beyond the tasks read nothing
    assert formulas.worker_sends(SIZES, many) == SIZES.update


def test_memory_of_the_server_does_not_grow_with_the_clients_of_a_round() -> None:
    few, many = (formulas.server_memory_bytes(SIZES, Scale(1000, n), keeps_updates=False) for n in (5, 500))
    assert many - few < 0.02 * NETWORK
    kept = formulas.server_memory_bytes(SIZES, Scale(1000, 500), keeps_updates=True)
    assert kept - many == 500 * SIZES.update


@pytest.mark.parametrize(("wanted", "given"), [(512, 512), (513, 640), (2052, 2560), (100_006, 114_688)])
def test_values_take_what_jemalloc_has_for_them(wanted: int, given: int) -> None:
    assert allocated(wanted) == given


def test_counts_in_a_checkpoint_grow_with_their_digits() -> None:
    assert [packed_bytes(count) for count in (0, 127, 128, 256, 70_000)] == [1, 1, 2, 3, 5]


def test_a_method_whose_updates_cannot_be_foretold_is_given_a_bound() -> None:
    sizes = measure_sizes(read_recipe("digits", ["method.name=fedmatch"]))
    assert sizes.is_bound
    assert sizes.update == sizes.model


def test_json_has_sizes_needs_and_limits(capsys: pytest.CaptureFixture[str]) -> None:
    wanted = ["--clients", "1000", "--clients-per-round", "100", "--samples", "70", "--redis-gib", "0.0001"]
    assert main(["plan", "digits", "--json", *wanted]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["sizes"]["network"] == 103912
    assert found["needs"]["server receives"] == 100 * found["sizes"]["update"]
    assert found["limits"][0]["name"] == "memory of Redis"


def test_the_table_ends_with_the_limit_that_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "digits", "--workers", "40"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^server sends +216\.\d kB$", said, re.MULTILINE)
    assert "limits: workers of a site comes first (fedil broker init --workers 40)" in said
    assert "80.0%  workers of a site: 40 of 50" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["digits", "--clients", "3"], "--clients-per-round is 5, but there are 3 clients"),
        (["digits", "--clients", "100000"], "give --samples N"),
        (["mnist-iid-001"], "or say how many a client has: --samples N"),
        (["digits", "--set", "method.name=server_only"], "asks no clients"),
        (["digit"], "did you mean digits?"),
    ],
)
def test_what_cannot_be_planned_is_named(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDIL_DATA", raising=False)
    assert main(["plan", *arguments]) == 2
    assert said in capsys.readouterr().err
