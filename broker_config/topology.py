"""Names of queues, each of which exists once, here."""

DEAD_LETTERS = "fedil.dead"


def tasks_queue(site: str) -> str:
    """Where the workers of one site compete for its clients' tasks."""
    return f"fedil.tasks.{site}"


def updates_queue(run: str) -> str:
    """Where one run's server collects what clients learned."""
    return f"fedil.updates.{run}"
