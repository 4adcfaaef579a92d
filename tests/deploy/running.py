"""Processes of a deployment that run as their manifests say."""

import http.client
import json
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from ops.local.services.process import free_ports
from tests.deploy.cell import Cell, Mount
from tests.deploy.dockerfile import entrypoint, environment, health_command
from tests.deploy.rendered import Manifest

PORT = 8265
"""Each container has it for itself; here it is replaced, for all of them share one network."""


class Running:
    """A container of our image."""

    def __init__(self, cell: Cell, folder: Path, name: str) -> None:
        self.name, self._cell, self._folder = name, cell, folder
        self.port = free_ports(["web"])["web"]
        self.log = folder / f"{name}.log"
        started = replace(cell, command=[self._here(word) for word in cell.command])
        self.process = started.start(folder / name, self.log)

    def _here(self, word: str) -> str:
        return word.replace(str(PORT), str(self.port))

    def get(self, path: str) -> tuple[int, str]:
        """Status 0 while nothing answers"""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request("GET", path)
            reply = connection.getresponse()
            return reply.status, reply.read().decode()
        except OSError:
            return 0, ""
        finally:
            connection.close()

    def is_healthy(self) -> bool:
        """What the image's health check says, run beside the process"""
        command = [self._here(word) for word in health_command()]
        code, _ = replace(self._cell, command=command).run(self._folder / f"{self.name}-health")
        return code == 0

    def is_training(self) -> bool:
        return re.search(r"^fedil_worker_busy 1\.0$", self.get("/metrics")[1], re.MULTILINE) is not None

    def terminate(self, seconds: float) -> int:
        """The exit code, which must come in time"""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)

    def logged(self) -> list[dict[str, Any]]:
        lines = []
        for line in self.log.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError):  # the line that says what shards were made
                lines.append(json.loads(line))
        return lines

    def digests(self) -> tuple[str, str] | None:
        """Of θ′ and ledgers, once the server has logged them"""
        ends = [line for line in self.logged() if "model_digest" in line and "ledger_digest" in line]
        return (ends[-1]["model_digest"], ends[-1]["ledger_digest"]) if ends else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()


def until(true: Callable[[], object], seconds: float, running: Sequence[Running]) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            tails = [f"--- {one.name}\n{one.log.read_text('utf-8')[-3000:]}" for one in running]
            raise TimeoutError(f"not within {seconds:g} s\n" + "\n".join(tails))
        time.sleep(0.1)  # a page that is asked too often keeps its replies back


class Cluster:
    """Starts pods of rendered workloads. `secrets`: name → key → value. Claims are folders."""

    def __init__(
        self, manifests: list[Manifest], secrets: Mapping[str, Mapping[str, str]], folder: Path, image: Path
    ) -> None:
        self._objects = {(one["kind"], one["metadata"]["name"]): one for one in manifests}
        self._secrets, self._folder, self._image = secrets, folder, image
        self._stack = ExitStack()
        self.pods: list[Running] = []

    def claim(self, name: str) -> Path:
        return self._folder / "claims" / name

    def start(self, kind: str, name: str) -> Running:
        pod = self._objects[kind, name]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        cell = Cell(
            [*container.get("command", entrypoint()), *container["args"]],
            {**environment(), **self._variables(container)},
            self._mounts(pod, container),
            pod["securityContext"]["runAsUser"],
            image=self._image,
        )
        running = self._stack.enter_context(Running(cell, self._folder, f"{name}-{len(self.pods)}"))
        self.pods.append(running)
        return running

    def probe(self, kind: str, name: str, probe: str, running: Running) -> bool:
        (container,) = self._objects[kind, name]["spec"]["template"]["spec"]["containers"]
        asked = container[probe]["httpGet"]
        (port,) = [one["containerPort"] for one in container["ports"] if one["name"] == asked["port"]]
        assert port == PORT
        return 200 <= running.get(asked["path"])[0] < 400

    def _variables(self, container: Manifest) -> dict[str, str]:
        references = {each["name"]: each["valueFrom"]["secretKeyRef"] for each in container["env"]}
        return {name: self._secrets[one["name"]][one["key"]] for name, one in references.items()}

    def _mounts(self, pod: Manifest, container: Manifest) -> list[Mount]:
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        return [
            Mount(self._source(volumes[each["name"]]), each["mountPath"], each.get("readOnly", False))
            for each in container["volumeMounts"]
        ]

    def _source(self, volume: Manifest) -> Path | None:
        if "emptyDir" in volume:
            return None
        if "persistentVolumeClaim" in volume:
            return self.claim(volume["persistentVolumeClaim"]["claimName"])
        if "secret" in volume:
            name = volume["secret"]["secretName"]
            return self._written("secret", name, self._secrets[name])
        name = volume["configMap"]["name"]
        return self._written("configmap", name, self._objects["ConfigMap", name]["data"])

    def _written(self, kind: str, name: str, files: Mapping[str, str]) -> Path:
        folder = self._folder / f"{kind}-{name}"
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (folder / file).write_text(text)
        return folder

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
