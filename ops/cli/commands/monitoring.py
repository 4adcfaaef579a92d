"""Write what Prometheus and Grafana need to watch a deployment: scrape configuration (for plain machines and for
Kubernetes), recording rules, alerts with runbook lines, dashboards."""

import argparse
import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

_SITE = r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}"
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):(?P<port>\d{1,5})")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, metavar="DIR", required=True, help="where to write them")
    _add_places(parser, "--server", "servers", "of the servers' --web; default: 127.0.0.1:8265")
    _add_places(parser, "--rabbitmq", "rabbitmq", "of RabbitMQ's own metrics; default: 127.0.0.1:15692")
    _add_places(parser, "--redis-exporter", "redis_exporters", "where there is one")
    _add_places(parser, "--alertmanager", "alertmanagers", "where there is one")
    workers = "one name for all workers of a site, whose addresses are looked up; repeatable"
    parser.add_argument(
        "--workers", type=_site_place, action="append", metavar="SITE=HOST:PORT", help=workers
    )
    grafana = "where Grafana finds Prometheus; default: http://127.0.0.1:9090"
    every = "how often to look; default: 15"
    parser.add_argument("--prometheus", type=_url, metavar="URL", help=grafana)
    parser.add_argument("--every", dest="every_seconds", type=_seconds, metavar="SECONDS", help=every)
    parser.add_argument("--overwrite", action="store_true", help="also files that were changed")
    parser.add_argument("--json", action="store_true", help="the files that were written, as JSON")


def _add_places(parser: argparse.ArgumentParser, option: str, dest: str, what: str) -> None:
    """`dest`: the field of Places"""
    how: dict[str, Any] = {"type": _place, "action": "append", "metavar": "HOST:PORT"}
    parser.add_argument(option, dest=dest, help=f"{what}; repeatable", **how)


def run(args: argparse.Namespace) -> int:
    from ops.monitoring.files import Places, monitoring_files, write_monitoring

    places = Places(**{one.name: asked for one in fields(Places) if (asked := getattr(args, one.name))})
    written = write_monitoring(args.out, monitoring_files(places), args.overwrite)
    if args.json:
        print(json.dumps(list(map(str, written))))
        return 0
    for path in written:
        print(path)
    print(f"mount {args.out / 'prometheus'} as /etc/prometheus (in Kubernetes use its kubernetes.yml)")
    print(f"mount {args.out / 'grafana'} as /etc/grafana/provisioning")
    return 0


def _place(text: str) -> str:
    found = _ADDRESS.fullmatch(text)
    if not found or not 0 < int(found["port"]) < 65536:
        raise argparse.ArgumentTypeError(f"wants HOST:PORT, got {text!r}")
    return text


def _site_place(text: str) -> str:
    site, _, place = text.partition("=")
    if not re.fullmatch(_SITE, site) or not re.fullmatch(r"[A-Za-z0-9._-]+:\d+", place):
        raise argparse.ArgumentTypeError(f"wants SITE=HOST:PORT, got {text!r}")
    _place(place)
    return text


def _url(text: str) -> str:
    if not re.fullmatch(r"https?://[^\s/]+(/\S*)?", text):
        raise argparse.ArgumentTypeError(f"wants http(s)://HOST:PORT, got {text!r}")
    return text


def _seconds(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 15:
        raise argparse.ArgumentTypeError(
            f"wants whole seconds, 1 to 15 (a server shows its end for 20 s), got {text!r}"
        )
    return int(text)
