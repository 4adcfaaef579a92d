"""Accuracy of a round's models, measured in the background: it decides nothing, so nothing waits for it."""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from fedil_model.datasets.interface import Samples, Views
from fedil_model.evaluate import accuracy
from fedil_model.parameters import FlatModel, Weights


class Evaluator(Protocol):
    def submit(self, models: Mapping[str, Weights]) -> "Future[dict[str, float]]": ...

    def close(self) -> None: ...


class BackgroundEvaluator:
    """One thread with a network of its own. The test data is handed in, since reading it may run a user's code,
    which has no business beside training."""

    def __init__(self, model: FlatModel, test: Samples, views: Views) -> None:
        self._model, self._views = model, views
        self._test = Samples(test.inputs.to(model.device), test.labels.to(model.device))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fedil-evaluate")

    def submit(self, models: Mapping[str, Weights]) -> "Future[dict[str, float]]":
        return self._thread.submit(self._evaluate, dict(models))

    def _evaluate(self, models: Mapping[str, Weights]) -> dict[str, float]:
        found = {}
        for name, weights in models.items():
            self._model.load(weights.to(self._model.device))
            found[name] = accuracy(self._model.module, self._test, self._views)
        return found

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)
