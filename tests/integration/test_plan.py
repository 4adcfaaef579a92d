"""What `fedil plan` foretells, against runs and a Redis that are measured: within ten per cent."""

from contextlib import closing
from pathlib import Path

import pytest
from redis import Redis as Client

from broker_config.stores import connect_store
from broker_config.stores.interface import Store
from ops.local.services import Redis
from ops.plan import formulas
from ops.plan.formulas import Scale
from ops.plan.trial import measure_sizes
from server_worker.run.recipe import Recipe, make_recipe
from tests.federation import Federation, Over, blobs_recipe
from tests.services import needed
from tests.unit.ops.plans import SIZES, sizes_of

TOLERANCE = 0.1


def wide(method: str = "fedil", wire: str = "fp32") -> Recipe:
    """A network that codecs make smaller: they leave small arrays as they are."""
    values = blobs_recipe().model_dump(include={"name", "data", "split", "client"}, exclude_defaults=True)
    network, federation = {"name": "mlp", "width": 64}, {"clients_per_round": 3, "wire": wire}
    more = {"method": {"name": method}, "rounds": 2, "network": network, "federation": federation}
    return make_recipe({**values, **more})


def compare(federation: Federation) -> None:
    recipe = federation.recipe
    sizes = measure_sizes(recipe)
    scale = Scale(recipe.split.clients, recipe.federation.clients_per_round)
    federation.play()
    for record in federation.diary.records:
        assert record.bytes_sent == pytest.approx(formulas.server_sends(sizes, scale), rel=TOLERANCE)
        assert record.bytes_received == pytest.approx(formulas.server_receives(sizes, scale), rel=TOLERANCE)
    ledgers = federation.ledgers.latest(recipe.name)
    assert ledgers
    for client, (_, ledger) in ledgers.items():
        foretold = sizes.ledger_of(len(federation.split.clients[client]))
        assert len(ledger) == pytest.approx(foretold, rel=TOLERANCE)


@pytest.mark.parametrize("method", ["fedil", "semifl", "fedu"])
def test_the_bytes_of_a_round_and_of_ledgers_are_as_foretold(method: str, tmp_path: Path) -> None:
    compare(Federation(wide(method), tmp_path))


def test_so_they_are_over_rabbitmq_and_redis_in_a_byte_a_number(over: Over) -> None:
    compare(over(wide(wire="int8")))


@pytest.mark.parametrize("samples", [50, 6500])
def test_the_memory_of_redis_is_as_foretold(samples: int, tmp_path: Path) -> None:
    clients, ledger = 300, bytes(SIZES.ledger_of(samples))
    scale = Scale(clients, per_round=10, samples=samples, rounds=1000)
    with (
        needed(lambda: Redis(tmp_path, options=["--appendonly", "no"])) as server,
        Client.from_url(server.url) as redis,
        closing(connect_store(server.url)) as store,
    ):
        commit(store, clients, ledger)  # what the first write takes is not of this run alone
        before = redis.info("memory")["used_memory"]
        for client in range(clients):
            commit(store, client, ledger)
        taken = redis.info("memory")["used_memory"] - before
    assert formulas.redis_bytes(SIZES, scale) == pytest.approx(taken, rel=TOLERANCE)


def commit(store: Store, client: int, ledger: bytes) -> None:
    for activation in (1, 2, 3):
        store.open_activation("planned", client, activation)
        store.commit("planned", client, activation, ledger)


@pytest.mark.parametrize(
    ("wire", "update", "seconds"), [("fp32", 4, 25.77), ("fp16", 2, 15.33), ("int8", 1, 10.27)]
)
def test_the_time_at_a_bandwidth_is_that_of_the_benchmark_wire_codecs(
    wire: str, update: int, seconds: float
) -> None:
    """One worker, five clients, a model of 6.57 M numbers; one link of 100 Mbit/s carried both directions."""
    numbers = 6_570_000
    sizes = sizes_of(model=4 * numbers, update=update * numbers)
    scale = Scale(5, 5, workers=1, megabits=100.0)
    passed_on = formulas.broker_receives(sizes, scale) + formulas.broker_sends(sizes, scale)
    assert formulas.seconds_for(passed_on, scale.megabits) == pytest.approx(seconds, rel=TOLERANCE)
    assert formulas.transfer_seconds(sizes, scale) < seconds  # with a direction each
