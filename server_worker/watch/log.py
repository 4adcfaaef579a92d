"""A watcher that writes one log line per event."""

import logging
from collections.abc import Callable, Mapping

from broker_config.process.logs import about
from fedil_model.methods.interface import INVALID, Display
from server_worker.run.digests import Outcome
from server_worker.watch.events import REFUSED, ClientOutcome, RoundRecord, Watcher
from server_worker.watch.notices import Notice
from server_worker.watch.pace import LINES_EVERY_SECONDS, Every
from server_worker.watch.words import epoch_words, phase_words, trend

LOGGER = "server_worker"
_log = logging.getLogger(LOGGER)


def log_outcome(outcome: Outcome, rounds: int) -> None:
    """A server's last line."""
    digests = {"model_digest": outcome.model_digest, "ledger_digest": outcome.ledger_digest}
    how = "stopped as asked (the same command goes on with it)" if outcome.stopped else "done"
    with about(run=outcome.run, **digests):
        _log.info(
            "%s: %d of %d rounds, model %s, ledgers %s",
            *(how, outcome.rounds_done, rounds, *(digest or "not known" for digest in digests.values())),
        )


class LogWatcher(Watcher):
    def __init__(self, run: str, display: Display, always: Callable[..., None] = lambda **_: None) -> None:
        """`always` takes what every other log line of this process carries too: the run and its round."""
        self._run, self._always = run, always
        self._titles = {model.name: model.title for model in display.models}
        self._epochs_due = Every(LINES_EVERY_SECONDS)
        always(run=run)

    def run_started(self, first_round: int, rounds: int) -> None:
        word = "started" if first_round == 1 else "resumed"
        self._write(logging.INFO, {}, "%s: round %d of %d is next", word, first_round, rounds)

    def phase(self, round_number: int, name: str) -> None:
        self._always(round=round_number or None)
        if round_number:
            self._write(logging.DEBUG, {"round": round_number, "phase": name}, "%s", name)
        else:
            self._epochs_due = Every(LINES_EVERY_SECONDS)
            self._write(logging.INFO, {"phase": name}, "%s", phase_words(name))

    def epochs(self, done: int, total: int, left_seconds: float) -> None:
        if self._epochs_due():
            facts = {"epoch": done, "epochs": total}
            self._write(logging.INFO, facts, "%s", epoch_words(done, total, left_seconds))

    def update_arrived(self, round_number: int, outcome: ClientOutcome, answered: int, selected: int) -> None:
        values = "".join(f", {name} {value:.3f}" for name, value in outcome.values.items())
        staleness = f", {outcome.staleness} versions old" if outcome.staleness else ""
        detail = f" ({outcome.detail})" if outcome.detail else ""
        facts = {
            **outcome.values,
            "round": round_number,
            "client": outcome.client,
            "outcome": outcome.outcome,
            "detail": outcome.detail or None,
        }
        self._write(
            logging.WARNING if outcome.outcome in (INVALID, REFUSED) else logging.INFO,
            facts,
            "%s%s%s%s; %d of %d",
            *(outcome.outcome, values, staleness, detail, answered, selected),
        )

    def round_closed(self, record: RoundRecord) -> None:
        accuracy = ", ".join(
            f"{self._titles.get(name, name)} {100 * value:.2f} %" for name, value in record.accuracy.items()
        )
        facts = record.headline
        self._write(
            logging.INFO,
            facts,
            "closed: accepted %d of %d, update size %.4g (%s)%s, %.1f s; rounds left: %d",
            *(record.accepted, record.selected, record.delta_norm, trend(record.verdict).words),
            *(f", accuracy: {accuracy}" if accuracy else "", facts["seconds"], record.rounds - record.round),
        )

    def note(self, notice: Notice) -> None:
        where = {"round": notice.round, "client": notice.client}
        facts = {name: number for name, number in where.items() if number is not None}
        self._write(logging.WARNING if notice.is_trouble else logging.INFO, facts, "%s", notice.text)

    def _write(self, level: int, facts: Mapping[str, object], message: str, *arguments: object) -> None:
        with about(run=self._run, **facts):
            _log.log(level, message, *arguments)
