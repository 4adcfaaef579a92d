"""What the live page receives of recipes, rounds and workers: short, finite, and no more than a page can show.

Names and details come from sites and users. They are cut here and shown as text there.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fedil_model.methods.interface import ClientValue, Display, Model
from server_worker.run.recipe import Recipe
from server_worker.watch.events import ClientOutcome, RoundRecord
from server_worker.watch.outcomes import REASONS, all_outcomes
from server_worker.watch.survey import Survey
from server_worker.watch.words import PHASES, TREND_FOOT, TRENDS, evaluated_words

MOST_CLIENTS = 512
"""Dots of a round; of more clients, evenly chosen ones are sent."""
MOST_WORKERS = 200
MOST_SITES = 200
_MOST_NUMBERS = 16
_MOST_CLASSES = 1000
LONGEST_NAME = 120
LONGEST_TEXT = 1000
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_UNKNOWN = "?"
_CONVERGENCE = ("moving_average", "relative", "lr_normalised", "ratio", "exponent", "exponent_error", "rate")
_WORKER_TEXTS = ("name", "site", "device", "state", "version")
_WORKER_NUMBERS = ("round", "client", "tasks_done", "images_per_second", "since")


class Rows:
    """Rounds as the page receives them, with what the method declares. Rounds are many, so outcomes are letters: the
    n-th letter is the n-th outcome of `about`."""

    def __init__(self, display: Display) -> None:
        outcomes = all_outcomes(display)
        self._letters = {outcome.name: letter for outcome, letter in zip(outcomes, _LETTERS, strict=False)}
        self._models = [model.name for model in display.models]
        self._series = [series.name for series in display.series()]
        self._values = {value.name: _digits(value) for value in display.client_values}

    def encode(self, record: RoundRecord) -> bytes:
        row = {
            "round": record.round,
            "selected": record.selected,
            "accepted": record.accepted,
            "delta": finite(record.delta_norm),
            **{name: finite(record.convergence.get(name)) for name in _CONVERGENCE},
            "verdict": cut(record.verdict, LONGEST_NAME),
            "accuracy": {name: finite(record.accuracy.get(name)) for name in self._models},
            "classes": [finite(share) for share in record.per_class],
            "series": {name: finite(record.series.get(name)) for name in self._series},
            "seconds": numbers(record.seconds),
            "refused": numbers(record.refused),
            "at": finite(record.finished_at, 13),
            **self.clients(record.outcomes),
        }
        return json.dumps(row, separators=(",", ":")).encode()

    def clients(self, outcomes: Sequence[ClientOutcome]) -> dict[str, Any]:
        """A round's clients side by side: number, outcome, values."""
        step = max(1.0, len(outcomes) / MOST_CLIENTS)
        shown = [outcomes[int(index * step)] for index in range(min(len(outcomes), MOST_CLIENTS))]
        row: dict[str, Any] = {
            "clients": [outcome.client for outcome in shown],
            "outcomes": "".join(self._letters.get(outcome.outcome, _UNKNOWN) for outcome in shown),
            "values": {
                name: [_rounded(outcome.values.get(name), digits) for outcome in shown]
                for name, digits in self._values.items()
            },
            "not_shown": len(outcomes) - len(shown),
        }
        if any(outcome.staleness is not None for outcome in shown):
            row["staleness"] = [outcome.staleness for outcome in shown]
        return row


def _digits(value: ClientValue) -> int:
    """Decimals that are a thousandth of the range or less"""
    return max(0, 4 - math.floor(math.log10(value.high - value.low)))


def _rounded(value: float | None, digits: int) -> float | None:
    return round(value, digits) if value is not None and math.isfinite(value) else None


def about(run: str, recipe: Recipe) -> dict[str, Any]:
    federation, display = recipe.federation, recipe.spec.display
    sites = [[site, len(clients)] for site, clients in recipe.sites.items()]
    return {
        "run": cut(run, LONGEST_NAME),
        "recipe": cut(recipe.name, LONGEST_NAME),
        "description": cut(recipe.description, LONGEST_TEXT),
        "profile": recipe.profile,
        "method": recipe.method.name,
        "data": cut(recipe.data.name, LONGEST_NAME),
        "network": cut(recipe.network.name, LONGEST_NAME),
        "seed": str(recipe.seed),
        "mode": federation.mode,
        "rounds": recipe.rounds,
        "evaluated": evaluated_words(recipe.evaluate_every),
        "clients": recipe.split.clients,
        "asked": federation.expected,
        "deadline_seconds": federation.deadline_seconds,
        "sites": sites[:MOST_SITES],
        "class_names": [],
        "baseline": None,
        "display": {
            **asdict(display),
            "models": [_model(one) for one in display.models],
            "outcomes": [asdict(one) for one in all_outcomes(display)],
            "client_values": [
                {**asdict(value), "threshold": value.threshold_of(recipe.method)}
                for value in display.client_values
            ],
        },
        "reasons": REASONS,
        "phases": PHASES,
        "trends": {name: asdict(trend) for name, trend in TRENDS.items()},
        "trend_foot": TREND_FOOT,
    }


def _model(model: Model) -> dict[str, Any]:
    return {**asdict(model), "label": model.label, "short": model.short}


def shown_classes(names: Sequence[str]) -> list[str]:
    return [cut(name, LONGEST_NAME) for name in names[:_MOST_CLASSES]]


def fleet(survey: Survey) -> dict[str, Any]:
    workers = [_worker(facts) for facts in survey.workers[:MOST_WORKERS]]
    return {
        "at": finite(survey.at, 13),
        "workers": workers,
        "workers_not_shown": len(survey.workers) - len(workers),
        "sites_without_worker": list(survey.absent[:MOST_SITES]),
        "sites_not_shown": max(0, len(survey.absent) - MOST_SITES),
        "clients_alive": survey.clients_alive,
        "depths": numbers(survey.depths),
        "store": numbers(survey.store),
        "trouble": cut(survey.trouble, LONGEST_TEXT),
    }


def _worker(facts: Mapping[str, Any]) -> dict[str, Any]:
    texts = {key: cut(str(facts[key]), LONGEST_NAME) for key in _WORKER_TEXTS if facts.get(key) is not None}
    return texts | {key: finite(facts.get(key), 13) for key in _WORKER_NUMBERS}


def numbers(named: Mapping[str, Any]) -> dict[str, float | None]:
    """At most some: others may choose their names."""
    return {cut(str(name), 40): finite(named[name]) for name in list(named)[:_MOST_NUMBERS]}


def finite(value: object, digits: int = 6) -> float | None:
    """NaN and infinity are not JSON, and strict readers refuse them."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    if not math.isfinite(number):
        return None
    rounded = float(f"{number:.{digits}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 2**53 else rounded


def cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
