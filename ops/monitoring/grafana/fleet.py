"""Workers and their tasks. Workers serve every run, so their metrics have a site and no run."""

from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import Dashboard

from ops.monitoring.grafana.board import RUN, SITE, board, of_run
from ops.monitoring.grafana.methods import worker_row
from ops.monitoring.grafana.panels import (
    GREEN,
    GREY,
    RED,
    YELLOW,
    Panel,
    Query,
    bars,
    buckets,
    lines,
    number,
    rows,
    states,
)

OUTCOMES = {
    "answered": "green",
    "repeated": "light-green",
    "refused": "orange",
    "returned": "blue",
    "dropped": GREY,
    "rejected": "red",
    "out_of_memory": "dark-red",
}
PROCESSES = 'job=~"fedil-server|fedil-worker"'


def fleet() -> Dashboard:
    return board(
        "fleet",
        "FedIL / Fleet",
        "Workers and clients: which are there, what they do, how fast.",
        {"Now": now(), "Workers": workers(), "Tasks": tasks(), "Machines": machines()},
        {"What clients report, mean by site of each worker's last task": worker_row()},
        sites=True,
    )


def now() -> list[Panel]:
    return [
        number(
            "Workers alive",
            "That have told the board of themselves within 15 s.",
            Query(of_run("fedil_workers_alive")),
            steps={None: RED, 1: GREEN},
            width=4,
        ),
        number(
            "Clients without a worker",
            "Their site has none; they are not asked.",
            Query(f"{of_run('fedil_clients')} - {of_run('fedil_clients_alive')}"),
            steps={None: GREEN, 1: YELLOW},
            width=4,
        ),
        number(
            "Busy",
            "Share of the workers that train now. Low beside waiting tasks: they lack data, memory or the broker.",
            Query(f"avg(fedil_worker_busy{{{SITE}}})", "busy"),
            unit=units.PercentUnit,
            width=4,
        ),
        number(
            "Images per second",
            "Of all workers, over 5 minutes.",
            Query(f"sum(site:fedil_worker_images:rate5m{{{SITE}}})", "images/s"),
            width=4,
        ),
        number(
            "Tasks waiting",
            "At the broker, for all sites of the run. Long: more workers would help.",
            Query(of_run("fedil_queue_messages", 'queue="tasks"')),
            width=4,
        ),
        number(
            "Out of memory in 1 h",
            "Tasks that did not fit the device. They went back, and the micro-batch was halved.",
            Query(f'sum(increase(fedil_worker_tasks_total{{{SITE},outcome="out_of_memory"}}[1h]))', "tasks"),
            steps={None: GREEN, 1: YELLOW},
            width=4,
        ),
    ]


def workers() -> list[Panel]:
    return [
        lines(
            "Workers",
            "alive: as the server sees them on the board. reached: whose metrics Prometheus gets, by site. Fewer "
            "reached than alive: see FedilWorkerNotScraped.",
            Query(of_run("fedil_workers_alive"), "alive, {{run}}"),
            Query(f'sum by (site) (up{{job="fedil-worker",{SITE}}})', "reached, {{site}}"),
        ),
        lines(
            "Clients",
            "alive: their site has a worker.",
            Query(of_run("fedil_clients"), "all of {{run}}"),
            Query(of_run("fedil_clients_alive"), "alive of {{run}}"),
        ),
        lines(
            "Images per second, by site",
            "Trained by workers, over 5 minutes; and as updates tell it, by run.",
            Query(f"site:fedil_worker_images:rate5m{{{SITE}}}", "site {{site}}"),
            Query(f"run:fedil_images:rate5m{{{RUN}}}", "run {{run}}"),
        ),
        lines(
            "Images per second, by worker",
            "Of its last task. One that is much slower than its neighbours holds up rounds.",
            Query(f"fedil_worker_images_per_second{{{SITE}}}", "{{site}} {{instance}}"),
        ),
        states(
            "At work",
            "Each worker: training, or waiting for a task.",
            Query(f"fedil_worker_busy{{{SITE}}}", "{{site}} {{instance}}"),
            {"0": ("waiting", GREY), "1": ("training", GREEN)},
            width=24,
        ),
        rows("Workers that are there", "As they describe themselves.", f"fedil_worker_info{{{SITE}}}"),
    ]


def tasks() -> list[Panel]:
    def rate(suffix: str, by: str) -> str:
        metric = f"fedil_worker_task_duration_seconds_{suffix}"
        return f"sum by ({by}) (rate({metric}{{{SITE}}}[$__rate_interval]))"

    outcomes = f"sum by (outcome) (increase(fedil_worker_tasks_total{{{SITE}}}[$__rate_interval]))"
    training = (
        f'sum by (le) (increase(fedil_worker_task_duration_seconds_bucket{{{SITE},phase="train"}}'
        "[$__rate_interval]))"
    )
    return [
        bars(
            "Tasks by outcome",
            "repeated: done before, the kept answer was sent again. refused: the worker says why, e.g. a ledger "
            "that was fenced off. returned: given back at a stop. rejected: not to be understood, dead-lettered.",
            Query(outcomes, "{{outcome}}"),
            colors=OUTCOMES,
            width=8,
        ),
        lines(
            "Seconds per task, by phase",
            "Mean. fetch: reading the model; publish: sending the update. Both are the network and the broker.",
            Query(
                f"{rate('sum', 'site, phase')} / ({rate('count', 'site, phase')} > 0)", "{{phase}} {{site}}"
            ),
            unit=units.Seconds,
            width=8,
        ),
        buckets("Seconds of training", "All workers chosen above.", training, unit=units.Seconds, width=8),
    ]


def machines() -> list[Panel]:
    return [
        lines(
            "CPU",
            "Cores in use, by process.",
            Query(
                f"rate(process_cpu_seconds_total{{{PROCESSES}}}[$__rate_interval])", "{{job}} {{instance}}"
            ),
            width=8,
        ),
        lines(
            "Memory",
            "Resident, by process; and what workers hold on their GPU, where they have one.",
            Query(f"process_resident_memory_bytes{{{PROCESSES}}}", "{{job}} {{instance}}"),
            Query(f"fedil_worker_device_memory_bytes{{{SITE}}}", "GPU {{site}} {{instance}}"),
            unit=units.BytesIEC,
            width=8,
        ),
        lines(
            "Micro-batch",
            "Samples at a time, halved whenever the device's memory did not suffice. Empty where whole batches fit.",
            Query(f"min by (site, instance) (fedil_worker_micro_batch{{{SITE}}})", "{{site}} {{instance}}"),
            width=8,
        ),
    ]
