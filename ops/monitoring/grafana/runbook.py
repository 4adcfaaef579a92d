"""The runbook of the alerts as Markdown, from the alert rules."""

import yaml

from ops.monitoring.prometheus import RULES


def runbook() -> str:
    return "\n".join(f"- **{name}**: {line}" for name, line in runbook_lines().items())


def runbook_lines() -> dict[str, str]:
    """By alert"""
    groups = yaml.safe_load((RULES / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    return {rule["alert"]: rule["annotations"]["runbook"] for group in groups for rule in group["rules"]}
