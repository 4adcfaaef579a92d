"""Groups runs that differ only in their seed, and computes their spread."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, product
from string import ascii_uppercase

import numpy as np

from ops.inspect.report.reading import Run
from server_worker.run.recipe import flatten, numbers_depend_on

_NOT_OF_THE_METHOD = frozenset({"seed", "name"})
_NOT_SHOWN = frozenset({"seed", "name", "description", "data.root", "data.download"})
_LESS_TELLING = frozenset({"rounds", "evaluate_every", "baseline_epochs"})
_MOST_NAMED = 2

Series = Callable[[Run], dict[int, float]]
"""A measured value by round"""


@dataclass(frozen=True)
class Group:
    """Runs of one recipe, one for each seed."""

    letter: str
    name: str
    runs: tuple[Run, ...]
    repeated: tuple[Run, ...] = ()
    """Further runs of the same seeds, which would make the spread look smaller than it is"""

    @property
    def label(self) -> str:
        return f"{self.letter} {self.name}"

    @property
    def all_runs(self) -> tuple[Run, ...]:
        return (*self.runs, *self.repeated)

    def final_accuracy(self, model: str) -> list[float]:
        """At the last evaluation of each run"""
        known = [list(run.accuracy(model).values()) for run in self.runs]
        return [values[-1] for values in known if values]

    def accuracy_at(self, number: int) -> dict[int, float]:
        """Of the global model at one round, by seed"""
        known = {run.recipe.seed: run.accuracy("global") for run in self.runs}
        return {seed: values[number] for seed, values in known.items() if number in values}

    def lead_over(self, other: "Group", number: int) -> list[float]:
        """Difference in accuracy at one round, by seed: runs with one seed have the same labels."""
        mine, theirs = self.accuracy_at(number), other.accuracy_at(number)
        return [mine[seed] - theirs[seed] for seed in sorted(mine.keys() & theirs.keys())]


@dataclass(frozen=True)
class Comparison:
    groups: tuple[Group, ...]
    notes: tuple[str, ...]

    @property
    def runs(self) -> list[Run]:
        return [run for group in self.groups for run in group.runs]

    def last_common_round(self) -> int | None:
        evaluated = [known for run in self.runs if (known := run.accuracy("global"))]
        return max(at_common_rounds(evaluated)[0], default=None)


def at_common_rounds(measured: Sequence[Mapping[int, float]]) -> tuple[list[int], np.ndarray]:
    """The rounds that all have measured, and their values: runs × rounds."""
    rounds = sorted(set.intersection(*map(set, measured))) if measured else []
    return rounds, np.array([[values[number] for number in rounds] for values in measured])


def compare(runs: Sequence[Run], variants: Sequence[str] | None = None) -> Comparison:
    """`variants`: the group of each run; without them, runs of one recipe are a group."""
    by_group: dict[str, list[Run]] = {}
    for run, key in zip(runs, variants or map(_recipe_key, runs), strict=True):
        by_group.setdefault(key, []).append(run)
    alike = list(by_group.values())
    names = list(by_group) if variants else _names(alike)
    groups = tuple(map(_group, _letters(), names, alike))
    return Comparison(groups, tuple(_notes(groups)))


def _recipe_key(run: Run) -> str:
    known, understood = numbers_depend_on(run.recipe), flatten(run.recipe.model_dump(mode="json"))
    # Settings that this version does not know may matter too.
    unknown = {key: value for key, value in run.settings.items() if key not in understood}
    kept = {key: value for key, value in {**known, **unknown}.items() if key not in _NOT_OF_THE_METHOD}
    return json.dumps(kept, sort_keys=True)


def _letters() -> Iterator[str]:
    """A to Z, AA, AB and so on"""
    for length in count(1):
        yield from map("".join, product(ascii_uppercase, repeat=length))


def _group(letter: str, name: str, members: Sequence[Run]) -> Group:
    """Of several runs with one seed, the one with most rounds counts."""
    best: dict[int, Run] = {}
    for run in sorted(members, key=lambda run: -run.rounds_done):
        best.setdefault(run.recipe.seed, run)
    chosen = tuple(best[seed] for seed in sorted(best))
    repeated = tuple(run for run in members if not any(run is one for one in chosen))
    return Group(letter, name, chosen, repeated)


def differing_settings(groups: Iterable[Sequence[Run]]) -> list[str]:
    """Keys in the order of the recipe."""
    all_settings = [run.settings for members in groups for run in members]
    keys = dict.fromkeys(key for settings in all_settings for key in settings)
    return [
        key
        for key in keys
        if key not in _NOT_SHOWN
        and len({json.dumps(settings.get(key), sort_keys=True) for settings in all_settings}) > 1
    ]


def _names(alike: Sequence[Sequence[Run]]) -> list[str]:
    """The first group has its recipe's name, the others the settings that differ from it."""
    first = alike[0][0]
    differing = differing_settings(alike)
    # Length and frequency of evaluation name a group only if nothing else differs.
    telling = [key for key in differing if key not in _LESS_TELLING] or differing
    names = [first.recipe.name]
    for members in alike[1:]:
        one = members[0]
        changed = [
            f"{key.rpartition('.')[2]}={one.settings.get(key)}"
            for key in telling
            if one.settings.get(key) != first.settings.get(key)
        ]
        own_name = [one.recipe.name] if one.recipe.name != first.recipe.name else []
        names.append(" ".join([*own_name, ", ".join(changed[:_MOST_NAMED])]).strip() or one.recipe.name)
    return names


def _notes(groups: Iterable[Group]) -> Iterator[str]:
    for group in groups:
        for run in group.repeated:
            yield (
                f"{run.label} has the seed {run.recipe.seed} of another run of {group.letter} and does not count "
                "in its mean and spread"
            )
        for run in group.runs:
            if not run.records:
                yield f"{run.label}: {run.state}, so it is in no curve"
            elif run.running or run.rounds_done < run.recipe.rounds:
                yield f"{run.label}: {run.state}"
            yield from (f"{run.label}: {note}" for note in run.notes if run.records)
