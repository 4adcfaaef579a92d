"""What clients report, checked. It may be wrong or hostile: it must not outgrow logs, records and checkpoints, nor
distort what is computed from it."""

from collections.abc import Sequence

from broker_config.process.logs import one_line as escaped
from broker_config.protocol.messages import Update
from fedil_model.methods.interface import Display
from fedil_model.settings import OptimiserSettings

MOST_SAMPLES = 10**9
_LARGEST_METRIC = 1e30
"""Sums and squares of such numbers are still finite."""
_LONGEST_TEXT = 1000
ENGINE_METRICS = ("seconds_train", "seconds_fetch", "seconds_cpu", "images_per_second", "micro_batch")
"""What a worker adds to the method's own metrics"""


def one_line(text: str) -> str:
    """Text from elsewhere, for terminals and files: one line without control characters."""
    return escaped(" ".join(text[:_LONGEST_TEXT].split()))


def impossible(update: Update, settings: OptimiserSettings, shard_sizes: Sequence[int] = ()) -> str:
    """What cannot be true of an update, in words; empty if all of it can. Steps say how much weight decay there was
    and how much work is behind a round. `shard_sizes`: samples of each client, where the server knows."""
    samples, steps = update.num_samples, update.num_steps
    if update.client < len(shard_sizes) and samples != shard_sizes[update.client]:
        return f"num_samples is {samples}, where the split gave this client {shard_sizes[update.client]}"
    if not 1 <= samples <= MOST_SAMPLES:
        return f"num_samples is {samples}, not from 1 to {MOST_SAMPLES}"
    most = settings.epochs * -(-samples // settings.batch_size)
    if not 0 <= steps <= most:
        return f"num_steps is {steps}, where {samples} samples make 0 to {most} possible"
    return ""


def kept_metrics(update: Update, display: Display) -> dict[str, float]:
    """Those that the method declares for clients, within bounds: a client total counts samples, of which a client has
    no more than `num_samples`."""
    sources = dict.fromkeys(ENGINE_METRICS, "client_mean") | {s.name: s.source for s in display.series()}
    kept = {}
    for name, value in update.metrics.items():
        if abs(value) <= _LARGEST_METRIC and sources.get(name) in ("client_mean", "client_total"):
            is_total = sources[name] == "client_total"
            kept[name] = min(max(value, 0.0), float(update.num_samples)) if is_total else value
    return kept
