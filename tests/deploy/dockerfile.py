"""What the Dockerfile says of the image's last stage, as far as tests need it."""

import json
import re
from dataclasses import dataclass

from tests.deployment import ROOT

DOCKERFILE = ROOT / "ops" / "deploy" / "Dockerfile"


@dataclass(frozen=True)
class Instruction:
    name: str
    rest: str


def instructions() -> list[Instruction]:
    """All of them, continued lines joined, comments left out"""
    text = "".join(
        line for line in DOCKERFILE.read_text().splitlines(keepends=True) if not line.startswith("#")
    )
    joined = re.sub(r"\\\n\s*", "", text)
    return [Instruction(*line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


def last_stage() -> dict[str, list[str]]:
    """Instruction → what follows it, in order"""
    found = instructions()
    begin = max(number for number, one in enumerate(found) if one.name == "FROM")
    stage: dict[str, list[str]] = {}
    for one in found[begin:]:
        stage.setdefault(one.name, []).append(one.rest)
    return stage


def entrypoint() -> list[str]:
    (words,) = last_stage()["ENTRYPOINT"]
    found: list[str] = json.loads(words)
    return found


def environment() -> dict[str, str]:
    pairs = [pair.partition("=") for line in last_stage()["ENV"] for pair in line.split()]
    return {name: value.replace("$PATH", "/usr/local/bin:/usr/bin:/bin") for name, _, value in pairs}


def health_command() -> list[str]:
    (line,) = last_stage()["HEALTHCHECK"]
    found: list[str] = json.loads(line.partition("CMD ")[2])
    return found
