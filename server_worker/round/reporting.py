"""How a run's rounds reach people: records as soon as their accuracy is known, phases, seconds by phase."""

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from fedil_model.methods.interface import Folded, ServerStep
from fedil_model.training.convergence import Increment, assess
from server_worker.round.context import Surroundings
from server_worker.round.evaluation import Evaluation
from server_worker.run.progress import Progress
from server_worker.run.recipe import Recipe
from server_worker.watch.events import ClientOutcome, RoundRecord

_MOST_SAMPLES = 1e12


class Reporter:
    def __init__(self, recipe: Recipe, around: Surroundings) -> None:
        self._recipe, self._around = recipe, around
        self._pending: tuple[RoundRecord, Future[Evaluation] | None] | None = None

    def enter(self, number: int, phase: str) -> None:
        self._around.check_stop()
        self.report(wait=False)
        self._around.watcher.phase(number, phase)

    def announce(self, progress: Progress, checkpoint_seconds: float | None = None) -> None:
        """Hand the record on as soon as its accuracy is known, while the next round is already running."""
        self.report(wait=True)
        assert progress.record is not None
        record = dataclasses.replace(progress.record, purity=self._purity(progress))
        if checkpoint_seconds is not None:
            seconds = record.seconds["total"] + checkpoint_seconds
            laps = {"checkpoint": checkpoint_seconds, "total": seconds}
            record = dataclasses.replace(record, seconds={**record.seconds, **laps})
        due = record.round % self._recipe.evaluate_every == 0 or record.round == self._recipe.rounds
        self._pending = (record, self._around.evaluator.submit(progress.models) if due else None)
        self.report(wait=False)

    def _purity(self, progress: Progress) -> dict[str, float | None]:
        assert progress.record is not None
        clients = [outcome.client for outcome in progress.record.outcomes]
        return dict(self._around.purity({client: progress.answered[client] for client in clients}))

    def report(self, wait: bool) -> None:
        if self._pending is None:
            return
        record, future = self._pending
        if future is not None and not wait and not future.done():
            return
        self._pending = None
        if future is not None:
            found = future.result()
            record = dataclasses.replace(
                record,
                accuracy=found.accuracy,
                per_class=found.per_class,
                seconds={**record.seconds, "evaluate": found.seconds},
            )
        self._around.watcher.round_closed(record)


def make_record(
    *,
    number: int,
    rounds: int,
    outcomes: tuple[ClientOutcome, ...],
    step: ServerStep,
    folded: Folded,
    increments: tuple[Increment, ...],
    rates: Sequence[float],
    before: tuple[tuple[int, int], ...],
    labelled: tuple[tuple[int, int], ...],
    refused: dict[str, int],
    seconds: dict[str, float],
) -> RoundRecord:
    """`before` and `labelled`: what each client held before this round and holds now, as `labels_held` tells."""
    convergence = assess(increments, rates)
    return RoundRecord(
        round=number,
        rounds=rounds,
        selected=len(outcomes),
        accepted=sum(outcome.counts for outcome in outcomes),
        outcomes=outcomes,
        delta_norm=folded.delta_norm,
        reference_norm=folded.reference_norm,
        verdict=convergence.verdict,
        convergence={k: v for k, v in dataclasses.asdict(convergence).items() if k != "verdict"},
        accuracy={},
        losses=dict(step.losses) | mean_losses(outcomes),
        pseudo_labels=sum(pseudo for pseudo, _ in labelled),
        credible=sum(credible for _, credible in labelled),
        purity={},
        seconds=seconds,
        refused=refused,
        promoted=sum(max(0, now - then) for (_, then), (_, now) in zip(before, labelled, strict=True)),
        finished_at=time.time(),
    )


def mean_losses(outcomes: tuple[ClientOutcome, ...]) -> dict[str, float]:
    """Of the terms that most of the clients tell of which tell any: a client may call a loss what it likes."""
    told = [{n: v for n, v in o.metrics.items() if n.startswith("loss_")} for o in outcomes]
    tellers = Counter(name for losses in told for name in losses)
    most = sum(1 for losses in told if losses) / 2
    by_name = {
        name: [losses[name] for losses in told if name in losses]
        for name in sorted(tellers)
        if tellers[name] > most
    }
    # Divided first: a sum of what clients claim may overflow.
    return {name: sum(value / len(values) for value in values) for name, values in by_name.items()}


def labels_held(
    before: tuple[tuple[int, int], ...], outcomes: tuple[ClientOutcome, ...]
) -> tuple[tuple[int, int], ...]:
    """Of each client: samples with a pseudo-label, samples in its credible set, after these answers."""
    held = list(before)
    for outcome in outcomes:
        if outcome.outcome != "invalid" and {"pseudo_labels", "credible"} <= outcome.metrics.keys():
            held[outcome.client] = (
                _count(outcome.metrics["pseudo_labels"]),
                _count(outcome.metrics["credible"]),
            )
    return tuple(held)


def _count(claimed: float) -> int:
    """A client may claim any number; one that no checkpoint can hold would stop the run."""
    return int(min(max(claimed, 0.0), _MOST_SAMPLES))


class Stopwatch:
    """Seconds by phase; a phase may come back."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = self._last = clock()
        self._laps: dict[str, float] = {}

    def lap(self, phase: str) -> None:
        now = self._clock()
        self._laps[phase] = self._laps.get(phase, 0.0) + now - self._last
        self._last = now

    def seconds(self) -> dict[str, float]:
        return self._laps | {"total": self._clock() - self._began}
