"""How a run's rounds reach watchers: phases as they begin, a record as soon as its round is evaluated."""

from concurrent.futures import Future

from server_worker.round.context import ServerContext
from server_worker.round.evaluation import Evaluation
from server_worker.run.progress import Progress
from server_worker.run.recipe import Recipe
from server_worker.watch.events import ClosedRound, RoundRecord


class Reporter:
    def __init__(self, recipe: Recipe, context: ServerContext) -> None:
        self._recipe, self._context = recipe, context
        self._pending: tuple[RoundRecord, Future[Evaluation]] | None = None

    def enter(self, number: int, phase: str) -> None:
        self._context.check_stop()
        self.flush(wait=False)
        self._context.watcher.phase(number, phase)

    def announce(self, progress: Progress, checkpoint_seconds: float | None = None) -> None:
        """Submit the models for evaluation; the record follows when that is done, while the next round runs."""
        self.flush(wait=True)
        closed = progress.closed
        assert closed is not None
        answered = {outcome.client: progress.answered[outcome.client] for outcome in closed.outcomes}
        record = _record(closed, dict(self._context.label_truth(answered)), checkpoint_seconds)
        if closed.round % self._recipe.evaluate_every and closed.round != self._recipe.rounds:
            self._context.watcher.round_closed(record)
            return
        self._pending = (record, self._context.evaluator.submit(progress.models))
        self.flush(wait=False)

    def flush(self, wait: bool) -> None:
        """Report the pending round if its evaluation is done, or `wait` for it."""
        if self._pending is None or not (wait or self._pending[1].done()):
            return
        (record, future), self._pending = self._pending, None
        found = future.result()
        evaluated = {"accuracy": found.accuracy, "per_class": found.per_class}
        seconds = {**record.seconds, "evaluate": found.seconds}
        self._context.watcher.round_closed(RoundRecord(**{**vars(record), **evaluated, "seconds": seconds}))


def _record(
    closed: ClosedRound, truth: dict[str, float | None], checkpoint_seconds: float | None
) -> RoundRecord:
    seconds = dict(closed.seconds)
    if checkpoint_seconds is not None:
        seconds |= {"checkpoint": checkpoint_seconds, "total": seconds["total"] + checkpoint_seconds}
    return RoundRecord(**{**vars(closed), "series": {**closed.series, **truth}, "seconds": seconds})
