"""What `fedil monitoring` writes is what Prometheus takes, and does what it says: with pods as Kubernetes describes
them, and with a worker that lies."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from ops.local.services import Prometheus
from ops.local.services.process import find_program, free_ports, wait_until
from ops.monitoring.files import Places, prometheus_files, write_monitoring
from tests.integration.monitored import Api
from tests.services import needed

SOON = 60.0


def unreachable(every_seconds: int = 15) -> Places:
    """Where nothing listens; at the usual ports there may be a real deployment."""
    ports = [f"127.0.0.1:{port}" for port in free_ports(["server", "rabbitmq"]).values()]
    return Places(servers=(ports[0],), rabbitmq=(ports[1],), every_seconds=every_seconds)


def monitoring(*words: str | Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "ops.cli", "monitoring", "--out", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def promtool(*words: str | Path) -> "subprocess.CompletedProcess[str]":
    program = needed(
        lambda: find_program("promtool", missing="promtool is not installed: apt install prometheus")
    )
    return subprocess.run([program, *map(str, words)], capture_output=True, text=True, check=False)


def test_what_is_written_has_the_addresses_and_passes_promtool(tmp_path: Path) -> None:
    addresses = ["--server", "gpu-1:8265", "--server", "[::1]:9000", "--rabbitmq", "mq:15692", "--every", "5"]
    more = [
        "--redis-exporter",
        "cache:9121",
        "--alertmanager",
        "am:9093",
        "--prometheus",
        "https://prom.example/x",
    ]
    done = monitoring(tmp_path / "out", *addresses, *more)
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines()[:-2]:
        assert Path(line).is_file()
    prometheus, grafana = tmp_path / "out" / "prometheus", tmp_path / "out" / "grafana"
    checked = promtool("check", "config", prometheus / "prometheus.yml")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    config = (prometheus / "prometheus.yml").read_text("utf-8")
    assert "- url: http://gpu-1:8265/targets" in config
    assert "- url: http://[::1]:9000/targets" in config
    assert "127.0.0.1" not in config
    found = {path.stem: json.loads(path.read_text("utf-8")) for path in (prometheus / "targets").iterdir()}
    assert found == {
        "server": [{"targets": ["gpu-1:8265", "[::1]:9000"]}],
        "rabbitmq": [{"targets": ["mq:15692"]}],
        "redis": [{"targets": ["cache:9121"]}],
        "alertmanager": [{"targets": ["am:9093"]}],
        "workers": [],
    }
    source = (grafana / "datasources" / "fedil.yml").read_text("utf-8")
    assert 'url: "https://prom.example/x"' in source
    assert "timeInterval: 5s" in source
    assert {path.name for path in (grafana / "dashboards").iterdir()} == {
        "fedil.yml",
        "convergence.json",
        "fleet.json",
        "wire.json",
    }


def test_workers_behind_one_name_are_looked_up_and_belong_to_their_site(tmp_path: Path) -> None:
    names = ["--workers", "north=workers.north:8265", "--workers", "true=workers:9000"]
    assert monitoring(tmp_path, *names, "--every", "5").returncode == 0
    checked = promtool("check", "config", tmp_path / "prometheus" / "prometheus.yml")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    config = yaml.safe_load((tmp_path / "prometheus" / "prometheus.yml").read_text("utf-8"))
    (job,) = [job for job in config["scrape_configs"] if job["job_name"] == "fedil-worker"]
    assert job["dns_sd_configs"] == [
        {"names": ["workers.north"], "type": "A", "port": 8265, "refresh_interval": "5s"},
        {"names": ["workers"], "type": "A", "port": 9000, "refresh_interval": "5s"},
    ]
    sites = {rule["regex"]: rule["replacement"] for rule in job["relabel_configs"]}
    assert sites == {r"workers\.north": "north", "workers": "true"}
    assert "http_sd_configs" in job
    assert "file_sd_configs" in job


def test_files_that_were_changed_are_kept_without_overwrite(tmp_path: Path) -> None:
    assert monitoring(tmp_path).returncode == 0
    assert monitoring(tmp_path).returncode == 0  # the same files again are no conflict
    changed = tmp_path / "prometheus" / "rules" / "alerts.yml"
    changed.write_text("groups: []\n")
    done = monitoring(tmp_path, "--server", "elsewhere:1")
    assert done.returncode == 1
    assert "differs: give --overwrite, or another folder" in done.stderr
    assert changed.read_text() == "groups: []\n"
    assert "elsewhere" not in (tmp_path / "prometheus" / "prometheus.yml").read_text()
    assert monitoring(tmp_path, "--overwrite").returncode == 0
    assert "FedilServerDown" in changed.read_text("utf-8")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--server", "http://gpu-1:8265"], "--server: wants HOST:PORT, got 'http://gpu-1:8265'"),
        (["--server", "gpu-1"], "--server: wants HOST:PORT"),
        (["--rabbitmq", "mq:99999"], "--rabbitmq: wants HOST:PORT"),
        (["--server", "a:1\n      - url: http://b"], "--server: wants HOST:PORT"),
        (["--workers", "worker:8265"], "--workers: wants SITE=HOST:PORT, got 'worker:8265'"),
        (["--workers", "a.b=worker:8265"], "--workers: wants SITE=HOST:PORT"),
        (["--workers", "north=[::1]:8265"], "--workers: wants SITE=HOST:PORT"),
        (["--prometheus", "prom:9090"], "--prometheus: wants http(s)://HOST:PORT"),
        (["--every", "60"], "--every: wants whole seconds, 1 to 15"),
    ],
)
def test_a_wrong_address_is_named_and_nothing_is_written(words: list[str], said: str, tmp_path: Path) -> None:
    done = monitoring(tmp_path / "out", *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) <= 2
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = monitoring(tmp_path / "file")
    assert done.returncode == 1
    assert str(tmp_path / "file") in done.stderr
    assert "Traceback" not in done.stderr


# Kubernetes. This Prometheus may be built without its discovery, so pods come from a file that says of them what the
# discovery does; what is done with that is ours, and unchanged.

META = "__meta_kubernetes_"


def pod(
    name: str, component: str, *, port: str = "8265", part_of: str = "fedil", **more: str
) -> dict[str, Any]:
    labels = {
        "namespace": "learning",
        "pod_name": name,
        "pod_ip": "10.0.0.7",
        "pod_phase": "Running",
        "pod_annotation_prometheus_io_scrape": "true",
        "pod_annotation_prometheus_io_port": port,
        "pod_label_app_kubernetes_io_part_of": part_of,
        "pod_label_app_kubernetes_io_component": component,
        **more,
    }
    return {"targets": ["10.0.0.7:1234"], "labels": {META + key: value for key, value in labels.items()}}


PODS = [
    pod("server-0", "server"),
    pod("server-done", "server", pod_phase="Succeeded"),
    pod("server-failed", "server", pod_phase="Failed", port="8266"),
    pod("worker-0", "worker", pod_label_fedil_site="north"),
    pod("worker-quiet", "worker", pod_annotation_prometheus_io_scrape="false"),
    pod("rabbit-0", "rabbitmq", part_of="rabbitmq", pod_annotation_prometheus_io_port="15692"),
    pod("of-another-product", "server", part_of="shop"),
]


def test_pods_are_found_by_their_annotations_and_named_by_their_labels(tmp_path: Path) -> None:
    files = prometheus_files(unreachable())
    discovery = "    kubernetes_sd_configs:\n      - role: pod\n"
    assert files["kubernetes.yml"].count(discovery) == 4
    config = files["kubernetes.yml"].replace(discovery, "    file_sd_configs:\n      - files: [pods.json]\n")
    list(write_monitoring(tmp_path, {**files, "pods.json": json.dumps(PODS)}))
    with needed(lambda: Prometheus(tmp_path, config)) as prometheus:
        api = Api(prometheus.url, 15)

        def found() -> list[tuple[str, ...]]:
            labels = [target["labels"] for target in api.get("targets", state="active")["activeTargets"]]
            names = ("job", "instance", "pod", "namespace", "site")
            return sorted(tuple(one.get(name, "") for name in names) for one in labels)

        assert wait_until(lambda: len(found()) >= 5, SOON)
        assert found() == [
            ("fedil-server", "10.0.0.7:8265", "server-0", "learning", ""),
            ("fedil-server", "10.0.0.7:8266", "server-failed", "learning", ""),
            ("fedil-worker", "10.0.0.7:8265", "worker-0", "learning", "north"),
            ("rabbitmq", "10.0.0.7:15692", "rabbit-0", "learning", ""),
            ("rabbitmq-queues", "10.0.0.7:15692", "rabbit-0", "learning", ""),
        ]


# Workers belong to sites, and say what they like.

LIES = """\
fedil_round{run="theirs"} 7
fedil_running{run="theirs"} 1
fedil_worker_busy{run="theirs",site="another",job="fedil-server"} 1
rabbitmq_alarms_memory_used_watermark 1
"""


@contextmanager
def exporter(text: str) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_worker_cannot_pass_for_a_server_nor_flood_prometheus(tmp_path: Path) -> None:
    flood = "".join(f'fedil_worker_loss{{term="{number}"}} 1\n' for number in range(2000))
    with exporter(LIES) as liar, exporter(flood) as flooder:
        workers = [{"targets": [place], "labels": {"site": "north"}} for place in (liar, flooder)]
        files = prometheus_files(unreachable(every_seconds=1)) | {"targets/workers.json": json.dumps(workers)}
        list(write_monitoring(tmp_path, files))
        with needed(lambda: Prometheus(tmp_path, files["prometheus.yml"])) as prometheus:
            api = Api(prometheus.url, 1)
            assert wait_until(lambda: bool(api.values("fedil_worker_busy")), SOON)
            assert wait_until(lambda: len(api.values('up{job="fedil-worker"}')) == 2, SOON)
            (labels,) = map(json.loads, api.values("fedil_worker_busy"))
            assert labels == {
                "__name__": "fedil_worker_busy",
                "job": "fedil-worker",
                "instance": liar,
                "site": "north",
            }
            assert not api.values('{__name__=~"fedil_round|fedil_running|fedil_worker_loss|rabbitmq.+"}')
            assert list(api.values(f'up{{instance="{flooder}"}}').values()) == [0.0]


def test_the_command_is_answered_without_torch() -> None:
    code = "import sys; from ops.cli.main import main; main(sys.argv[1:]); print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, "monitoring", "--out", os.devnull],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines()[-1] == "False"
