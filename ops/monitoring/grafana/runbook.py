"""What to do about each alert, as Markdown, from the alert rules themselves."""

import re

from ops.monitoring.prometheus import RULES

_ALERT = re.compile(
    r"^ +- alert: (?P<name>\w+)$(?P<rest>.*?)(?=^ +- (?:alert|name): |\Z)", re.MULTILINE | re.DOTALL
)
_NEXT_KEY = r"(?=^\s*(?:\w+:|- |#|$)|\Z)"


def runbook() -> str:
    return "\n".join(f"- **{name}**: {line}" for name, line in runbook_lines().items())


def runbook_lines() -> dict[str, str]:
    """By alert. Enough of YAML for how that file is written; a test compares with what Prometheus reads in it."""
    text = (RULES / "alerts.yml").read_text(encoding="utf-8")
    return {found["name"]: _annotation(found["rest"], "runbook") for found in _ALERT.finditer(text)}


def _annotation(text: str, key: str) -> str:
    found = re.search(rf"^ +{key}: (?P<value>.*?){_NEXT_KEY}", text, re.MULTILINE | re.DOTALL)
    assert found, f"an alert without {key}"
    return " ".join(found["value"].split()).strip('"')
