"""Where the arithmetic runs, and in which type. The weights themselves stay float32."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Literal

import torch

from fedil_model.errors import SettingError

Autocast = Literal["off", "bf16", "auto"]

_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "alloc_failed")
"""CUDA, cuDNN and NCCL; the CPU's allocator; cuBLAS"""


def autocast(device: torch.device, precision: Autocast) -> torch.autocast:
    enabled = precision == "bf16" or (precision == "auto" and computes_bf16(device.type))
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=enabled)


@cache
def computes_bf16(device_type: str) -> bool:
    """Whether the processor multiplies bfloat16 itself. Elsewhere it is emulated, which is slower than float32."""
    if device_type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return bool({"avx512_bf16", "amx_bf16", "bf16"} & set(flags.split()))


def choose_device(name: str) -> torch.device:
    """auto, cpu, cuda or cuda:N."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise SettingError(f"unknown device {name!r}: use auto, cpu or cuda:N") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise SettingError(
            f"device {name} asked for, but {torch.cuda.device_count()} CUDA devices are visible"
        )
    return device


def repeatable_on(device: torch.device) -> None:
    """The same task gives the same bits. On a CPU that takes a fixed number of threads: one, since several
    processes with one thread each also beat one process with several. On a GPU it takes slower kernels; cuBLAS
    needs CUBLAS_WORKSPACE_CONFIG in the environment too, which the code that starts the process sets."""
    if device.type == "cpu":
        torch.set_num_threads(1)
    else:
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True
        torch.use_deterministic_algorithms(True, warn_only=True)


def is_out_of_memory(error: BaseException) -> bool:
    """Not every library beneath torch raises torch's own type."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    said = str(error).lower()
    return isinstance(error, RuntimeError) and any(words in said for words in _OUT_OF_MEMORY)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """For layers that draw from torch's global generator (dropout): seeded inside, restored outside."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
