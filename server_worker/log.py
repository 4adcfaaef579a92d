"""A watcher for people who read logs: one line an event."""

import logging

from server_worker.events import ClientOutcome, RoundRecord

_log = logging.getLogger("fedil.server")


class LogWatcher:
    def __init__(self, run: str) -> None:
        self._run = run

    def run_started(self, first_round: int, rounds: int) -> None:
        _log.info("run %s: round %d of %d is next", self._run, first_round, rounds)

    def phase(self, round_number: int, name: str) -> None:
        _log.debug("run %s, round %d: %s", self._run, round_number, name)

    def update_arrived(self, round_number: int, outcome: ClientOutcome, answered: int, selected: int) -> None:
        cosine = "" if outcome.cosine is None else f", cosine {outcome.cosine:.3f}"
        detail = f" ({outcome.detail})" if outcome.detail else ""
        _log.info(
            "run %s, round %d, client %d: %s%s%s; %d of %d",
            *(self._run, round_number, outcome.client, outcome.outcome, cosine, detail, answered, selected),
        )

    def round_closed(self, record: RoundRecord) -> None:
        accuracy = ", ".join(f"{name} {100 * value:.2f} %" for name, value in record.accuracy.items())
        _log.info(
            "run %s, round %d of %d closed: accepted %d of %d, ‖Δθ‖ %.4g%s, %.1f s",
            *(self._run, record.round, record.rounds, record.accepted, record.selected, record.delta_norm),
            f", accuracy {accuracy}" if accuracy else "",
            record.seconds.get("total", 0.0),
        )

    def note(self, text: str) -> None:
        _log.warning("run %s: %s", self._run, text)
