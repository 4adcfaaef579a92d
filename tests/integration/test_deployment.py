"""The deployment as people start it: server and worker processes over real RabbitMQ and Redis."""

import json
import re
import signal
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from broker_config.brokers.topology import workers_topic
from broker_config.stores import connect_store
from server_worker.round.selection import select_clients
from server_worker.run.history import read_history
from tests.deployment import ROOT, Deployed, write_all_shards, write_recipe
from tests.services import Service
from tests.serving import until

SOON = 240.0
"""Seconds within which a small run ends, however busy the machine."""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recipe(tmp_path_factory.mktemp("recipe"), rounds=4)


@pytest.fixture(scope="module")
def simulated(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """θ′ and ledgers of the same recipe over memory://, which 1 and 2 workers must agree on."""
    digests = [simulate(recipe, tmp_path_factory.mktemp("simulated") / str(n), workers=n) for n in (1, 2)]
    assert digests[0] == digests[1]
    return digests[0]


def simulate(recipe: Path, run_dir: Path, workers: int) -> tuple[str, str]:
    command = [sys.executable, "-m", "ops.cli", "simulate", str(recipe), "--run-dir", str(run_dir)]
    told = subprocess.run(
        [*command, "--workers", str(workers), "--json", "--quiet"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    summary = json.loads(told.stdout.splitlines()[-1])
    return summary["model_digest"], summary["ledger_digest"]


@pytest.mark.parametrize("workers", [1, 2])
def test_rabbitmq_and_redis_give_the_bits_of_the_simulation(
    workers: int, recipe: Path, simulated: tuple[str, str], rabbitmq: Service, redis: Service, tmp_path: Path
) -> None:
    with Deployed(tmp_path, recipe, rabbitmq.url, redis.url, workers) as run:
        assert run.wait(SOON) == simulated


def test_updates_in_fewer_bytes_give_the_bits_of_the_simulation_and_survive_kills(
    recipe: Path, rabbitmq: Service, redis: Service, tmp_path: Path
) -> None:
    smaller = tmp_path / "recipe.toml"
    text = recipe.read_text("utf-8").replace("[federation]", '[federation]\nwire = "int8"')
    smaller.write_text(text, "utf-8")
    wanted = simulate(smaller, tmp_path / "simulated", workers=1)
    with Deployed(tmp_path / "deployed", smaller, rabbitmq.url, redis.url, workers=2) as run:
        run.wait_for_progress(6, SOON)
        run.server.kill()
        run.workers[0].kill()
        assert run.wait(SOON) == wanted
    plain = simulate(recipe, tmp_path / "plain", workers=1)
    assert plain != wanted
    few, many = (received_in(tmp_path / name) for name in ("simulated", "plain"))
    assert few < 0.32 * many


def received_in(run_dir: Path) -> int:
    return sum(record["bytes_received"] for record in read_history(run_dir / "history.jsonl"))


def test_a_standby_server_takes_over_and_the_run_ends_with_the_same_bits(
    recipe: Path, simulated: tuple[str, str], rabbitmq: Service, redis: Service, tmp_path: Path
) -> None:
    with Deployed(tmp_path, recipe, rabbitmq.url, redis.url, workers=0, server_restarts=False) as run:
        run.wait_until_logged(run.server_log, "round 1 of 4 is next", SOON)
        with run.standby() as standby:
            run.wait_until_logged(standby.log, "another server leads run", SOON)
            run.add_worker()
            run.wait_for_progress(0, SOON)
            run.server.kill()
            assert run.wait(SOON, standby) == simulated


def test_sigterm_stops_the_server_cleanly_and_the_same_command_goes_on(
    recipe: Path, simulated: tuple[str, str], rabbitmq: Service, redis: Service, tmp_path: Path
) -> None:
    with Deployed(tmp_path, recipe, rabbitmq.url, redis.url, workers=1, server_restarts=False) as first:
        first.wait_for_progress(1, SOON)
        first.server.signal(signal.SIGTERM)
        assert first.server.finished.wait(SOON), first.tail()
        assert "the same command goes on with it" in first.server_log.read_text("utf-8")
    with Deployed(tmp_path, recipe, rabbitmq.url, redis.url, workers=1) as second:
        assert second.wait(SOON) == simulated


def test_a_redis_that_lost_everything_is_noticed_and_named(
    recipe: Path, rabbitmq: Service, own_redis: Service, tmp_path: Path
) -> None:
    with Deployed(tmp_path, recipe, rabbitmq.url, own_redis.url, workers=1, server_restarts=False) as first:
        first.wait_until_logged(first.server_log, ", round 1: closed: ", SOON)
        first.server.kill()
    forget_everything(own_redis)
    with Deployed(tmp_path, recipe, rabbitmq.url, own_redis.url, workers=1, server_restarts=False) as second:
        second.wait_until_logged(second.server_log, "has lost all that it kept of run", SOON)


def forget_everything(service: Service) -> None:
    import redis

    client = redis.Redis.from_url(service.url)
    client.flushall()
    client.close()


def test_clients_of_a_site_without_workers_are_not_asked(
    rabbitmq: Service, redis: Service, tmp_path: Path
) -> None:
    more = "site_timeout_seconds = 1.0\nmin_sites = 1\n[federation.sites]\nhere = 8\nelsewhere = 4\n"
    recipe = write_recipe(tmp_path, rounds=5, more=more)
    write_all_shards(recipe, tmp_path / "shards")
    with Deployed(tmp_path / "run", recipe, rabbitmq.url, redis.url, workers=0) as run:
        run.wait_until_logged(run.server_log, "round 1 of 5 is next", SOON)
        run.add_worker("elsewhere")
        with closing(connect_store(redis.url)) as store:
            topic = workers_topic("elsewhere")
            until(lambda: store.notices(topic), run.tail, SOON)
            run.workers[0].stop()
            store.withdraw(topic, next(iter(store.notices(topic))))
        run.wait_until_logged(run.server_log, "site elsewhere has no worker", SOON)
        run.add_worker("here")
        run.wait(SOON)
        said = run.server_log.read_text("utf-8")
        # The last round asked only those who are there: nobody was missing.
        assert re.search(r"round 5: closed: accepted \d of 4", said)
        assert len(re.findall(r"round 5, client [0-7]: ", said)) == 4


def test_a_site_whose_limits_are_reached_takes_no_further_part_and_the_run_goes_on(
    rabbitmq: Service, redis: Service, tmp_path: Path
) -> None:
    recipe = write_recipe(tmp_path, rounds=5, more="[federation.sites]\nhere = 8\nelsewhere = 4\n")
    write_all_shards(recipe, tmp_path / "shards")
    limits = tmp_path / "limits.toml"
    limits.write_text('methods = ["fedil"]\nmax_activations = 1\nclip_norm = 2.0\n', "utf-8")
    with Deployed(tmp_path / "run", recipe, rabbitmq.url, redis.url, workers=0) as run:
        run.add_worker("here")
        run.add_worker("elsewhere", "--limits", str(limits))
        run.wait(SOON)
        said = run.server_log.read_text("utf-8")
    assert "refused (SiteLimit: this site trains a client at most 1 times in a run (max_activations))" in said
    of_the_site = Counter(
        outcome["client"]
        for record in read_history(tmp_path / "run" / "run" / "history.jsonl")
        for outcome in record["outcomes"]
        if outcome["client"] >= 8 and outcome["outcome"] in ("accepted", "rejected_cosine")
    )
    assert set(of_the_site.values()) == {1}


def test_a_round_that_asks_only_a_site_without_workers_turns_to_others_and_a_killed_server_stays_with_them(
    rabbitmq: Service, redis: Service, tmp_path: Path
) -> None:
    more = "site_timeout_seconds = 1.0\nmin_sites = 1\n[federation.sites]\nhere = 8\nelsewhere = 4\n"
    recipe = write_recipe(tmp_path, rounds=4, more=more)
    everybody_elsewhere = (8, 9, 10, 11)
    seed = next(n for n in range(10**5) if select_clients(n, 1, range(12), 4) == everybody_elsewhere)
    recipe.write_text(f"seed = {seed}\n" + recipe.read_text("utf-8"), "utf-8")
    with Deployed(tmp_path / "deployed", recipe, rabbitmq.url, redis.url, workers=0) as run:
        run.wait_until_logged(run.server_log, "round 1 of 4 is next", SOON)
        run.add_worker("here")
        run.wait_until_logged(
            run.server_log, "round 1: 0 of 4 clients have trained, the quorum is 4; asking 4 more", SOON
        )
        run.server.kill()
        run.wait(SOON)
        assert run.server.starts == 2, run.tail()
    first, *others = read_history(tmp_path / "deployed" / "run" / "history.jsonl")
    learned = [o["client"] for o in first["outcomes"] if o["outcome"] in ("accepted", "rejected_cosine")]
    assert len(learned) == 4
    assert not set(learned) & set(everybody_elsewhere)
    assert len(others) == 3
