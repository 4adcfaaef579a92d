"""Checks of this machine: torch and its GPU, the data, the disk."""

import importlib.metadata
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fedil_model.training.precision import choose_device, computes_bf16
from ops.doctor.finding import Finding, wrong_or_ok
from server_worker.run.environment import processor_name, usable_cores

if TYPE_CHECKING:
    from ops.plan.trial import Sizes
    from server_worker.run.recipe import Recipe

_INSTALL = "pip install --upgrade torch torchvision"
_INSTALL_FOR_GPU = f"{_INSTALL} --index-url https://download.pytorch.org/whl/cu130"
_CHECKPOINTS = 3
"""Two are kept while the next one is written, of state and models"""
_SPARE_BYTES = 1 << 30
_SMI_SECONDS = 20.0


def check_torch() -> Iterator[Finding]:
    import torch

    where = f"torch {torch.__version__} on Python {platform.python_version()}"
    try:
        import torchvision
        from torchvision.ops import nms

        nms(torch.zeros(1, 4), torch.zeros(1), 0.5)  # only there if both were built for each other
        problems = pairing_problems(torch.__version__, torchvision.__version__, _built_for())
        yield from wrong_or_ok(where, problems, f"goes with torchvision {torchvision.__version__}")
    except (ImportError, RuntimeError, AttributeError) as error:
        said = str(error).partition("\n")[0]
        yield Finding("wrong", f"{where}: torchvision was not built for it ({said}): {_INSTALL}")


def _built_for() -> str | None:
    """The version of torch that the installed torchvision names"""
    wanted = importlib.metadata.requires("torchvision") or []
    found = (re.match(r"torch\s*\(?==\s*([\w.]+)", line) for line in wanted)
    return next((match[1] for match in found if match), None)


def pairing_problems(torch_version: str, vision_version: str, built_for: str | None) -> Iterator[str]:
    release, _, build = torch_version.partition("+")
    vision_build = vision_version.partition("+")[2]
    if built_for is not None and built_for != release:
        yield f"torchvision {vision_version} was built for torch {built_for}: {_INSTALL}"
    elif build and vision_build and build != vision_build:
        yield f"torchvision {vision_version} is of another build: {_INSTALL}, both from the same index"


def check_device(device: str, autocast: str | None) -> Iterator[Finding]:
    """`autocast`: the recipe's"""
    import torch

    chosen = choose_device(device)
    if chosen.type == "cuda":
        where = f"GPU {torch.cuda.get_device_name(chosen)} (CUDA {torch.version.cuda})"
        free, total = torch.cuda.mem_get_info(chosen)
        yield Finding("ok", f"{where} has {free >> 20} of {total >> 20} MiB free")
    else:
        where = f"CPU {processor_name()}"
        yield Finding("ok", f"{where} has {usable_cores()} cores for this process")
        yield from _unused_gpu(device)
    yield check_bf16(where, computes_bf16(chosen.type), autocast)


def _unused_gpu(device: str) -> Iterator[Finding]:
    import torch

    if device != "auto":
        return
    names = _gpu_names()
    if not names:
        yield Finding("ok", "no GPU is in this machine")
    elif torch.version.cuda is None:
        yield Finding("wrong", f"{names} is not used: torch was built for CPUs: {_INSTALL_FOR_GPU}")
    else:
        yield Finding(
            "wrong",
            f"{names} is not used: its driver is too old for CUDA {torch.version.cuda}, or not visible here: update "
            "the driver, or give the container its devices (docker run --gpus all)",
        )


def _gpu_names() -> str:
    """What the driver knows; empty without a driver"""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    command = [program, "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ", ".join(done.stdout.split("\n")).strip(", ") if done.returncode == 0 else ""


def check_bf16(where: str, is_computed: bool, autocast: str | None) -> Finding:
    if is_computed:
        return Finding("ok", f"{where} computes bf16")
    if autocast == "bf16":
        return Finding(
            "wrong", f"{where} only emulates bf16, which is slower than float32: --set autocast=auto"
        )
    return Finding("ok", f"{where} does not compute bf16; autocast=auto trains in float32")


def check_data(recipe: "Recipe") -> Iterator[Finding]:
    from fedil_model.data.datasets import open_dataset

    dataset = open_dataset(recipe.data)
    parts = f"{len(dataset.load_train().labels)} training and {len(dataset.load_test().labels)} test samples"
    yield Finding("ok", f"data {recipe.data.name} has {parts}")


def check_shards(folder: Path) -> Iterator[Finding]:
    from client_worker.shards import ShardFolder

    clients = ShardFolder(folder).clients
    yield Finding("ok", f"{folder} has shards of {len(clients)} clients")


def check_disk(folder: Path, sizes: "Sizes | None") -> Iterator[Finding]:
    """`folder` may not exist yet."""
    there = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    needed = _CHECKPOINTS * (2 * sizes.state if sizes else 0) + _SPARE_BYTES
    free = shutil.disk_usage(there).free
    problems = [
        f"{free >> 20} MiB are free, a run may need {needed >> 20}: free space, or --run-dir elsewhere"
    ]
    yield from wrong_or_ok(
        f"disk of {folder}", problems if free < needed else (), f"has {free >> 20} MiB free"
    )
