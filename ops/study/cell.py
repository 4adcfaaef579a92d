"""One run of a study, in a process of its own: python -m ops.study.cell FILE

The file names the recipe and the budget. With a budget of CPU seconds, a short run first finds out what a round takes,
and the file then says how many rounds fit: the schedule of the learning rate counts them.
"""

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker_config.process.durable import write_atomically
from broker_config.process.logs import set_up_logs
from broker_config.protocol.errors import FedILError
from fedil_model.errors import LearningError
from ops.cli.interruption import interruptible
from ops.cli.view.lines import QuietView
from ops.inspect.run_place import is_run
from server_worker.run.folder import RunDir
from server_worker.run.history import read_history
from server_worker.run.lock import sole_use
from server_worker.run.recipe import make_recipe

_PROBE_ROUNDS = 4


@dataclass(frozen=True)
class CellFile:
    path: Path

    @property
    def run_dir(self) -> Path:
        return self.path.with_suffix("")

    def read(self) -> dict[str, Any]:
        fields: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8"))
        return fields

    def write(self, fields: dict[str, Any]) -> None:
        write_atomically(self.path, [json.dumps(fields, indent=1).encode()])


def play(file: CellFile) -> bool:
    """True when the run is done, False when it was asked to stop"""
    fields = file.read()
    budget = fields.get("cpu_seconds")
    with set_up_logs(level="warning"), interruptible(on_first=lambda: None) as interruption:
        from ops.local.simulate import simulate

        def run(values: dict[str, Any], where: Path) -> bool:
            with sole_use(where):
                summary = simulate(
                    make_recipe(values),
                    where,
                    workers=1,
                    device=fields["device"],
                    resume=is_run(where),
                    watcher=QuietView(),
                    stop=interruption.stop,
                )
            return not summary.stopped

        if budget is not None and "rounds" not in fields:
            probe = file.path.with_suffix(".probe")
            shutil.rmtree(probe, ignore_errors=True)
            if not run({**fields["recipe"], "rounds": _PROBE_ROUNDS}, probe):
                return False
            fields["rounds"] = rounds_within(budget, probe)
            file.write(fields)
            shutil.rmtree(probe, ignore_errors=True)
        rounds = fields.get("rounds", fields["recipe"]["rounds"])
        return run({**fields["recipe"], "rounds": rounds}, file.run_dir)


def rounds_within(cpu_seconds: float, probe: Path) -> int:
    """The first round of the probe has what comes before all rounds, too."""
    first, *later = (record["cpu_seconds"] for record in read_history(RunDir(probe).history))
    each = sum(later) / len(later)
    return max(int((cpu_seconds - (first - each)) / max(each, 1e-6)), 1)


def main() -> int:
    try:
        return 0 if play(CellFile(Path(sys.argv[1]))) else 3
    except (FedILError, LearningError, OSError) as error:
        print(str(error) or type(error).__name__, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
