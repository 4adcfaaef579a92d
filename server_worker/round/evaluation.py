"""Accuracy of a round's models, measured in the background: it decides nothing, so no step waits for it."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedil_model.data.datasets.interface import Samples, Views
from fedil_model.training.evaluate import predict_logits
from fedil_model.training.flat_model import FlatModel, Weights
from fedil_model.training.precision import Autocast

Fit = Callable[[FlatModel, Weights], Weights]
"""What is done to a model on the labelled samples before its predictions count"""


@dataclass(frozen=True)
class Evaluation:
    accuracy: Mapping[str, float] = field(default_factory=dict)
    per_class: tuple[float | None, ...] = ()
    """Of the model "global"; None for a class without test samples"""
    seconds: float = 0.0


Evaluate = Callable[[Mapping[str, Weights]], "Future[Evaluation]"]


class BackgroundEvaluator:
    """One thread with a network of its own. The test data is handed in: reading it may run a user's code, which must
    not run beside training."""

    def __init__(
        self,
        model: FlatModel,
        test: Samples,
        views: Views,
        classes: int,
        fits: Mapping[str, Fit] | None = None,
        precision: Autocast = "off",
    ) -> None:
        """`fits`: for models whose declaration names one"""
        self._precision = precision
        self._model, self._views, self._classes, self._fits = model, views, classes, fits or {}
        model.release()
        self._test = Samples(test.inputs.to(model.device), test.labels.to(model.device))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fedil-evaluate")

    def submit(self, models: Mapping[str, Weights]) -> "Future[Evaluation]":
        return self._thread.submit(self._evaluate, dict(models))

    def _evaluate(self, models: dict[str, Weights]) -> Evaluation:
        began = time.perf_counter()
        names = list(models)
        # Each model is dropped once it is measured. "global" comes last: the run keeps it anyway.
        right_N = {
            name: self._right(name, models.pop(name)) for name in sorted(names, key=lambda n: n == "global")
        }
        return Evaluation(
            accuracy={name: float(right_N[name].double().mean()) for name in names},
            per_class=self._per_class(right_N["global"]),
            seconds=time.perf_counter() - began,
        )

    def _right(self, name: str, weights: Weights) -> Tensor:
        weights = weights.to(self._model.device)
        if name in self._fits:
            weights = self._fits[name](self._model, weights)
        with self._model.temporarily_loaded():
            self._model.load_view(weights)
            logits_NC = predict_logits(
                self._model.module, self._test.inputs, self._views, precision=self._precision
            )
        return logits_NC.argmax(dim=1) == self._test.labels

    def _per_class(self, right_N: Tensor) -> tuple[float | None, ...]:
        held_C = torch.bincount(self._test.labels, minlength=self._classes).tolist()
        right_C = torch.bincount(self._test.labels[right_N], minlength=self._classes).tolist()
        return tuple(right / held if held else None for right, held in zip(right_C, held_C, strict=True))

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)
