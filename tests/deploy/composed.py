"""compose.yaml, read as compose reads it."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.cell import Cell, Mount
from tests.deploy.dockerfile import entrypoint, environment
from tests.deployment import ROOT

COMPOSE = ROOT / "ops" / "deploy" / "compose.yaml"
Service = dict[str, Any]
_VARIABLE = re.compile(r"\$\{(?P<name>\w+)(?::(?P<how>[-?])(?P<rest>(?:[^{}]|\{[^}]*\})*))?\}")


def load(variables: Mapping[str, str]) -> dict[str, Any]:
    """With variables put in, anchors and merges resolved."""

    def value(found: re.Match[str]) -> str:
        given = variables.get(found["name"])
        if given:
            return given
        if found["how"] == "?":
            raise KeyError(f"{found['name']}: {found['rest']}")
        return found["rest"] or ""

    def filled(node: Any) -> Any:
        if isinstance(node, str):
            return _VARIABLE.sub(value, node)
        if isinstance(node, list):
            return [filled(one) for one in node]
        if isinstance(node, dict):
            return {key: filled(one) for key, one in node.items()}
        return node

    document: dict[str, Any] = filled(yaml.safe_load(COMPOSE.read_text()))
    return document


def words_of(service: Service) -> list[str]:
    """Of a service of our image: what the container runs"""
    return [*service.get("entrypoint", entrypoint()), *service.get("command", [])]


def cell_of(
    service: Service, secrets: Mapping[str, Any], here: Path, image: Path | None, hosts: list[str]
) -> Cell:
    """`here`: stands for the folder of compose.yaml; named volumes are folders in here/volumes."""
    mounts = mounts_of(service, here)
    for name in service.get("secrets", []):
        mounts += [Mount(here / secrets[name]["file"], f"/run/secrets/{name}", read_only=True)]
    mounts += [Mount(None, target) for target in service.get("tmpfs", [])]
    user = int(service["user"].partition(":")[0])
    ours = environment() if image is not None else {"PATH": "/usr/local/sbin:/usr/sbin:/usr/bin:/bin"}
    words = words_of(service) if image is not None else service["command"]
    return Cell(words, {**ours, **service.get("environment", {})}, mounts, user, hosts, image)


def mounts_of(service: Service, here: Path) -> list[Mount]:
    return [_mount(said, here) for said in service.get("volumes", [])]


def _mount(said: str | dict[str, Any], here: Path) -> Mount:
    if isinstance(said, str):
        source, target, *mode = said.split(":")
        return Mount(_source(source, here), target, mode == ["ro"])
    return Mount(_source(said["source"], here), said["target"], said.get("read_only", False))


def _source(name: str, here: Path) -> Path:
    if name.startswith("/"):
        return Path(name)
    if name.startswith("."):
        return here / name
    return here / "volumes" / name
