"""Writes settings and rounds of a run to MLflow, where it is installed: a server's address or a SQLite file.

MLflow may be slow or away, so a thread of its own talks to it. A run that is resumed goes on in its MLflow run, which
bears its name as a tag, and no round is there twice.
"""

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from broker_config.process.version import software_version
from broker_config.protocol.errors import FedILError
from server_worker.run.history import read_records
from server_worker.run.recipe import Recipe, flatten
from server_worker.watch.events import RoundRecord, Watcher
from server_worker.watch.notices import Notice
from server_worker.watch.tensorboard import scalars

if TYPE_CHECKING:
    from mlflow import MlflowClient

_RUN_TAG = "fedil.run"
_EVERY_ROUND = "delta_theta/norm"
_LONGEST_PARAM, _MOST_PARAMS = 500, 100
"""Older servers take no more, and no server takes more at a time."""


class MlflowWatcher(Watcher):
    """The first error is reported to `tell`; the run continues."""

    def __init__(
        self, address: str, run: str, recipe: Recipe, history: Path, tell: Callable[[Notice], None]
    ) -> None:
        check_installed()
        self._address, self._run, self._recipe, self._history = address, run, recipe, history
        self._tell, self._failed = tell, False
        self._client: MlflowClient | None = None
        self._run_id, self._logged = "", set[int]()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fedil-mlflow")

    def __enter__(self) -> "MlflowWatcher":
        return self

    def __exit__(
        self, error: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        self._later(lambda: self._end(failed=error is not None))
        self._thread.shutdown()

    def run_started(self, first_round: int, rounds: int) -> None:  # noqa: ARG002
        earlier = [record for record in read_records(self._history) if record.round < first_round]
        self._later(lambda: self._begin(earlier))

    def round_closed(self, record: RoundRecord) -> None:
        self._later(lambda: self._log([record]))

    def _later(self, action: Callable[[], None]) -> None:
        self._thread.submit(self._try, action)

    def _try(self, action: Callable[[], None]) -> None:
        try:
            if not self._failed:
                action()
        except Exception as error:  # MLflow and its transports raise many kinds
            self._failed = True
            what = f"nothing more is written to MLflow: {' '.join(str(error).split())[:300]}"
            self._tell(Notice(f"{what}. The next start writes what is missing"))

    def _begin(self, earlier: Iterable[RoundRecord]) -> None:
        self._client = client_of(self._address)
        known = find_run(self._client, self._recipe.name, self._run)
        self._run_id = known or self._create()
        if known:
            self._client.update_run(known, status="RUNNING")
            self._logged = {point.step for point in self._client.get_metric_history(known, _EVERY_ROUND)}
        self._log(earlier)

    def _create(self) -> str:
        assert self._client is not None
        tags = {_RUN_TAG: self._run, "fedil.version": software_version()}
        experiment = self._experiment(self._client)
        created: str = self._client.create_run(experiment, tags=tags, run_name=self._run).info.run_id
        from mlflow.entities import Param

        settings = flatten(self._recipe.model_dump(mode="json"))
        params = [Param(key, str(value)[:_LONGEST_PARAM]) for key, value in settings.items()]
        for first in range(0, len(params), _MOST_PARAMS):
            self._client.log_batch(created, params=params[first : first + _MOST_PARAMS])
        return created

    def _experiment(self, client: "MlflowClient") -> str:
        known = client.get_experiment_by_name(self._recipe.name)
        if known is not None:
            return str(known.experiment_id)
        # A database has no place for files of its own; a server decides itself.
        files = self._history.parent.resolve() / "mlflow" if self._address.startswith("sqlite") else None
        return str(client.create_experiment(self._recipe.name, files.as_uri() if files else None))

    def _log(self, records: Iterable[RoundRecord]) -> None:
        assert self._client is not None
        from mlflow.entities import Metric

        for record in records:
            if record.round in self._logged:
                continue
            at, found = int(1000 * record.finished_at), scalars(record, self._recipe.spec.display)
            metrics = [Metric(tag, value, at, record.round) for tag, value in found]
            self._client.log_batch(self._run_id, metrics=metrics)
            self._logged.add(record.round)

    def _end(self, *, failed: bool) -> None:
        if self._client is not None:
            ended = "FINISHED" if self._recipe.rounds in self._logged else "KILLED"
            self._client.set_terminated(self._run_id, "FAILED" if failed else ended)


def log_files(address: str, recipe: Recipe, run: str, files: Iterable[Path]) -> None:
    """As artefacts of a run that MLflow knows"""
    check_installed()
    client = client_of(address)
    run_id = find_run(client, recipe.name, run)
    if run_id is None:
        raise FedILError(f"MLflow at {address} has no run {run}")
    for file in files:
        client.log_artifact(run_id, str(file))


def client_of(address: str) -> "MlflowClient":
    from mlflow import MlflowClient

    for name in ("mlflow", "alembic"):  # what they say of their tables would go through the view of the run
        logging.getLogger(name).setLevel(logging.WARNING)
    return MlflowClient(tracking_uri=address)


def find_run(client: "MlflowClient", experiment: str, run: str) -> str | None:
    found = client.get_experiment_by_name(experiment)
    if found is None:
        return None
    runs = client.search_runs([found.experiment_id], f"tags.`{_RUN_TAG}` = '{run}'", max_results=1)
    return runs[0].info.run_id if runs else None


def check_installed() -> None:
    try:
        import mlflow  # noqa: F401
    except ImportError as error:
        raise FedILError(
            f"MLflow is not installed ({error}): pip install 'fedil[mlflow]', or leave out --mlflow"
        ) from error
