"""Check, cosine and fold of one update against the bare arithmetic; peak memory of 5 against 200 updates."""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedil_model.methods.fedil.aggregation import IncrementalFold
from fedil_model.methods.fedil.settings import FedILSettings
from fedil_model.training.flat_model import Weights

BAR = 0.5
NUM_PARAMS = 6_568_640
NUM_DECAYED = 6_560_000
NUM_BUFFERS = 4_000
ROUNDS = 81
FEW, MANY = 5, 200
SPARE_MIB = 16
"""What two processes may differ by; a single update that is kept is 25 MiB."""
CLIENT_DECAY = 0.996


def new_fold() -> tuple[IncrementalFold, Weights, Tensor]:
    """(fold, an update that it accepts, its reference)"""
    generator = torch.Generator().manual_seed(0)

    def draw(size: int, scale: float) -> Tensor:
        return torch.randn(size, generator=generator).mul_(scale)

    theta = Weights(draw(NUM_PARAMS, 0.03), draw(NUM_BUFFERS, 1.0))
    step = draw(NUM_PARAMS, 1e-3)
    server = Weights(theta.params + step, theta.buffers)
    # The costlier start: what the server's decay did has to be taken out too.
    fold = IncrementalFold(theta, server, FedILSettings(client_init="server"), NUM_DECAYED, 0.99)
    return fold, Weights(step + draw(NUM_PARAMS, 1e-3), draw(NUM_BUFFERS, 1e-2)), step


def as_received(x: Tensor) -> Tensor:
    """The same numbers behind a message's header, where no library would have put them."""
    message = bytearray(20 + 4 * x.numel())
    message[20:] = x.numpy().tobytes()
    return torch.from_numpy(np.frombuffer(message, np.float32, offset=20))


def seconds(action: Callable[[Tensor], None], x: Tensor) -> float:
    # This thread's time and not the wall's: neighbours on a shared machine are not what is measured.
    started = time.thread_time()
    action(x)
    return time.thread_time() - started


def speed() -> dict[str, float]:
    fold, update, reference = new_fold()
    total = torch.zeros(NUM_PARAMS)
    layouts = {"aligned": update.params, "received": as_received(update.params)}
    times: dict[str, list[float]] = {f"{side}_{name}": [] for name in layouts for side in ("bare", "fold")}

    def bare(x: Tensor) -> None:
        torch.dot(x, reference)
        torch.linalg.vector_norm(x)
        torch.linalg.vector_norm(reference)
        total.add_(x)

    def folded(x: Tensor) -> None:
        verdict = fold.add(Weights(x, update.buffers), CLIENT_DECAY)
        assert verdict.outcome == "accepted", verdict

    for _ in range(ROUNDS):
        for name, x in layouts.items():
            times[f"bare_{name}"].append(seconds(bare, x))
            times[f"fold_{name}"].append(seconds(folded, x))
    return {name: statistics.median(values[1:]) for name, values in times.items()}


def fold_many(num_updates: int) -> None:
    """In a process of its own: prints the peak of its resident memory, in MiB."""
    torch.set_num_threads(1)
    fold, update, _ = new_fold()
    for i in range(num_updates):
        # A new array each time, as the wire delivers them.
        assert fold.add(Weights(update.params * (1.0 + i / 1000), update.buffers), CLIENT_DECAY).counts
    assert fold.mean() is not None
    # Not getrusage: its peak outlives exec, so it would tell of this benchmark instead.
    status = Path("/proc/self/status").read_text().splitlines()
    print(next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024)


def peak_mib(num_updates: int) -> float:
    code = f"from tests.benchmarks.fold import fold_many; fold_many({num_updates})"
    # Freed arrays go back to the system at once, instead of when glibc thinks fit.
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(2**20)}
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=env)
    return float(done.stdout)


def run() -> dict[str, object]:
    torch.set_num_threads(1)
    few, many = peak_mib(FEW), peak_mib(MANY)
    medians = speed()
    ratios = {name: medians[f"bare_{name}"] / medians[f"fold_{name}"] for name in ("aligned", "received")}
    ratio = min(ratios.values())
    return {
        "name": "fold",
        "ratio": round(ratio, 3),
        "bar": BAR,
        "ok": ratio >= BAR and many <= few + SPARE_MIB,
        **{f"ratio_{name}": round(value, 3) for name, value in ratios.items()},
        **{f"{name}_ms": round(1000 * value, 2) for name, value in medians.items()},
        f"peak_mib_{FEW}": round(few, 1),
        f"peak_mib_{MANY}": round(many, 1),
    }
