"""What a run was made with: versions, processor, device. Kept in its folder, so that a figure can be judged later.

Nothing that names a person or a machine: a report may be handed on."""

import json
import os
import platform
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker_config.process.durable import write_atomically
from broker_config.process.version import software_version
from broker_config.protocol.errors import FedILError
from server_worker.run.folder import RunDir, read_json

if TYPE_CHECKING:
    import torch

_MOST_KEPT = 20
_TIMES = ("first_started", "last_started", "starts")


def record_environment(where: RunDir, device: "torch.device", **more: str | int) -> None:
    """To be called at every start. A run that goes on elsewhere, or with another version, adds an entry; the same
    again only counts one start more. `more`: what else the caller knows, such as workers=2."""
    facts = {**_facts(device), **more}
    known: list[Mapping[str, Any]] = []
    with suppress(FedILError, OSError):  # no run is refused for what it was made with
        known += read_environment(where)
    now = round(time.time(), 3)
    if known and {key: value for key, value in known[-1].items() if key not in _TIMES} == facts:
        last = known.pop()
        entry = {**last, "last_started": now, "starts": int(last.get("starts", 0)) + 1}
    else:
        entry = {**facts, "first_started": now, "last_started": now, "starts": 1}
    body = json.dumps([*known, entry][-_MOST_KEPT:], indent=1)
    write_atomically(where.environment, [body.encode()])


def read_environment(where: RunDir) -> tuple[Mapping[str, Any], ...]:
    """Oldest first; empty for a run of a version that did not record it. Raises FedILError if it is damaged."""
    known = read_json(where.environment)
    if known is None:
        return ()
    if not isinstance(known, list) or not all(isinstance(entry, dict) for entry in known):
        raise FedILError(f"{where.environment.name} is not a list of environments")
    return tuple(known)


def _facts(device: "torch.device") -> dict[str, str | int]:
    import numpy
    import torch

    from fedil_model.training.precision import computes_bf16

    facts: dict[str, str | int] = {
        "fedil": software_version(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "device": str(device),
        "cpu": processor_name(),
        "bf16": "computed" if computes_bf16(device.type) else "emulated",
        "cores": usable_cores(),
        "memory_bytes": _memory_bytes(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}".strip(),
    }
    if device.type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(device)
        facts["cuda"] = str(torch.version.cuda)
    return facts


def processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.lower().startswith("model name"))
    return next(filter(None, named), platform.processor() or platform.machine() or "unknown")


def usable_cores() -> int:
    """Those that this process may use"""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0
