"""A run beside a hostile site, which sends messages of many kinds to every place where a site may write.

Three sites own the clients. Workers of `south` and `west` are honest. `north` is this process with north's user: it
takes north's tasks, answers each with updates that are not valid, and sends everything else beside them, a part after
every round. With west's user it sends some of the same to west's tasks, where an honest worker finds it. The run must
end with the digests of one in which north only answers, and no process may end before its time or log a traceback.

What north sends is made from a seed (FEDIL_FUZZ_SEED) and from real messages, which the benchmark gets with the
administrator's rights. None of it may count: a site can change the run by valid answers for its own clients.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker_config.process.addresses import BROKER_URL, STORE_URL
from client_worker.shards import ShardFolder
from ops.local.services.process import LOOPBACK, free_ports
from server_worker.run.folder import RunDir
from server_worker.run.history import HistoryTail
from tests.benchmarks._fuzz_messages import ROUNDS, RUN
from tests.benchmarks._hostile_site import NORTH, SITES, Hostile
from tests.benchmarks._processes import memory_bytes
from tests.benchmarks._small_recipe import write_small_recipe
from tests.deployment import Supervised, ended_with, write_all_shards
from tests.integration.configured_brokers import Brokers, configured_brokers

SEED = int(os.environ.get("FEDIL_FUZZ_SEED", "0"))
BAR = 0.9
"""Least share of the messages that are sent before the run ends"""
WIDTH = 16
MOST_PER_SECOND = 1000
LONGEST_ROUND_SECONDS = 180.0


@dataclass(frozen=True)
class Processes:
    run_dir: Path
    server: Supervised
    workers: dict[str, Supervised]

    def check_alive(self) -> None:
        """No process ends before the run does."""
        gone = [name for name, worker in self.workers.items() if worker.exit_code is not None]
        if not self.server.finished.is_set() and self.server.exit_code is not None:
            gone.append("server")
        if gone:
            logs = [each.log for each in (self.server, *self.workers.values())]
            tails = "\n".join(f"--- {log.name}\n{log.read_text('utf-8', 'replace')[-3000:]}" for log in logs)
            raise RuntimeError(f"{', '.join(gone)} ended before its time:\n{tails}")


@contextmanager
def processes(folder: Path, recipe: Path, brokers: Brokers) -> Iterator[Processes]:
    def environment(user: str) -> dict[str, str]:
        return {
            BROKER_URL: brokers.broker_url(user),
            STORE_URL: brokers.store_url(user),
            "OMP_NUM_THREADS": "1",
        }

    folder.mkdir()
    run_dir, port = folder / "run", free_ports(["page"])["page"]
    page = f"http://{LOOPBACK}:{port}/"
    command = ["server_worker", "--recipe", str(recipe), "--run-dir", str(run_dir), "--run", RUN]
    command += ["--device", "cpu", "--web", f"{LOOPBACK}:{port}"]
    with ExitStack() as stack:

        def start(name: str, user: str, arguments: list[str]) -> Supervised:
            log = folder / f"{name}.log"
            return stack.enter_context(Supervised(arguments, environment(user), log, restarts=False))

        server = start("server", "server", command)
        workers = {
            site: start(
                site,
                f"site-{site}",
                [
                    "client_worker",
                    "--site",
                    site,
                    "--shards",
                    str(recipe.parent / "shards"),
                    "--device",
                    "cpu",
                ],
            )
            for site in SITES
            if site != NORTH
        }
        workers["watchers"] = start("watchers", "server", ["tests.benchmarks._watchers_at_work", page])
        yield Processes(run_dir, server, workers)


def play(
    folder: Path, recipe: Path, brokers: Brokers, sizes: dict[int, int], messages: int
) -> dict[str, Any]:
    """The digests that the run ends with, and what north did"""
    began = heard = time.monotonic()
    done, peak = 0, 0
    with closing(Hostile(brokers, sizes, SEED)) as hostile, processes(folder, recipe, brokers) as played:
        history = HistoryTail(RunDir(played.run_dir).history)
        while not played.server.finished.is_set():
            played.check_alive()
            if closed := sum(1 for _ in history.new_lines(lambda: None)):
                done, heard = done + closed, time.monotonic()
                with suppress(OSError, StopIteration):  # it has just ended
                    peak = memory_bytes("VmHWM", played.server.pid)
            if time.monotonic() - heard > LONGEST_ROUND_SECONDS:
                raise RuntimeError(f"no round after {done}:\n{played.server.log.read_text('utf-8')[-3000:]}")
            hostile.look()
            due = messages * min(done + 1, ROUNDS) // ROUNDS - hostile.sent.total()
            # North's clients answer when its part of this round is out.
            if due <= 0 or not hostile.material.updates:
                hostile.answer_tasks()
            sent_at = time.monotonic()
            burst = min(due, 100) if hostile.material.updates else 0
            for _ in range(burst):
                hostile.send()
            time.sleep(max(0.01, burst / MOST_PER_SECOND - (time.monotonic() - sent_at)))
        logs = [played.server.log, *(worker.log for worker in played.workers.values())]
        return {
            "digests": ended_with(played.server.log),
            "seconds": round(time.monotonic() - began, 1),
            "sent": dict(hostile.sent),
            "refused_by_brokers": dict(hostile.refused),
            "answered": hostile.answered,
            "server_peak_mb": round(peak / 1e6),
            "tracebacks": sum(log.read_text("utf-8", "replace").count("Traceback") for log in logs),
        }


def run(messages: str = "100000") -> dict[str, Any]:
    num_messages = int(messages)
    with tempfile.TemporaryDirectory(prefix="fedil-fuzz-") as name:
        folder = Path(name)
        recipe = write_small_recipe(folder, ROUNDS, WIDTH, SITES)
        write_all_shards(recipe, folder / "shards")
        shards = ShardFolder(folder / "shards")
        sizes = {client: len(shards.inputs(client)) for client in SITES[NORTH]}
        results = []
        for turn, count in (("undisturbed", 0), ("disturbed", num_messages)):
            (folder / f"{turn}-brokers").mkdir()
            with configured_brokers(folder / f"{turn}-brokers", *SITES) as brokers:
                results.append(play(folder / turn, recipe, brokers, sizes, count))
            print(f"{turn}: {results[-1]}", flush=True)
    undisturbed, disturbed = results
    same = undisturbed["digests"] == disturbed["digests"]
    share = sum(disturbed["sent"].values()) / max(1, num_messages)
    return {
        "name": "fuzz",
        "ratio": round(share, 3),
        "bar": BAR,
        "ok": same and share >= BAR and not disturbed["tracebacks"],
        "same_digests": same,
        "messages": num_messages,
        "seed": SEED,
        "undisturbed": undisturbed,
        "disturbed": disturbed,
    }
