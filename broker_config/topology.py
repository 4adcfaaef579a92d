"""Names of queues and notices, each of which exists once, here."""

DEAD_LETTERS = "fedil.dead"


def tasks_queue(site: str) -> str:
    """Where the workers of one site compete for its clients' tasks."""
    return f"fedil.tasks.{site}"


def updates_queue(run: str) -> str:
    """Where one run's server collects what clients learned."""
    return f"fedil.updates.{run}"


def models_queue(run: str) -> str:
    """The log of a run's model versions."""
    return f"fedil.models.{run}"


def lead_queue(run: str) -> str:
    """Whoever is first here is the run's server."""
    return f"fedil.lead.{run}"


RUNS_TOPIC = "runs"
"""Notices of servers, by run"""


def workers_topic(site: str) -> str:
    """Notices of a site's workers"""
    return f"workers.{site}"
