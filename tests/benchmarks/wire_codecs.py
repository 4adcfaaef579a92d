"""A round in which nobody learns, at 100 Mbit/s: a model of 26 MB down to one worker, the updates of five clients
back, as they are or in fewer bytes a number.

Server, RabbitMQ, Redis and the worker are in a network namespace of their own, whose loopback device carries 100 Mbit/s
in all (Linux, root, iproute2). A round lasts from its start to the start of the next.
"""

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.benchmarks._cluster import echo_cluster
from tests.benchmarks._echo_method import echo_recipe
from tests.benchmarks._results import ROOT

BAR = 2.0
PARAMETERS, CLIENTS = 6_570_000, 5
WARM_UP, COUNTED = 1, 4
MEGABITS = 100
_SLOW = (
    f"ip link set lo up && tc qdisc add dev lo root tbf rate {MEGABITS}mbit burst 512kb latency 200ms "
    '&& exec "$@"'
)


def run() -> dict[str, Any]:
    if missing := [program for program in ("unshare", "ip", "tc") if shutil.which(program) is None]:
        raise SystemExit(f"this benchmark needs {', '.join(missing)}: apt install util-linux iproute2")
    command = ["unshare", "--net", "sh", "-c", _SLOW, "sh", sys.executable, "-m", __name__]
    told = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(told.stdout.splitlines()[-1])
    ratio = found["fp32"]["seconds"] / found["int8"]["seconds"]
    return {"name": "wire_codecs", "ratio": round(ratio, 2), "bar": BAR, "ok": ratio >= BAR, **found}


def measure() -> dict[str, Any]:
    found = {}
    with (
        tempfile.TemporaryDirectory(prefix="fedil-codecs-") as folder,
        echo_cluster(Path(folder), 1) as cluster,
    ):
        for wire in ("fp32", "fp16", "int8"):
            rounds = WARM_UP + COUNTED + 1
            recipe = echo_recipe(
                f"echo-{wire}", rounds=rounds, clients=CLIENTS, parameters=PARAMETERS, wire=wire
            )
            began = cluster.play(recipe)["began"]
            seconds = [began[str(n + 1)] - began[str(n)] for n in range(WARM_UP + 1, rounds)]
            found[wire] = {"seconds": round(statistics.median(seconds), 2), "rounds": len(seconds)}
            print(wire, found[wire], file=sys.stderr, flush=True)
    return found


if __name__ == "__main__":
    print(json.dumps(measure()))
