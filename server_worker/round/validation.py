"""What clients say of themselves. Whoever wrote it may be broken or lying: it must not outgrow logs, records and
checkpoints, nor bend what is computed from it."""

import re
from collections.abc import Sequence

from broker_config.process.logs import one_line as escaped
from broker_config.protocol.messages import Update
from fedil_model.settings import OptimiserSettings

MOST_METRICS = 64
MOST_SAMPLES = 10**9
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_LARGEST_METRIC = 1e30
"""Sums and squares of such numbers are finite still."""
_COUNTS = ("pseudo_labels", "credible")
_LONGEST_TEXT = 1000


def one_line(text: str) -> str:
    """What others say, for terminals and files: nothing in it steers anything."""
    return escaped(" ".join(text[:_LONGEST_TEXT].split()))


def impossible(update: Update, settings: OptimiserSettings, held: Sequence[int] = ()) -> str:
    """What cannot be, in words; empty if all of it can. Steps tell how much weight decay there was and how much the
    clients have done for a round. `held` is how many samples each client has, where the server knows."""
    samples, steps = update.num_samples, update.num_steps
    if update.client < len(held) and samples != held[update.client]:
        return f"num_samples is {samples}, where the split gave this client {held[update.client]}"
    if not 1 <= samples <= MOST_SAMPLES:
        return f"num_samples is {samples}, not from 1 to {MOST_SAMPLES}"
    most = settings.epochs * -(-samples // settings.batch_size)
    if not 1 <= steps <= most:
        return f"num_steps is {steps}, where {samples} samples make 1 to {most} possible"
    return ""


def kept_metrics(update: Update) -> dict[str, float]:
    """The first that are worth keeping; nobody holds more labelled samples than samples."""
    kept: dict[str, float] = {}
    for name, value in update.metrics.items():
        if len(kept) < MOST_METRICS and _NAME.fullmatch(name) and abs(value) <= _LARGEST_METRIC:
            kept[name] = min(max(value, 0.0), update.num_samples) if name in _COUNTS else value
    return kept
