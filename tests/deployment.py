"""A deployment in real processes: the server and workers of one run, kept alive as an orchestrator would."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import torch

from client_worker.shards import write_shards
from fedil_model.data.datasets import open_dataset
from fedil_model.data.split import make_split
from server_worker.run.recipe import load_recipe

RECIPE = """
name = "small"
rounds = {rounds}
baseline_epochs = 0
evaluate_every = 100
[data]
name = "digits"
[split]
labelled = 50
clients = 12
[network]
name = "cnn"
width = 16
[client]
epochs = 3
batch_size = 20
[server]
epochs = 2
pretrain_epochs = 5
batch_size = 25
[federation]
clients_per_round = 4
deadline_seconds = {deadline:.1f}
"""
_ENDED = re.compile(r"(\d+) of \d+ rounds, model ([0-9a-f]{32}), ledgers ([0-9a-f]{32})")
_RESTART_SECONDS = 0.2
ROOT = Path(__file__).parents[1]


def write_recipe(folder: Path, rounds: int, more: str = "", deadline: float = 600.0) -> Path:
    path = folder / "recipe.toml"
    path.write_text(RECIPE.format(rounds=rounds, deadline=deadline) + more, encoding="utf-8")
    return path


def write_all_shards(recipe_path: Path, folder: Path) -> None:
    recipe = load_recipe(recipe_path)
    dataset = open_dataset(recipe.data)
    train = dataset.load_train()
    split = make_split(train.labels.numpy(), len(dataset.class_names), recipe.split, recipe.seed)
    write_shards(folder, {c: train.inputs[torch.from_numpy(held)] for c, held in enumerate(split.clients)})


def ended_with(log: Path) -> tuple[str, str]:
    """The digests of θ′ and of the ledgers that a server has logged at its end"""
    ended = _ENDED.findall(log.read_text(encoding="utf-8"))
    assert ended, log.read_text(encoding="utf-8")[-3000:]
    return ended[-1][1], ended[-1][2]


class Supervised:
    """A process that is started again whenever it dies, until it ends well or `stop` is called."""

    def __init__(
        self, arguments: list[str], environment: dict[str, str], log: Path, restarts: bool = True
    ) -> None:
        self._arguments, self._environment, self.log = arguments, environment, log
        self._restarts = restarts
        self._stopping = threading.Event()
        self.finished = threading.Event()
        self.starts = 0
        self._process = self._start()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _start(self) -> "subprocess.Popen[bytes]":
        self.starts += 1
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *self._arguments],
                env={**os.environ, **self._environment},
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _watch(self) -> None:
        while not self._stopping.is_set():
            code = self._process.wait()
            if code == 0:
                self.finished.set()
                return
            if not self._restarts:
                return
            if not self._stopping.wait(_RESTART_SECONDS):
                self._process = self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def kill(self) -> None:
        with_children = self._process.pid
        try:
            os.killpg(with_children, signal.SIGKILL)
        except ProcessLookupError:
            return

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def stop(self) -> None:
        self._stopping.set()
        self.kill()
        self._thread.join()
        self.kill()
        self._process.wait()

    def __enter__(self) -> "Supervised":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


class Deployed:
    """One run: `with Deployed(...) as run: run.wait(60)`."""

    def __init__(
        self,
        folder: Path,
        recipe: Path,
        broker: str,
        store: str,
        workers: int,
        server_restarts: bool = True,
        more: Sequence[str] = (),
    ) -> None:
        """`more`: what else the server is started with"""
        self.folder, self._recipe, self._more = folder, recipe, more
        folder.mkdir(parents=True, exist_ok=True)
        self.environment = {"FEDIL_BROKER_URL": broker, "FEDIL_STORE_URL": store, "OMP_NUM_THREADS": "1"}
        self.server_log = folder / "server.log"
        self._shards = recipe.parent / "shards"
        if not self._shards.exists():
            write_all_shards(recipe, self._shards)
        self.server = Supervised(self._server(), self.environment, self.server_log, server_restarts)
        self.workers: list[Supervised] = []
        for _ in range(workers):
            self.add_worker()

    def _server(self) -> list[str]:
        place = ["--recipe", str(self._recipe), "--run-dir", str(self.folder / "run")]
        return ["server_worker", *place, *self._more]

    def standby(self) -> Supervised:
        arguments = [*self._server(), "--standby"]
        return Supervised(arguments, self.environment, self.folder / "standby.log", restarts=False)

    def add_worker(
        self, site: str = "default", *more: str, environment: dict[str, str] | None = None
    ) -> None:
        arguments = ["client_worker", "--site", site, "--shards", str(self._shards), *more]
        log = self.folder / f"worker-{len(self.workers)}.log"
        self.workers.append(Supervised(arguments, self.environment | (environment or {}), log))

    def wait(self, seconds: float, server: Supervised | None = None) -> tuple[str, str]:
        """The digests of θ′ and of the ledgers, once the run has ended."""
        server = server or self.server
        if not server.finished.wait(seconds):
            raise TimeoutError(f"the run did not end within {seconds:g} s:\n{self.tail()}")
        return ended_with(server.log)

    def wait_until_logged(self, log: Path, text: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while text not in log.read_text(encoding="utf-8", errors="replace"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{log.name} did not say {text!r}:\n{self.tail()}")
            time.sleep(0.05)

    def tail(self, lines: int = 30) -> str:
        logs = [self.server_log, *sorted(self.folder.glob("worker-*.log"))]
        parts = [
            f"--- {log.name}\n" + "\n".join(log.read_text("utf-8").splitlines()[-lines:]) for log in logs
        ]
        return "\n".join(parts)

    def progress(self) -> int:
        """Grows with every answer that the server takes and every round that it closes."""
        text = self.server_log.read_text(encoding="utf-8", errors="replace")
        return len(
            re.findall(r"(?:accepted|rejected_cosine|refused|invalid|projected).*; \d+ of \d+|closed:", text)
        )

    def wait_for_progress(self, beyond: int, seconds: float) -> None:
        began = time.monotonic()
        while self.progress() <= beyond and not self.server.finished.is_set():
            if time.monotonic() - began > seconds:
                raise TimeoutError(f"no progress for {seconds:g} s:\n{self.tail()}")
            time.sleep(0.05)

    def __enter__(self) -> "Deployed":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for process in (self.server, *self.workers):
            process.stop()
