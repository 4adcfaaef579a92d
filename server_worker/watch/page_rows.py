"""What the live page is told of rounds, workers and recipes: short, finite, and never longer than a page can show.

Names and details come from sites and from users. They are cut here and shown as text there.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from server_worker.run.recipe import Recipe
from server_worker.watch.events import ClientOutcome, RoundRecord
from server_worker.watch.survey import Survey

MOST_CLIENTS = 512
"""A round's dots in the strip; of more, evenly chosen ones are told."""
MOST_WORKERS = 200
MOST_SITES = 200
_MOST_TERMS = 16
LONGEST_NAME = 120
LONGEST_TEXT = 1000
LETTERS = {
    "accepted": "a",
    "projected": "p",
    "rejected_cosine": "r",
    "invalid": "i",
    "refused": "f",
    "missing": "m",
    "stale": "s",
}
"""Outcomes in a row: thousands of rounds with hundreds of clients are kept and sent."""
_CONVERGENCE = ("moving_average", "relative", "lr_normalised", "ratio", "exponent", "exponent_error", "rate")
_WORKER_TEXTS = ("name", "site", "device", "state", "version")
_WORKER_NUMBERS = ("round", "client", "tasks_done", "images_per_second", "since")


def encode_row(record: RoundRecord) -> bytes:
    row = {
        "round": record.round,
        "selected": record.selected,
        "accepted": record.accepted,
        "delta": finite(record.delta_norm),
        "reference": finite(record.reference_norm),
        **{name: finite(record.convergence.get(name)) for name in _CONVERGENCE},
        "verdict": cut(record.verdict, LONGEST_NAME),
        "accuracy": numbers(record.accuracy),
        "classes": [finite(share) for share in record.per_class],
        "losses": numbers(record.losses),
        "pseudo_labels": record.pseudo_labels,
        "credible": record.credible,
        "promoted": record.promoted,
        "purity": numbers(record.purity),
        "seconds": numbers(record.seconds),
        "refused": numbers(record.refused),
        "at": finite(record.finished_at, 13),
        **strip(record.outcomes),
    }
    return json.dumps(row, separators=(",", ":")).encode()


def strip(outcomes: Sequence[ClientOutcome]) -> dict[str, Any]:
    """A round's clients side by side: who, what became of it, its cosine."""
    step = max(1.0, len(outcomes) / MOST_CLIENTS)
    shown = [outcomes[int(index * step)] for index in range(min(len(outcomes), MOST_CLIENTS))]
    told: dict[str, Any] = {
        "clients": [outcome.client for outcome in shown],
        "outcomes": "".join(LETTERS.get(outcome.outcome, "?") for outcome in shown),
        "cosines": [_cosine(outcome.cosine) for outcome in shown],
        "not_shown": len(outcomes) - len(shown),
    }
    if any(outcome.staleness is not None for outcome in shown):
        told["staleness"] = [outcome.staleness for outcome in shown]
    return told


def _cosine(value: float | None) -> float | None:
    return round(value, 4) if value is not None and math.isfinite(value) else None


def whole_round(fields: Mapping[str, Any]) -> dict[str, Any]:
    """All of one line of the history, fit for JSON readers and for people."""
    return {str(key): _plain(value) for key, value in fields.items()}


def about(run: str, recipe: Recipe) -> dict[str, Any]:
    federation, method = recipe.federation, recipe.method
    sites = [[site, len(clients)] for site, clients in recipe.sites.items()]
    return {
        "run": cut(run, LONGEST_NAME),
        "recipe": cut(recipe.name, LONGEST_NAME),
        "description": cut(recipe.description, LONGEST_TEXT),
        "profile": recipe.profile,
        "method": method.name,
        "data": cut(recipe.data.name, LONGEST_NAME),
        "network": cut(recipe.network.name, LONGEST_NAME),
        "seed": str(recipe.seed),
        "mode": federation.mode,
        "rounds": recipe.rounds,
        "clients": recipe.split.clients,
        "asked": federation.expected,
        "deadline_seconds": federation.deadline_seconds,
        "cosine_threshold": 0.0 if method.cosine_filter else None,
        "sites": sites[:MOST_SITES],
        "class_names": [],
        "baseline": None,
    }


def fleet(survey: Survey, recipe: Recipe) -> dict[str, Any]:
    workers = [_worker(facts) for facts in survey.workers[:MOST_WORKERS]]
    there = {str(facts.get("site")) for facts in survey.workers}
    if recipe.federation.sites:
        empty = [site for site in recipe.sites if site not in there]
    else:
        # The only site has whatever name its workers gave it.
        empty = [] if there else list(recipe.sites)
    return {
        "at": finite(survey.at, 13),
        "workers": workers,
        "workers_not_shown": len(survey.workers) - len(workers),
        "sites_without_worker": empty[:MOST_SITES],
        "sites_not_shown": max(0, len(empty) - MOST_SITES),
        "clients_alive": survey.clients_alive,
        "depths": numbers(survey.depths),
        "store": numbers(survey.store),
        "trouble": cut(survey.trouble, LONGEST_TEXT),
    }


def _worker(facts: Mapping[str, Any]) -> dict[str, Any]:
    texts = {key: cut(str(facts[key]), LONGEST_NAME) for key in _WORKER_TEXTS if facts.get(key) is not None}
    return texts | {key: finite(facts.get(key), 13) for key in _WORKER_NUMBERS}


def numbers(named: Mapping[str, Any]) -> dict[str, float | None]:
    """A handful: their names may be what others say."""
    return {cut(str(name), 40): finite(named[name]) for name in list(named)[:_MOST_TERMS]}


def finite(value: object, digits: int = 6) -> float | None:
    """NaN and infinity are not JSON, and a reader that is strict would lose the answer."""
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


def _plain(value: Any) -> Any:
    """Of what JSON knows. Most of a round are numbers of its clients."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return cut(value, LONGEST_TEXT)
    if isinstance(value, dict):
        return {cut(key, LONGEST_NAME): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value
