"""Scores against scikit-learn and torchmetrics, value by value and resample by resample."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from sklearn import metrics
from torchmetrics.functional import classification

from ops.inspect import scores
from ops.inspect.scores import OVERALL, draw, of_resamples, score, values_of

CLASSES = 4


def predictions(samples: int = 120, seed: int = 0, classes: int = CLASSES) -> tuple[np.ndarray, np.ndarray]:
    """Rounded, so that many probabilities are equal; never the last class is the most probable one."""
    generator = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(classes), generator.integers(0, classes, samples - classes)])
    logits = generator.normal(size=(samples, classes)).round(1) + 1.5 * np.eye(classes)[labels]
    logits[:, -1] = -3.0
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return labels, probabilities


def specificity(is_class: np.ndarray, said: np.ndarray) -> float:
    return float(metrics.recall_score(~is_class, ~said))


BY_CLASS: dict[str, Callable[..., float]] = {
    "sensitivity": lambda true, said, _: metrics.recall_score(true, said),
    "specificity": lambda true, said, _: specificity(true, said),
    "precision": lambda true, said, _: metrics.precision_score(true, said, zero_division=0),
    "f1": lambda true, said, _: metrics.f1_score(true, said, zero_division=0),
    "auc": lambda true, _, probability: metrics.roc_auc_score(true, probability),
    "ece": lambda true, _, probability: float(
        classification.binary_calibration_error(
            torch.tensor(probability), torch.tensor(true).long(), n_bins=15
        )
    ),
}


def reference(labels: np.ndarray, probabilities: np.ndarray) -> dict[str, list[float]]:
    said = probabilities.argmax(axis=1)
    found = {
        name: [by_class(labels == c, said == c, probabilities[:, c]) for c in range(CLASSES)]
        for name, by_class in BY_CLASS.items()
    }
    overall = {name: [*values, float(np.mean(values))] for name, values in found.items()}
    overall["auc"][-1] = metrics.roc_auc_score(labels, probabilities, multi_class="ovr")
    overall["ece"][-1] = float(
        classification.multiclass_calibration_error(
            torch.tensor(probabilities), torch.tensor(labels), CLASSES, n_bins=15
        )
    )
    overall["accuracy"] = [metrics.accuracy_score(labels, said)]
    overall["balanced_accuracy"] = [metrics.balanced_accuracy_score(labels, said)]
    return overall


def test_every_score_is_that_of_scikit_learn_or_torchmetrics() -> None:
    labels, probabilities = predictions()
    values, expected = values_of(labels, probabilities), reference(labels, probabilities)
    assert set(values) == set(OVERALL)
    for name in OVERALL:
        assert values[name].ravel().tolist() == pytest.approx(expected[name], abs=1e-6), name


def test_scores_of_resamples_are_those_of_the_resampled_test_set() -> None:
    labels, probabilities = predictions()
    (weights,) = draw(labels, 5)
    found = of_resamples(labels, probabilities, weights)
    for resample, times in enumerate(weights.astype(int).T):
        rows = np.repeat(np.arange(len(labels)), times)
        expected = reference(labels[rows], probabilities[rows])
        for name in OVERALL:
            assert found[name][resample].tolist() == pytest.approx(expected[name], abs=1e-6), name


def test_resamples_keep_the_size_of_each_class_and_are_the_same_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    labels, probabilities = predictions()
    (weights,) = draw(labels, 7)
    for label in range(CLASSES):
        assert (weights[labels == label].sum(axis=0) == (labels == label).sum()).all()
    assert weights.std(axis=1).any()
    assert score(labels, probabilities, 50) == score(labels, probabilities, 50)
    monkeypatch.setattr(scores, "_NUMBERS_AT_A_TIME", len(labels) * 3)
    assert [block.shape[1] for block in draw(labels, 7)] == [3, 3, 1]


def test_an_interval_is_as_wide_as_the_spread_of_a_mean() -> None:
    labels = np.repeat([0, 1], 500)
    right = np.tile([True] * 8 + [False] * 2, 100)
    said = np.where(right, labels, 1 - labels)
    found = score(labels, np.eye(2)[said] * 0.8 + 0.1, 2000).overall["accuracy"]
    assert found is not None
    spread = 1.96 * math.sqrt(0.8 * 0.2 / 1000)
    assert (found.value, found.low, found.high) == pytest.approx((0.8, 0.8 - spread, 0.8 + spread), abs=0.004)


def test_a_class_that_the_test_set_lacks_has_no_scores_and_does_not_count() -> None:
    labels, probabilities = predictions()
    few = labels < 3
    found = score(labels[few], probabilities[few], 20)
    assert [name for name, value in found.by_class[3].items() if value is None] == [
        "sensitivity",
        "precision",
        "f1",
        "auc",
    ]
    present = [found.by_class[c]["sensitivity"] for c in range(3)]
    mean = np.mean([value.value for value in present if value])
    assert found.overall["balanced_accuracy"] is not None
    assert found.overall["balanced_accuracy"].value == pytest.approx(mean)


def test_with_one_class_only_what_needs_another_is_not_defined() -> None:
    labels, probabilities = predictions()
    found = score(labels[labels == 0], probabilities[labels == 0], 20)
    assert found.overall["auc"] is found.overall["specificity"] is None
    assert found.overall["accuracy"] == found.overall["sensitivity"]
