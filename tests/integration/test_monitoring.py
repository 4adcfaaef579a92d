"""The dashboards, rules and scrape configuration that we ship, on a real deployment: every panel shows something,
every alert watches something that exists, and what is killed is noticed."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pika
import pytest
import redis as redis_client
import torch

from broker_config.brokers.topology import updates_queue
from broker_config.transports.rabbitmq.queue_admin import route
from fedil_model.methods import find_method
from ops.local.services import Prometheus, Redis
from ops.local.services.process import free_ports, wait_until
from ops.monitoring.files import Places, prometheus_files, write_monitoring
from ops.monitoring.grafana.methods import metrics_of, registered
from server_worker.run.folder import RunDir
from tests.deployment import Deployed, write_recipe
from tests.integration.monitored import Api, PanelQuery, chosen, panel_queries
from tests.services import RabbitMQ, needed, private_rabbitmq

LONG = 300.0
SCRAPE_SECONDS = 1
BUFFERED_ROUNDS = 20
SELECTOR = re.compile(r"\b(?:up|fedil_\w+|rabbitmq_\w+|run:[\w:]+|site:[\w:]+)(?:\{[^}]*\})?")
ONLY_WITH_A_FULL_GPU = {"fedil_worker_device_memory_bytes", "fedil_worker_micro_batch"}
ONLY_IN_TROUBLE = {"Alerts"}
METHOD = "fedil"
OF_OTHER_METHODS = {metric for spec in registered() for metric in metrics_of(spec)} - metrics_of(
    find_method(METHOD)
)
SITE = "default"


class Watched(Deployed):
    """A server that knows the truth about its clients' labels, as `fedil server` does, at a port of ours."""

    def __init__(self, folder: Path, run: str, recipe: Path, broker: str, store: str, workers: int) -> None:
        self.run = run
        self.web = f"127.0.0.1:{free_ports(['web'])['web']}"
        super().__init__(folder / run, recipe, broker, store, workers)

    def _server(self) -> list[str]:
        module, *arguments = super()._server()
        assert module == "server_worker"
        return ["ops.cli", "server", *arguments, "--run", self.run, "--web", self.web]

    def closed_a_round(self) -> bool:
        return RunDir(self.folder / "run").history.stat().st_size > 0


class Deployment:
    """Two runs at one pair of brokers, served by the same two workers: one in rounds that will not end by itself, and
    a short one in buffered mode."""

    def __init__(
        self, rounds: Watched, buffered: Watched, rabbitmq: RabbitMQ, redis: Redis, api: Api
    ) -> None:
        self.rounds, self.buffered, self.api = rounds, buffered, api
        self.rabbitmq, self.redis = rabbitmq, redis

    @property
    def variables(self) -> dict[str, str]:
        return {"run": chosen([self.rounds.run, self.buffered.run]), "site": chosen([SITE])}

    def empty(self) -> list[PanelQuery]:
        return [query for query in panel_queries() if not self.api.panel_data(query, self.variables)]


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    with ExitStack() as stack:
        rabbitmq = needed(lambda: private_rabbitmq(tmp_path / "rabbitmq", metrics=True))
        redis = needed(lambda: Redis(tmp_path / "redis"))
        brokers = (stack.enter_context(rabbitmq).url, stack.enter_context(redis).url)
        endless, short = small(tmp_path / "one", 100_000), buffered(tmp_path / "two")
        rounds = Watched(tmp_path, "watched.rounds", endless, *brokers, workers=2)
        stack.enter_context(rounds)
        assert wait_until(rounds.closed_a_round, LONG), rounds.tail()
        second = Watched(tmp_path, "watched.buffered", short, *brokers, workers=0)
        stack.enter_context(second)
        files = prometheus_files(
            Places(
                servers=(rounds.web, second.web),
                rabbitmq=(rabbitmq.metrics_place,),
                every_seconds=SCRAPE_SECONDS,
            )
        )
        list(write_monitoring(tmp_path / "prometheus", files))
        prometheus = needed(lambda: Prometheus(tmp_path / "prometheus", files["prometheus.yml"]))
        api = Api(stack.enter_context(prometheus).url, SCRAPE_SECONDS)
        yield Deployment(rounds, second, rabbitmq, redis, api)


def small(folder: Path, rounds: int, more: str = "") -> Path:
    folder.mkdir()
    recipe = write_recipe(folder, rounds, more)
    recipe.write_text(
        recipe.read_text("utf-8").replace("evaluate_every = 100", "evaluate_every = 1"), "utf-8"
    )
    return recipe


def buffered(folder: Path) -> Path:
    return small(folder, BUFFERED_ROUNDS, 'mode = "buffered"\nin_flight = 4\nbuffer_size = 2\n')


def test_what_we_ship_shows_a_real_deployment_and_notices_what_dies(deployment: Deployment) -> None:
    """One deployment for all of it, and in this order."""
    every_panel_of_every_dashboard_shows_data(deployment)
    variables_offer_what_there_is(deployment)
    a_worker_that_two_servers_name_is_scraped_once(deployment)
    every_rule_works_and_watches_series_that_exist(deployment)
    nothing_fires_while_all_is_well(deployment)
    a_server_has_fewer_than_500_series_and_a_worker_too(deployment)
    short_lived_queues_make_no_series(deployment)
    garbage_is_dead_lettered_and_noticed(deployment)
    a_run_that_is_done_is_not_missed(deployment)
    workers_that_are_gone_are_noticed_and_the_alert_says_whose(deployment)
    a_broker_without_memory_is_noticed(deployment)
    a_store_that_evicts_is_noticed(deployment)
    a_broker_that_is_gone_is_noticed(deployment)
    a_server_that_was_killed_is_noticed(deployment)


def every_panel_of_every_dashboard_shows_data(deployment: Deployment) -> None:
    def only_these() -> bool:
        return not [query for query in deployment.empty() if not may_be_empty(query)]

    wait_until(only_these, LONG)
    empty = deployment.empty()
    assert [str(query) for query in empty if not may_be_empty(query)] == [], deployment.rounds.tail()
    # These are declared all the same: a panel that asks for a metric that no process exports is found.
    for name in ONLY_WITH_A_FULL_GPU:
        assert deployment.api.get("metadata", metric=name), name
    if not torch.cuda.is_available():
        assert {query.panel for query in empty} >= {"Memory", "Micro-batch"}


def may_be_empty(query: PanelQuery) -> bool:
    absent = ONLY_WITH_A_FULL_GPU | OF_OTHER_METHODS
    return query.panel in ONLY_IN_TROUBLE or any(name in query.expr for name in absent)


def variables_offer_what_there_is(deployment: Deployment) -> None:
    api = deployment.api
    runs = api.get("label/run/values", **{"match[]": "fedil_run_info"})
    assert set(runs) == {deployment.rounds.run, deployment.buffered.run}
    assert api.get("label/site/values", **{"match[]": 'up{job="fedil-worker"}'}) == [SITE]


def a_worker_that_two_servers_name_is_scraped_once(deployment: Deployment) -> None:
    assert len(deployment.api.values('up{job="fedil-worker"} == 1')) == 2


def every_rule_works_and_watches_series_that_exist(deployment: Deployment) -> None:
    groups = deployment.api.get("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"] == []
    for rule in rules:
        if rule["type"] == "recording":
            assert deployment.api.values(rule["name"]), rule["name"]
        selectors = SELECTOR.findall(rule["query"])
        assert selectors, rule["name"]
        for selector in selectors:
            assert deployment.api.values(f"last_over_time({selector}[10m])"), (rule["name"], selector)


def nothing_fires_while_all_is_well(deployment: Deployment) -> None:
    assert [alert for alert in deployment.api.alerts() if alert["state"] == "firing"] == []


def a_server_has_fewer_than_500_series_and_a_worker_too(deployment: Deployment) -> None:
    scraped = deployment.api.values('scrape_samples_scraped{job=~"fedil-.+"} > 0')
    assert len(scraped) >= 3
    assert max(scraped.values()) < 500


def short_lived_queues_make_no_series(deployment: Deployment) -> None:
    queues = deployment.api.get("label/queue/values", **{"match[]": "rabbitmq_detailed_queue_messages_ready"})
    assert f"fedil.tasks.{SITE}" in queues
    assert not [queue for queue in queues if queue.startswith("fedil.body.")]


def garbage_is_dead_lettered_and_noticed(deployment: Deployment) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(deployment.rabbitmq.url))
    connection.channel().basic_publish(*route(updates_queue(deployment.rounds.run)), b"garbage")
    connection.close()
    assert noticed(deployment, "FedilDeadLettersGrowing")["labels"]["run"].startswith("watched.")
    refused = f'fedil_messages_refused_total{{run="{deployment.rounds.run}"}} > 0'
    assert wait_until(lambda: bool(deployment.api.values(refused)), LONG)


def a_run_that_is_done_is_not_missed(deployment: Deployment) -> None:
    ended = deployment.buffered
    assert ended.server.finished.wait(LONG), ended.tail()
    api, instance = deployment.api, f'instance="{ended.web}"'
    assert wait_until(lambda: set(api.values(f"up{{{instance}}}").values()) == {0.0}, LONG)
    assert set(api.values(f"last_over_time(fedil_running{{{instance}}}[1h])").values()) == {0.0}
    assert set(api.values(f"last_over_time(fedil_round{{{instance}}}[1h])").values()) == {
        float(BUFFERED_ROUNDS)
    }
    assert not [alert for alert in api.alerts() if alert["labels"]["alertname"] == "FedilServerDown"]


def workers_that_are_gone_are_noticed_and_the_alert_says_whose(deployment: Deployment) -> None:
    for worker in deployment.rounds.workers:
        worker.stop()
    alert = noticed(deployment, "FedilNoWorkers")
    assert alert["annotations"]["summary"] == f"Run {deployment.rounds.run} has no worker."
    table = next(query for query in panel_queries() if query.panel in ONLY_IN_TROUBLE)
    assert deployment.api.panel_data(table, deployment.variables)


def a_broker_without_memory_is_noticed(deployment: Deployment) -> None:
    deployment.rabbitmq.ctl("set_vm_memory_high_watermark", "absolute", "1MB")
    alert = noticed(deployment, "FedilBrokerMemoryAlarm")
    assert alert["labels"]["instance"] == deployment.rabbitmq.metrics_place
    deployment.rabbitmq.ctl("set_vm_memory_high_watermark", "0.5")


def a_store_that_evicts_is_noticed(deployment: Deployment) -> None:
    with redis_client.Redis.from_url(deployment.redis.url) as client:
        client.config_set("maxmemory-policy", "allkeys-random")
        client.config_set("maxmemory", client.info("memory")["used_memory"] + 500_000)
        for number in range(200):
            client.set(f"ballast-{number}", bytes(20_000))
    assert noticed(deployment, "FedilStoreEvicting")["labels"]["run"] == deployment.rounds.run


def a_broker_that_is_gone_is_noticed(deployment: Deployment) -> None:
    deployment.rabbitmq.kill()
    assert noticed(deployment, "FedilRabbitMQDown")["labels"]["instance"] == deployment.rabbitmq.metrics_place
    assert noticed(deployment, "FedilBrokersUnreachable")["labels"]["run"] == deployment.rounds.run


def a_server_that_was_killed_is_noticed(deployment: Deployment) -> None:
    deployment.rounds.server.stop()
    alert = noticed(deployment, "FedilServerDown")
    assert alert["labels"]["instance"] == deployment.rounds.web
    assert alert["annotations"]["summary"].startswith(
        f"The server at {deployment.rounds.web} does not answer"
    )


def noticed(deployment: Deployment, name: str) -> dict[str, dict[str, str]]:
    """The alert, pending or firing."""

    def found() -> list[dict[str, dict[str, str]]]:
        return [alert for alert in deployment.api.alerts() if alert["labels"]["alertname"] == name]

    assert wait_until(lambda: bool(found()), LONG), deployment.rounds.tail()
    return found()[0]
