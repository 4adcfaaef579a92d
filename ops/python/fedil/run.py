"""A run in its folder: what happened in it, and the model that came out."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedil.history import Columns, client_columns, round_columns
from fedil.words import arguments_instead_of_options
from fedil_model.errors import DataError
from ops.cli.recipe_files import with_data_root
from ops.inspect import run_reading
from server_worker.run.folder import RunDir, read_baseline
from server_worker.run.recipe import Recipe
from server_worker.run.resuming import rounds_done

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

    from fedil_model.data.datasets.interface import Dataset, Samples
    from ops.inspect.quality import Quality


@dataclass(frozen=True)
class Predictions:
    """Of as many samples as were given, in their order"""

    labels: list[str]
    probabilities: np.ndarray
    """Samples × classes"""
    class_names: tuple[str, ...]


def load_run(path: str | Path, plugins: Collection[str] = ()) -> Run:
    """A run's folder. `plugins`: code of your own, `module:callable`, that its recipe may name; none runs unasked."""
    with arguments_instead_of_options():
        return Run(Path(path), run_reading.load_run(Path(path), plugins))


class Run:
    def __init__(self, path: Path, recipe: Recipe) -> None:
        self.path, self.recipe = path, recipe

    def __repr__(self) -> str:
        shown = "not measured" if self.accuracy is None else f"accuracy {100 * self.accuracy:.2f} %"
        return f"<Run {self.path}: {self.rounds_done} of {self.recipe.rounds} rounds, {shown}>"

    @property
    def rounds_done(self) -> int:
        return rounds_done(self.path)

    @property
    def finished(self) -> bool:
        return self.rounds_done >= self.recipe.rounds

    @property
    def accuracy(self) -> float | None:
        """Of the model that ships, on the test set, as last measured; None before that"""
        known = [share for share in self.history.get("accuracy", []) if share is not None]
        return known[-1] if known else None

    @property
    def digest(self) -> str:
        """Of the model that ships, the same for the same run anywhere; empty before the first round"""
        from server_worker.run.checkpoint import CheckpointFolder
        from server_worker.run.digests import model_digest

        return model_digest(CheckpointFolder(RunDir(self.path).checkpoints).latest())

    @property
    def baseline(self) -> float | None:
        """Accuracy of server-only training on the same labels; None where it was not measured"""
        accuracy: float | None = read_baseline(RunDir(self.path)).get("accuracy")
        return accuracy

    @property
    def history(self) -> Columns:
        """A row per round: pandas.DataFrame(run.history)"""
        return round_columns(RunDir(self.path).history)

    @property
    def clients(self) -> Columns:
        """A row per round and client that was asked, with what became of its update"""
        return client_columns(RunDir(self.path).history, self.recipe)

    @cached_property
    def dataset(self) -> Dataset:
        from fedil_model.data.datasets import open_dataset

        return open_dataset(with_data_root(self.recipe.data))

    def model(self, name: str = "global") -> nn.Module:
        """The trained network with its preprocessing, in eval mode: raw samples as the dataset gives them in, logits
        out. `name`: one of the models that the run's method evaluates"""
        from fedil.model import Classifier

        return Classifier(self._network(name), self.dataset.views).eval()

    def evaluate(
        self, dataset: Dataset | Samples | tuple[Any, Any] | None = None, model: str = "global"
    ) -> Quality:
        """On the run's test set; or on other samples, given as a Dataset, as Samples, or as (inputs, labels) with
        numbers of classes as labels."""
        from fedil_model.data.datasets.interface import Dataset, Samples
        from ops.inspect.quality import measure

        if isinstance(dataset, tuple):
            dataset = self._samples(*dataset)
        if isinstance(dataset, Samples):
            samples = dataset
            dataset = replace(self.dataset, load_test=lambda: samples)
        if not isinstance(dataset, Dataset | None):
            raise TypeError(f"a Dataset, Samples or (inputs, labels) is wanted, got {type(dataset).__name__}")
        return measure(self._network(model), dataset or self.dataset, self.recipe.autocast)

    def predict(self, inputs: Any, model: str = "global") -> Predictions:
        """`inputs`: raw samples as the dataset has them, as a tensor or anything that NumPy makes an array of"""
        from fedil_model.training.evaluate import predict_logits

        raw, precision = self._raw(inputs), self.recipe.autocast
        logits_NC = predict_logits(self._network(model), raw, self.dataset.views, precision=precision)
        names = self.dataset.class_names
        labels = [names[label] for label in logits_NC.argmax(dim=1).tolist()]
        return Predictions(labels, logits_NC.softmax(dim=1).numpy(), names)

    def report(self, path: str | Path | None = None) -> Path:
        """Writes the HTML report, by default into the run's folder, and returns where."""
        from broker_config.process.durable import write_atomically
        from ops.cli.commands.report import built, place_for
        from ops.inspect.report import check_installed
        from ops.inspect.report.reading import read_run

        with arguments_instead_of_options():
            check_installed()
            out = place_for(Path(path) if path is not None else None, [self.path])
            page, _ = built([read_run(self.path, self.recipe.plugins)], None)
        write_atomically(out, [page.encode("utf-8", "replace")])
        return out

    def resume(self, rounds: int | None = None, **how: Any) -> Run:
        """Goes on with a stopped run; with `rounds`, to so many in all. `how`: as for simulate"""
        from fedil.simulation import simulate

        if rounds is not None:
            how["rounds"] = rounds
        return simulate(self.recipe, self.path, resume=True, **how)

    def _network(self, name: str) -> nn.Module:
        with arguments_instead_of_options():
            return run_reading.load_weights(self.path, self.recipe, name, self.dataset)

    def _samples(self, inputs: Any, labels: Any) -> Samples:
        import numpy as np
        import torch

        from fedil_model.data.datasets.interface import Samples

        raw, numbers = self._raw(inputs), np.asarray(labels)
        classes = len(self.dataset.class_names)
        if numbers.shape != (len(raw),) or numbers.dtype.kind not in "iu":
            raise DataError(
                f"labels: {len(raw)} whole numbers are wanted, got {numbers.dtype} of shape {numbers.shape}"
            )
        if len(raw) and not 0 <= numbers.min() <= numbers.max() < classes:
            raise DataError(f"labels go from {numbers.min()} to {numbers.max()}, expected 0 to {classes - 1}")
        return Samples(raw, torch.from_numpy(numbers.astype(np.int64)))

    def _raw(self, inputs: Any) -> Tensor:
        """On the CPU, of the dataset's type. Bytes are not made from other numbers, whose scale is not known."""
        import numpy as np
        import torch

        from ops.inspect.export import raw_example

        example = raw_example(self.dataset)
        raw = inputs.cpu() if isinstance(inputs, torch.Tensor) else torch.from_numpy(np.array(inputs))
        wanted, given = tuple(example.shape[1:]), tuple(raw.shape[1:])
        if tuple(raw.shape) == wanted:
            raise DataError(
                f"inputs are one sample of shape {wanted}: put it into a batch of one, inputs[None]"
            )
        if given != wanted:
            raise DataError(f"inputs have shape {given} a sample, the run's data {wanted}")
        if example.dtype == torch.uint8 and raw.dtype != torch.uint8:
            raise DataError(f"inputs are {raw.dtype}, the run's data are bytes from 0 to 255: give uint8")
        return raw.to(example.dtype)
