"""Reads metrics as Prometheus does, for tests."""

import subprocess
from collections import Counter

from prometheus_client.parser import text_string_to_metric_families

from ops.local.services.process import find_program
from tests.services import needed

Labels = frozenset[tuple[str, str]]


def values(text: bytes, name: str) -> dict[Labels, float]:
    """Series of this name → value, by labels"""
    return {
        frozenset(sample.labels.items()): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if sample.name == name
    }


def value(text: bytes, name: str, **labels: str) -> float | None:
    """Of the one series that has at least these labels; None if there is none"""
    found = [number for held, number in values(text, name).items() if held >= labels.items()]
    assert len(found) <= 1, f"{name} with {labels}: {len(found)} series"
    return found[0] if found else None


def by_label(text: bytes, name: str, label: str) -> dict[str, float]:
    return {dict(labels)[label]: number for labels, number in values(text, name).items()}


def num_series(text: bytes) -> int:
    return sum(1 for line in text.decode().splitlines() if line and not line.startswith("#"))


def types(text: bytes) -> dict[str, str]:
    """Metric → type; each stands once and has a help text."""
    lines = text.decode().splitlines()
    shown = [line.split(" ", 3)[2:] for line in lines if line.startswith("# TYPE ")]
    helped = [line.split(" ", 3)[2:] for line in lines if line.startswith("# HELP ")]
    assert max(Counter(name for name, _ in shown).values()) == 1
    assert [name for name, _ in shown] == [name for name, _ in helped]
    assert all(help_text.strip() for _, help_text in helped)
    return dict(shown)


def promtool_complaints(text: bytes) -> str:
    """Of the linter that comes with Prometheus"""
    program = needed(
        lambda: find_program("promtool", missing="promtool is not installed: apt install prometheus")
    )
    done = subprocess.run(
        [program, "check", "metrics"], input=text, capture_output=True, timeout=60, check=False
    )
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0 or said
    return said
