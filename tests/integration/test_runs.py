"""Runs in their folders: a list of them, and going on to more rounds."""

from pathlib import Path

from tests.deployment import Deployed, write_recipe
from tests.integration.test_cli import SMALL, complaint, fedil
from tests.integration.test_deployment import SOON, simulate
from tests.services import Service


def test_a_run_goes_on_to_more_rounds_only_when_they_are_asked_for(tmp_path: Path) -> None:
    command = ["simulate", "--run-dir", str(tmp_path / "run"), *SMALL, "--set", "client.lr_schedule=cosine"]
    assert fedil(*command, "--quiet").returncode == 0
    line = complaint(fedil(*command, "--set", "rounds=3", "--resume"), 2)
    assert "rounds was 2, is 3" in line
    assert line.endswith("--rounds 3 goes on to so many rounds")
    assert "cannot go on to 1" in complaint(fedil(*command, "--resume", "--rounds", "1"), 2)
    extended = fedil(*command, "--resume", "--rounds", "3")
    assert "finished 3 of 3 rounds" in extended.stdout
    assert "client.lr follows a cosine over 3 rounds from here on, not over 2" in extended.stdout
    assert "all 3 rounds are over" in fedil(*command, "--resume", "--rounds", "3").stdout


def test_a_finished_deployment_goes_on_to_more_rounds_with_the_bits_of_a_longer_one(
    rabbitmq: Service, redis: Service, tmp_path: Path
) -> None:
    recipe = write_recipe(tmp_path, rounds=1)
    brokers = (rabbitmq.url, redis.url)
    with Deployed(tmp_path, recipe, *brokers, workers=1) as run:
        run.wait(SOON)
    longer = ["--set", "rounds=2"]
    with Deployed(tmp_path, recipe, *brokers, workers=0, server_restarts=False, more=longer) as refused:
        refused.wait_until_logged(refused.server_log, "--rounds 2 goes on to so many rounds", SOON)
    with Deployed(tmp_path, recipe, *brokers, workers=1, more=["--rounds", "2"]) as extended:
        digests = extended.wait(SOON)
    assert digests == simulate(write_recipe(tmp_path, rounds=2), tmp_path / "simulated", workers=1)
