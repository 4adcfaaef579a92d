"""Scores of probabilities against true labels, each with a 95 % interval, overall and by class.

The values are scikit-learn's, which has no expected calibration error. The intervals are percentiles over resamples of
the test set that keep the number of samples of each class: a stratified bootstrap, in which no class can vanish. They
are computed for many resamples at a time, since scikit-learn, one by one, takes a minute for nine classes and a quarter
of an hour for 100. The test compares the two, and the calibration error with torchmetrics.

N samples, C classes, R resamples, B bins of confidence.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

SEED = 0
RESAMPLES = 1000
_BINS = 15
_NUMBERS_AT_A_TIME = 2_000_000
"""In one block of resamples, which bounds the memory"""

BY_CLASS = ("sensitivity", "specificity", "precision", "f1", "auc", "ece")
"""Of a class against all others; sensitivity is the same as recall"""
OVERALL = ("accuracy", "balanced_accuracy", *BY_CLASS)
"""Means over the classes, of which balanced accuracy is that of sensitivity; the calibration error is that of the most
probable class."""

Numbers = Mapping[str, np.ndarray]
"""By the name of a score; its last axis is the classes, and then all of them together. NaN where it is not defined."""


@dataclass(frozen=True)
class Score:
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Scores:
    overall: Mapping[str, Score | None]
    by_class: Sequence[Mapping[str, Score | None]]
    """None where it is not defined: the test set lacks the class, or has no other"""
    resamples: int

    def as_json(self, class_names: Sequence[str]) -> dict[str, object]:
        overall, *by_class = (
            {name: vars(score) if score else None for name, score in scores.items()}
            for scores in (self.overall, *self.by_class)
        )
        return {
            "overall": overall,
            "by_class": dict(zip(class_names, by_class, strict=True)),
            "interval": {
                "level": 0.95,
                "bootstrap": "stratified by class",
                "resamples": self.resamples,
                "seed": SEED,
            },
        }


def score(labels_N: np.ndarray, probabilities_NC: np.ndarray, resamples: int = RESAMPLES) -> Scores:
    values = values_of(labels_N, probabilities_NC)
    blocks = [
        of_resamples(labels_N, probabilities_NC, weights_NR) for weights_NR in draw(labels_N, resamples)
    ]
    scores = {
        name: _with_intervals(values[name], np.concatenate([block[name] for block in blocks]))
        for name in OVERALL
    }
    by_class = [
        {name: scores[name][index] for name in BY_CLASS} for index in range(probabilities_NC.shape[1])
    ]
    return Scores({name: scores[name][-1] for name in OVERALL}, by_class, resamples)


def _with_intervals(values: np.ndarray, numbers_R: np.ndarray) -> list[Score | None]:
    defined = np.isfinite(values)
    low, high = np.percentile(np.where(defined, numbers_R, 0.0), (2.5, 97.5), axis=0)
    return [
        Score(*map(float, bounds)) if known else None
        for known, *bounds in zip(defined, values, low, high, strict=True)
    ]


def draw(labels_N: np.ndarray, resamples: int) -> Iterator[np.ndarray]:
    """How often each sample is in each resample, N×R, in blocks."""
    generator = np.random.default_rng(SEED)
    held = [np.flatnonzero(labels_N == label) for label in np.unique(labels_N)]
    at_a_time = max(1, _NUMBERS_AT_A_TIME // len(labels_N))
    for start in range(0, resamples, at_a_time):
        count = min(at_a_time, resamples - start)
        drawn_NR = np.concatenate([generator.choice(members, (len(members), count)) for members in held])
        places = drawn_NR * count + np.arange(count)
        yield np.bincount(places.ravel(), minlength=places.size).reshape(-1, count).astype(np.float32)


def values_of(labels_N: np.ndarray, probabilities_NC: np.ndarray) -> Numbers:
    from sklearn import metrics  # takes two seconds

    said_N, classes = probabilities_NC.argmax(axis=1), np.arange(probabilities_NC.shape[1])
    precision, sensitivity, f1, held = metrics.precision_recall_fscore_support(
        labels_N, said_N, labels=classes, zero_division=0
    )
    unlike = metrics.multilabel_confusion_matrix(labels_N, said_N, labels=classes)[:, 0]
    auc = [
        metrics.roc_auc_score(labels_N == label, probabilities_NC[:, label])
        if _both(count, labels_N)
        else np.nan
        for label, count in enumerate(held)
    ]
    return _completed(
        held,
        metrics.accuracy_score(labels_N, said_N),
        _calibration_error(labels_N, probabilities_NC, np.ones((len(labels_N), 1)))[0],
        sensitivity=sensitivity,
        specificity=_divided(unlike[:, 0], unlike.sum(axis=1)),
        precision=precision,
        f1=f1,
        auc=np.array(auc),
    )


def _both(held: int, labels_N: np.ndarray) -> bool:
    return 0 < held < len(labels_N)


def of_resamples(labels_N: np.ndarray, probabilities_NC: np.ndarray, weights_NR: np.ndarray) -> Numbers:
    classes = probabilities_NC.shape[1]
    cells_N = labels_N * classes + probabilities_NC.argmax(axis=1)
    confusion_RCC = np.stack([np.bincount(cells_N, weights, classes * classes) for weights in weights_NR.T])
    confusion_RCC = confusion_RCC.reshape(-1, classes, classes)
    right_RC, said_RC = confusion_RCC.diagonal(axis1=1, axis2=2), confusion_RCC.sum(axis=1)
    held_RC, total = confusion_RCC.sum(axis=2), len(labels_N)
    return _completed(
        held_RC[0],
        right_RC.sum(axis=1) / total,
        _calibration_error(labels_N, probabilities_NC, weights_NR),
        sensitivity=_divided(right_RC, held_RC),
        specificity=_divided(total - held_RC - said_RC + right_RC, total - held_RC),
        precision=_divided(right_RC, said_RC, nothing=0.0),
        f1=_divided(2 * right_RC, held_RC + said_RC, nothing=0.0),
        auc=_auc(labels_N, probabilities_NC, weights_NR),
    )


def _completed(held_C: np.ndarray, accuracy: np.ndarray, ece: np.ndarray, **by_class: np.ndarray) -> Numbers:
    """With the means over the classes that the test set has."""
    present = np.asarray(held_C) > 0
    numbers = {"ece": ece, "accuracy": np.asarray(accuracy)[..., None]}
    for name, values in by_class.items():
        known = np.where(present, values, np.nan) if name != "specificity" else values
        numbers[name] = np.concatenate([known, values[..., present].mean(axis=-1, keepdims=True)], axis=-1)
    return {**numbers, "balanced_accuracy": numbers["sensitivity"][..., -1:]}


def _divided(part: np.ndarray, whole: np.ndarray, nothing: float = np.nan) -> np.ndarray:
    quotient = np.full(np.shape(part), nothing)
    np.divide(part, whole, out=quotient, where=whole > 0)
    return quotient


def _auc(labels_N: np.ndarray, probabilities_NC: np.ndarray, weights_NR: np.ndarray) -> np.ndarray:
    """The share of pairs of a sample of the class and another one in which the first is thought more probable; ties
    count half."""
    return np.stack(
        [
            _auc_of(labels_N == label, column_N, weights_NR)
            for label, column_N in enumerate(probabilities_NC.T)
        ],
        axis=1,
    )


def _auc_of(is_class_N: np.ndarray, probability_N: np.ndarray, weights_NR: np.ndarray) -> np.ndarray:
    like, unlike = probability_N[is_class_N], probability_N[~is_class_N]
    order = np.argsort(unlike)
    below = np.cumsum(weights_NR[~is_class_N][order], axis=0, dtype=np.float64)
    below = np.concatenate([np.zeros((1, below.shape[1])), below])
    first, last = (np.searchsorted(unlike[order], like, side=side) for side in ("left", "right"))
    wins = (weights_NR[is_class_N] * (below[first] + below[last]) / 2).sum(axis=0)
    return _divided(wins, np.full_like(wins, len(like) * len(unlike)))


def _calibration_error(
    labels_N: np.ndarray, probabilities_NC: np.ndarray, weights_NR: np.ndarray
) -> np.ndarray:
    """Mean distance between confidence and share of right answers in bins of confidence, R×(C + 1)."""
    one_against_others = [(column_N, labels_N == label) for label, column_N in enumerate(probabilities_NC.T)]
    most_probable = (probabilities_NC.max(axis=1), probabilities_NC.argmax(axis=1) == labels_N)
    errors = []
    for confidence_N, right_N in (*one_against_others, most_probable):
        bin_N = np.minimum((confidence_N * _BINS).astype(int), _BINS - 1)
        gaps_BN = np.eye(_BINS)[:, bin_N] * (confidence_N - right_N)
        errors.append(np.abs(gaps_BN @ weights_NR).sum(axis=0) / len(labels_N))
    return np.stack(errors, axis=1)
