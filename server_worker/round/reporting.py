"""How a run's rounds reach watchers: phases as they begin, a record as soon as its round is evaluated."""

from concurrent.futures import Future
from dataclasses import replace

from server_worker.round.context import ServerContext
from server_worker.round.evaluation import Evaluation
from server_worker.run.progress import Progress
from server_worker.run.recipe import Recipe
from server_worker.watch.events import RoundRecord


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
        record = progress.closed
        assert record is not None
        answered = {outcome.client: progress.answered[outcome.client] for outcome in record.outcomes}
        record = replace(record, series={**record.series, **self._context.label_truth(answered)})
        if checkpoint_seconds is not None:
            total = record.seconds["total"] + checkpoint_seconds
            record = _timed(record, checkpoint=checkpoint_seconds, total=total)
        if record.round % self._recipe.evaluate_every and record.round != self._recipe.rounds:
            self._context.watcher.round_closed(record)
            return
        self._pending = (record, self._context.evaluate(progress.models))
        self.flush(wait=False)

    def flush(self, wait: bool) -> None:
        """Report the pending round if its evaluation is done, or `wait` for it."""
        if self._pending is None or not (wait or self._pending[1].done()):
            return
        (record, future), self._pending = self._pending, None
        found = future.result()
        record = _timed(record, evaluate=found.seconds)
        self._context.watcher.round_closed(
            replace(record, accuracy=found.accuracy, per_class=found.per_class)
        )


def _timed(record: RoundRecord, **seconds: float) -> RoundRecord:
    return replace(record, seconds={**record.seconds, **seconds})
