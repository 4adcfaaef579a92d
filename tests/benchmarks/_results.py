"""Figures under ops/results, each with the command, commit and machine that it comes from."""

import json
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from server_worker.run.environment import processor_name, usable_cores

ROOT = Path(__file__).parents[2]


def write_results(name: str, figures: Mapping[str, Any]) -> None:
    facts = {
        "command": shlex.join(["python", "-m", "tests.benchmarks", *sys.argv[1:]]),
        "commit": _commit(),
        "machine": f"{processor_name()}, {usable_cores()} cores",
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    path = ROOT / "ops" / "results" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**facts, **figures}, indent=1) + "\n", encoding="utf-8")


def _commit() -> str:
    """With "-dirty" where anything but results differs from it"""
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!ops/results", ":!*.md")
    return _git("rev-parse", "--short", "HEAD") + ("-dirty" if changed else "")


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
