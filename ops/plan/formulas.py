"""What a federation of any size needs, as pure functions of what is measured once (`trial.Sizes`) and of its scale.

Compared with measured runs by tests, within 10 %: bytes that the server sends and receives, what the brokers pass on at
a given bandwidth, Redis' memory. Estimates: memory of server and worker (from `benchmarks two_gib`; without activations
and data) and of RabbitMQ; RabbitMQ's disk (the bound of its model log, and what a round leaves there until its
checkpoint).
"""

from dataclasses import dataclass

from ops.plan.trial import Sizes

_PROCESS_BYTES = 450 << 20
"""Python and torch, before there is a model"""
_BESIDE_EVALUATION_BYTES = 256 << 20
"""Networks up to this size are judged faster, with 2 W more"""
_SERVER_BYTES_PER_CLIENT = 200
"""Counts and totals of each client, before and after a round"""
_RESULT_BYTES = 600
"""Of one client in a checkpoint and in history.jsonl"""
_LEDGER_KEY_BYTES = 400
"""Of one client in Redis beside its ledgers: key, fields, pointers"""
_MEMBER_BYTES, _FEW_MEMBERS, _SMALL_MEMBER_BYTES = 56, 512, 4
"""Of a number in a set of Redis, which up to so many is an array"""
_BROKER_BYTES, _WRITE_AHEAD_LOG_BYTES = 150 << 20, 64 << 20
"""Of a RabbitMQ without queues; raft.wal_max_size_bytes in our rabbitmq.conf"""
_CONNECTIONS_PER_WORKER, _CONNECTION_BYTES = 3, 100 << 10
_SPARE_MODELS, _SEGMENT = 3, (16 << 20, 500_000_000)
"""As broker_config/transports/rabbitmq/model_log.py has them"""


@dataclass(frozen=True)
class Scale:
    clients: int
    per_round: int
    """Clients that train in a round; in buffered mode updates of an aggregation"""
    sites: int = 1
    workers: int = 1
    """Processes of all sites"""
    samples: int = 0
    """Of one client"""
    rounds: int = 1
    kept_models: int = 1
    """Versions that a client may still need: more than one in buffered mode"""
    megabits: float = 1000.0
    """Per second, of the broker's and the server's network in each direction"""
    train_seconds: float = 0.0
    """Of one client on one process"""

    @property
    def active_workers(self) -> int:
        return min(self.workers, self.per_round)


# Bytes of a round


def server_sends(sizes: Sizes, scale: Scale) -> int:
    return sizes.model + sizes.extras + scale.per_round * sizes.task


def server_receives(sizes: Sizes, scale: Scale) -> int:
    return scale.per_round * sizes.update


def broker_receives(sizes: Sizes, scale: Scale) -> int:
    return server_sends(sizes, scale) + server_receives(sizes, scale)


def broker_sends(sizes: Sizes, scale: Scale) -> int:
    """A worker reads a version once, however many clients it trains."""
    return (
        scale.active_workers * sizes.model
        + scale.per_round * (sizes.task + sizes.extras)
        + server_receives(sizes, scale)
    )


def worker_receives(sizes: Sizes, scale: Scale) -> int:
    return sizes.model + _tasks_of_a_worker(scale) * (sizes.task + sizes.extras)


def worker_sends(sizes: Sizes, scale: Scale) -> int:
    return _tasks_of_a_worker(scale) * sizes.update


def _tasks_of_a_worker(scale: Scale) -> int:
    return -(-scale.per_round // scale.active_workers)


# Time


def seconds_for(num_bytes: float, megabits: float) -> float:
    return num_bytes * 8 / (megabits * 1e6)


def transfer_seconds(sizes: Sizes, scale: Scale) -> float:
    """The model up, the model down to each worker, then updates up and down at the same time"""
    down = scale.active_workers * sizes.model + scale.per_round * (sizes.task + sizes.extras)
    one_after_the_other = server_sends(sizes, scale) + down + server_receives(sizes, scale)
    return seconds_for(one_after_the_other, scale.megabits)


def round_seconds(sizes: Sizes, scale: Scale) -> float:
    return transfer_seconds(sizes, scale) + _tasks_of_a_worker(scale) * scale.train_seconds


# Memory and disk


def redis_bytes(sizes: Sizes, scale: Scale) -> int:
    """Once every client has trained twice, or all rounds are over"""
    known = min(scale.clients, scale.per_round * scale.rounds)
    ledger = allocated(sizes.ledger_of(scale.samples) + 6)
    return known * (2 * ledger + _LEDGER_KEY_BYTES) + scale.sites * client_list_bytes(scale)


def client_list_bytes(scale: Scale) -> int:
    """Of one site"""
    members = -(-min(scale.clients, scale.per_round * scale.rounds) // scale.sites)
    return members * (_SMALL_MEMBER_BYTES if members <= _FEW_MEMBERS else _MEMBER_BYTES)


def allocated(num_bytes: int) -> int:
    """What jemalloc takes for a value: it has four sizes between two powers of two."""
    step = max(16, 1 << max((num_bytes - 1).bit_length() - 3, 0))
    return -(-num_bytes // step) * step


def broker_disk_bytes(sizes: Sizes, scale: Scale) -> int:
    """Updates stay until the checkpoint that holds them."""
    stored = sizes.model + sizes.model // 64 + (1 << 16)
    segment = min(max(stored, _SEGMENT[0]), _SEGMENT[1])
    log = (scale.kept_models + _SPARE_MODELS) * stored + 2 * segment
    return log + scale.per_round * (sizes.task + sizes.update)


def broker_memory_bytes(sizes: Sizes, scale: Scale) -> int:
    """RabbitMQ advises three times the write-ahead log of quorum queues. Bodies of updates are on disk."""
    tasks = scale.per_round * sizes.task
    connections = _CONNECTIONS_PER_WORKER * (scale.workers + 1) * _CONNECTION_BYTES
    return _BROKER_BYTES + 3 * _WRITE_AHEAD_LOG_BYTES + tasks + connections


def server_memory_bytes(sizes: Sizes, scale: Scale, *, keeps_updates: bool) -> int:
    """Five networks, one that is being evaluated, and what the method keeps beyond FedIL"""
    weights = 6 * sizes.network + max(0, sizes.state - 3 * sizes.network)
    weights += 2 * sizes.network * (scale.kept_models - 1)
    if sizes.network <= _BESIDE_EVALUATION_BYTES:
        weights += 2 * sizes.network
    if keeps_updates:
        weights += scale.per_round * sizes.update
    each = scale.clients * _SERVER_BYTES_PER_CLIENT + scale.per_round * _RESULT_BYTES
    return _PROCESS_BYTES + weights + each


def worker_memory_bytes(sizes: Sizes, scale: Scale) -> int:
    return _PROCESS_BYTES + 5 * sizes.network + sizes.extras + 2 * sizes.ledger_of(scale.samples)


def checkpoint_bytes(sizes: Sizes, scale: Scale) -> int:
    """Of one file; two are kept. Counts and totals of each client take about 30 bytes."""
    return sizes.state + 30 * scale.clients + scale.per_round * _RESULT_BYTES
