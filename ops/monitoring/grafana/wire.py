"""Traffic, queues, and the state of RabbitMQ and Redis."""

from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import Dashboard

from ops.monitoring.grafana.board import RUN, board, of_run
from ops.monitoring.grafana.panels import GREEN, RED, YELLOW, Panel, Query, bars, lines, number

ALARM = {"0": ("off", GREEN), "1": ("ALARM", RED)}


def wire() -> Dashboard:
    return board(
        "wire",
        "FedIL / Wire and brokers",
        "Bytes, queues, RabbitMQ, Redis. Brokers serve every run.",
        {"Now": now(), "Wire": traffic(), "Queues": queues(), "RabbitMQ": rabbitmq(), "Redis": redis()},
        {"Prometheus itself": prometheus()},
    )


def now() -> list[Panel]:
    return [
        number(
            "Brokers",
            "Whether RabbitMQ and Redis answered the server when it last looked.",
            Query(of_run("fedil_brokers_reachable")),
            words={"0": ("unreachable", RED), "1": ("reachable", GREEN)},
            width=4,
        ),
        number(
            "RabbitMQ memory alarm",
            "While it is on, RabbitMQ blocks publishers. FedilBrokerMemoryAlarm says what to do.",
            Query("max(rabbitmq_alarms_memory_used_watermark)", "memory"),
            words=ALARM,
            width=4,
        ),
        number(
            "RabbitMQ disk alarm",
            "While it is on, RabbitMQ blocks publishers.",
            Query("max(rabbitmq_alarms_free_disk_space_watermark)", "disk"),
            words=ALARM,
            width=4,
        ),
        number(
            "Dead letters",
            "Messages in the queue fedil.dead, kept for a week. Growing: see FedilDeadLettersGrowing.",
            Query(of_run("fedil_queue_messages", 'queue="dead_letters"')),
            steps={None: GREEN, 1: YELLOW},
            width=4,
        ),
        number(
            "Keys evicted by Redis",
            "Must be 0: they may be clients' ledgers. FedilStoreEvicting says what to do.",
            Query(of_run("fedil_store_evicted_keys_total")),
            steps={None: GREEN, 1: RED},
            width=4,
        ),
        number(
            "Sent per round",
            "By the server, in the last hour: it sends a model once, however many clients are asked.",
            Query(f'run:fedil_transport_bytes_per_round:mean1h{{{RUN},direction="sent"}}'),
            unit=units.BytesIEC,
            width=4,
        ),
    ]


def traffic() -> list[Panel]:
    def bytes_of(labels: str) -> str:
        return f"sum by (direction, kind) (rate(fedil_transport_bytes_total{{{labels}}}[$__rate_interval]))"

    return [
        lines(
            "Server: bytes per second",
            "Of message bodies, by direction and kind.",
            Query(bytes_of(f'{RUN},job="fedil-server"'), "{{direction}} {{kind}}"),
            unit=units.BytesPerSecondIEC,
            width=8,
        ),
        lines(
            "Workers: bytes per second",
            "All workers together. A model is received once a version by each worker that has a task for it.",
            Query(bytes_of('job="fedil-worker"'), "{{direction}} {{kind}}"),
            unit=units.BytesPerSecondIEC,
            width=8,
        ),
        lines(
            "Server: bytes per round",
            "Mean over the last hour. What is received grows with the clients that answer, what is sent does not.",
            Query(f"run:fedil_transport_bytes_per_round:mean1h{{{RUN}}}", "{{direction}} {{run}}"),
            unit=units.BytesIEC,
            width=8,
        ),
    ]


def queues() -> list[Panel]:
    def of_queue(what: str) -> Query:
        return Query(f"sum by (queue) (rabbitmq_detailed_queue_{what})", "{{queue}}")

    return [
        lines(
            "Messages waiting, as the server sees them",
            "tasks: of all sites. updates: that the server has not taken yet.",
            Query(f"max by (run, queue) (fedil_queue_messages{{{RUN}}})", "{{queue}} {{run}}"),
        ),
        lines(
            "Ready, by queue",
            "fedil.models.RUN is a log: its messages stay until newer versions push them out.",
            of_queue("messages_ready"),
        ),
        lines(
            "Unacknowledged, by queue",
            "Tasks that workers have at hand, updates that the server has not made durable yet.",
            of_queue("messages_unacked"),
        ),
        lines(
            "Consumers, by queue",
            "A task queue without consumers: a site without workers. fedil.updates.RUN: its server is gone.",
            of_queue("consumers"),
        ),
    ]


def rabbitmq() -> list[Panel]:
    def rate(what: str) -> str:
        return f"sum(rate(rabbitmq_global_messages_{what}_total[$__rate_interval]))"

    dead = {
        reason: f"sum(increase(rabbitmq_global_messages_dead_lettered_{reason}_total[$__rate_interval]))"
        for reason in ("rejected", "delivery_limit", "expired", "maxlen")
    }
    return [
        lines(
            "Memory",
            "At its limit a node raises the memory alarm and blocks publishers.",
            Query("rabbitmq_process_resident_memory_bytes", "used {{instance}}"),
            Query("rabbitmq_resident_memory_limit_bytes", "limit {{instance}}"),
            unit=units.BytesIEC,
            width=8,
        ),
        lines(
            "Disk",
            "Below its limit a node raises the disk alarm and blocks publishers.",
            Query("rabbitmq_disk_space_available_bytes", "free {{instance}}"),
            Query("rabbitmq_disk_space_available_limit_bytes", "limit {{instance}}"),
            unit=units.BytesIEC,
            logarithmic=True,
            width=8,
        ),
        lines(
            "Connections and channels",
            "A sawtooth: a client connects again and again. See RabbitMQ's log for the reason.",
            Query("rabbitmq_connections", "connections {{instance}}"),
            Query("rabbitmq_channels", "channels {{instance}}"),
            width=8,
        ),
        lines(
            "Messages per second",
            "Redelivered ones come back from workers that died or gave up a task.",
            Query(rate("received"), "published"),
            Query(rate("delivered"), "delivered"),
            Query(rate("acknowledged"), "acknowledged"),
            Query(rate("redelivered"), "redelivered"),
        ),
        bars(
            "Dead-lettered by RabbitMQ",
            "delivery_limit: a task that every worker that took it has failed on. What a process refuses itself is "
            "in Messages refused (Convergence).",
            *(Query(expr, reason) for reason, expr in dead.items()),
        ),
    ]


def redis() -> list[Panel]:
    return [
        lines(
            "Memory",
            "As Redis tells the server. It holds what clients keep between activations.",
            Query(of_run("fedil_store_memory_bytes")),
            unit=units.BytesIEC,
        ),
        bars(
            "Keys evicted",
            "Within each step of time.",
            Query(f"max by (run) (increase(fedil_store_evicted_keys_total{{{RUN}}}[$__rate_interval]))"),
        ),
    ]


def prometheus() -> list[Panel]:
    return [
        lines(
            "Targets that answer",
            "Share, by job.",
            Query('avg by (job) (up{job=~"fedil-.+|rabbitmq.*|redis"})', "{{job}}"),
            unit=units.PercentUnit,
            highest=1,
        ),
        lines(
            "Series per target",
            "The most of each job. A server stays below 500 however many clients a run has.",
            Query(
                'max by (job) (scrape_samples_post_metric_relabeling{job=~"fedil-.+|rabbitmq.*|redis"})',
                "{{job}}",
            ),
        ),
    ]
