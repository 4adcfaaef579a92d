"""Prometheus' configuration: what to scrape, recording rules, alerts. The files are used as they are, but for
addresses (see ops.monitoring.files)."""

from pathlib import Path

PROMETHEUS = Path(__file__).parent
RULES = PROMETHEUS / "rules"
