"""Accuracy of a round's models, measured in the background: it decides nothing, so nothing waits for it."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from fedil_model.datasets.interface import Samples, Views
from fedil_model.evaluate import accuracy
from fedil_model.parameters import FlatModel, Weights


class Evaluator(Protocol):
    def submit(self, models: Mapping[str, Weights]) -> "Future[dict[str, float]]": ...

    def close(self) -> None: ...


class BackgroundEvaluator:
    """One thread with a network and test data of its own; the data is read when first needed."""

    def __init__(self, model: FlatModel, load_test: Callable[[], Samples], views: Views) -> None:
        self._model, self._load_test, self._views = model, load_test, views
        self._test: Samples | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fedil-evaluate")

    def submit(self, models: Mapping[str, Weights]) -> "Future[dict[str, float]]":
        return self._thread.submit(self._evaluate, dict(models))

    def _evaluate(self, models: Mapping[str, Weights]) -> dict[str, float]:
        if self._test is None:
            raw = self._load_test()
            self._test = Samples(raw.inputs.to(self._model.device), raw.labels.to(self._model.device))
        found = {}
        for name, weights in models.items():
            self._model.load(weights.to(self._model.device))
            found[name] = accuracy(self._model.module, self._test, self._views)
        return found

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)
