"""A run's results as artefacts at MLflow: its report, and the model that ships."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from broker_config.process.durable import write_atomically
from broker_config.protocol.errors import FedILError
from fedil_model.data.datasets import open_dataset
from fedil_model.errors import LearningError
from ops.inspect.export import digest_of, export, make_package
from ops.inspect.report import check_installed
from ops.inspect.run_place import has_checkpoint
from ops.inspect.run_reading import load_weights
from server_worker.run.folder import RunDir
from server_worker.run.name import known_run
from server_worker.run.recipe import Recipe
from server_worker.watch.mlflow import log_files
from server_worker.watch.notices import Notice


def track_results(address: str, recipe: Recipe, run_dir: Path, tell: Callable[[Notice], None]) -> None:
    """What cannot be written is told: the run itself has ended well."""
    run = known_run(RunDir(run_dir))
    if run is None or not has_checkpoint(run_dir):
        return
    try:
        with tempfile.TemporaryDirectory(prefix="fedil-") as folder:
            log_files(address, recipe, run, _written(recipe, run_dir, Path(folder), tell))
    except Exception as error:  # MLflow and its transports raise many kinds
        tell(Notice(f"no model and report at MLflow: {' '.join(str(error).split())[:300]}"))


def _written(recipe: Recipe, run_dir: Path, folder: Path, tell: Callable[[Notice], None]) -> Iterator[Path]:
    where = RunDir(run_dir)
    yield where.recipe
    yield where.history
    dataset = open_dataset(recipe.data)
    network = load_weights(run_dir, recipe, "global", dataset)
    about = {
        "recipe": recipe.name,
        "model": "global",
        "model_digest": digest_of(network),
        "network": recipe.network.model_dump(mode="json"),
    }
    export(make_package(network, dataset, about), "safetensors", folder / "model.safetensors")
    yield folder / "model.safetensors"
    try:
        write_atomically(folder / "report.html", [_report(run_dir, recipe).encode("utf-8", "replace")])
        yield folder / "report.html"
    except (FedILError, LearningError) as error:
        tell(Notice(f"no report at MLflow: {error}"))


def _report(run_dir: Path, recipe: Recipe) -> str:
    check_installed()
    from ops.inspect.report.evidence import gather
    from ops.inspect.report.page import run_page
    from ops.inspect.report.reading import read_run

    run = read_run(run_dir, recipe.plugins)
    return run_page(run, gather(run, None))
