"""The files that Prometheus and Grafana read, with a deployment's addresses and scrape interval in them."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from broker_config.process.durable import make_directory, write_atomically
from broker_config.protocol.errors import FedILError
from ops.monitoring.grafana import PROVISIONING
from ops.monitoring.prometheus import PROMETHEUS

MOST_SECONDS = 15
"""A server shows its end for 20 s: a Prometheus that scrapes less often may miss it, and take it for a crash."""


@dataclass(frozen=True)
class Places:
    """Each HOST:PORT as Prometheus sees it"""

    servers: Sequence[str] = ("127.0.0.1:8265",)
    rabbitmq: Sequence[str] = ("127.0.0.1:15692",)
    redis_exporters: Sequence[str] = ()
    alertmanagers: Sequence[str] = ()
    prometheus: str = "http://127.0.0.1:9090"
    """As Grafana sees it"""
    workers: Sequence[str] = ()
    """Each SITE=HOST:PORT: a name that stands for all of a site's workers, as a service in compose does"""
    every_seconds: int = MOST_SECONDS


def monitoring_files(places: Places) -> dict[str, str]:
    """Path → text: folders to mount as /etc/prometheus and /etc/grafana/provisioning."""
    parts = {"prometheus": prometheus_files(places), "grafana": grafana_files(places)}
    return {f"{part}/{path}": text for part, files in parts.items() for path, text in files.items()}


def prometheus_files(places: Places) -> dict[str, str]:
    files = _read(PROMETHEUS)
    for name in ("prometheus.yml", "kubernetes.yml"):
        files[name] = _every(files[name], places.every_seconds)
    files["prometheus.yml"] = _find_by_name(_ask_for_workers(files["prometheus.yml"], places), places)
    targets = {
        "server": places.servers,
        "rabbitmq": places.rabbitmq,
        "redis": places.redis_exporters,
        "alertmanager": places.alertmanagers,
    }
    for name, found in targets.items():
        files[f"targets/{name}.json"] = json.dumps([{"targets": list(found)}] if found else []) + "\n"
    return files


def grafana_files(places: Places) -> dict[str, str]:
    files = _read(PROVISIONING)
    source = files["datasources/fedil.yml"]
    source = _swap(source, "url: http://127.0.0.1:9090", f"url: {json.dumps(places.prometheus)}")
    source = _swap(source, f"timeInterval: {MOST_SECONDS}s", f"timeInterval: {places.every_seconds}s")
    return files | {"datasources/fedil.yml": source}


def write_monitoring(out: Path, files: Mapping[str, str], overwrite: bool = False) -> Iterator[Path]:
    """Writes nothing if a file that differs would be lost."""
    for path, text in files.items():
        file = out / path
        if not overwrite and file.exists() and file.read_text(encoding="utf-8", errors="replace") != text:
            raise FedILError(f"{file} is there and differs: give --overwrite, or another folder")
    for path, text in files.items():
        make_directory((out / path).parent)
        write_atomically(out / path, [text.encode()])
        yield out / path


def _read(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for ending in ("yml", "json")
        for path in sorted(folder.rglob(f"*.{ending}"))
    }


def _every(config: str, seconds: int) -> str:
    for setting in ("scrape_interval", "evaluation_interval"):
        config = _swap(config, f"{setting}: {MOST_SECONDS}s", f"{setting}: {seconds}s")
    return _swap(config, "scrape_timeout: 10s", f"scrape_timeout: {min(10, seconds)}s")


def _ask_for_workers(config: str, places: Places) -> str:
    def asking(place: str, seconds: int) -> str:
        return f"      - url: http://{place}/targets\n        refresh_interval: {seconds}s\n"

    (shipped,) = Places().servers
    wanted = (asking(server, places.every_seconds) for server in places.servers)
    return _swap(config, asking(shipped, MOST_SECONDS), "".join(wanted))


def _find_by_name(config: str, places: Places) -> str:
    """Workers that share a name; which site's they are, Prometheus knows by it."""
    if not places.workers:
        return config
    discovery, labels = ["    dns_sd_configs:\n"], ["    relabel_configs:\n"]
    for each in places.workers:
        site, _, place = each.partition("=")
        host, _, port = place.rpartition(":")
        found = {
            "names": [host],
            "type": "A",
            "port": int(port),
            "refresh_interval": f"{places.every_seconds}s",
        }
        label = {"source_labels": ["__meta_dns_name"], "regex": re.escape(host)}
        label |= {"target_label": "site", "replacement": site}
        discovery.append(f"      - {json.dumps(found)}\n")  # JSON is YAML, too
        labels.append(f"      - {json.dumps(label)}\n")
    files = "      - files: [targets/workers.json]\n"
    return _swap(config, files, "".join([files, *discovery, *labels]))


def _swap(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
    return text.replace(old, new)
