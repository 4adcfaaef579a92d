"""A watcher for people who read logs: one line an event."""

import logging
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from broker_config.process.logs import about
from server_worker.watch.events import ClientOutcome, RoundRecord

if TYPE_CHECKING:
    from server_worker.deployment import Outcome

LOGGER = "server_worker"
_log = logging.getLogger(LOGGER)
_BEFORE_ROUNDS = {
    "load_data": "leads the run now, and reads its data",
    "baseline": "learns from the labels alone, for comparison",
    "pretrain": "learns from the labels first",
}
_TROUBLE = ("invalid", "refused")
_CONCERNS = re.compile(r"round (?P<round>\d+)(?:, client (?P<client>\d+))?: ")
"""How a note begins that is about one round, or one client's answer"""
_NEWS = re.compile(r"^watch it at |is back$")
"""Notes that tell of nothing wrong"""


def log_outcome(outcome: "Outcome", rounds: int) -> None:
    """A server's last line."""
    digests = {"model_digest": outcome.model_digest, "ledger_digest": outcome.ledger_digest}
    how = "stopped as asked (the same command goes on with it)" if outcome.stopped else "done"
    with about(run=outcome.run, **digests):
        _log.info(
            "%s: %d of %d rounds, θ′ %s, ledgers %s",
            *(how, outcome.rounds_done, rounds, *(digest or "not known" for digest in digests.values())),
        )


class LogWatcher:
    def __init__(self, run: str, always: Callable[..., None] = lambda **_: None) -> None:
        """`always` hears what every other line of this process should say too: the run and its round."""
        self._run, self._always = run, always
        always(run=run)

    def run_started(self, first_round: int, rounds: int) -> None:
        word = "started" if first_round == 1 else "resumed"
        self._say(logging.INFO, {}, "%s: round %d of %d is next", word, first_round, rounds)

    def phase(self, round_number: int, name: str) -> None:
        self._always(round=round_number or None)
        if round_number:
            self._say(logging.DEBUG, {"round": round_number, "phase": name}, "%s", name)
        else:
            self._say(logging.INFO, {"phase": name}, "%s", _BEFORE_ROUNDS.get(name, name))

    def update_arrived(self, round_number: int, outcome: ClientOutcome, answered: int, selected: int) -> None:
        cosine = "" if outcome.cosine is None else f", cosine {outcome.cosine:.3f}"
        detail = f" ({outcome.detail})" if outcome.detail else ""
        staleness = f", {outcome.staleness} versions old" if outcome.staleness else ""
        facts = {
            "round": round_number,
            "client": outcome.client,
            "outcome": outcome.outcome,
            "cosine": outcome.cosine,
            "detail": outcome.detail or None,
        }
        self._say(
            logging.WARNING if outcome.outcome in _TROUBLE else logging.INFO,
            facts,
            "%s%s%s%s; %d of %d",
            *(outcome.outcome, cosine, staleness, detail, answered, selected),
        )

    def round_closed(self, record: RoundRecord) -> None:
        accuracy = ", ".join(f"{name} {100 * value:.2f} %" for name, value in record.accuracy.items())
        seconds = record.seconds.get("total", 0.0)
        facts = {
            "round": record.round,
            "accepted": record.accepted,
            "selected": record.selected,
            "delta_norm": record.delta_norm,
            "accuracy": record.accuracy,
            "seconds": seconds,
        }
        self._say(
            logging.INFO,
            facts,
            "closed: accepted %d of %d, ‖Δθ‖ %.4g%s, %.1f s; rounds left: %d",
            *(record.accepted, record.selected, record.delta_norm),
            *(f", accuracy {accuracy}" if accuracy else "", seconds, record.rounds - record.round),
        )

    def note(self, text: str) -> None:
        facts = {}
        if found := _CONCERNS.match(text):
            facts = {name: int(number) for name, number in found.groupdict().items() if number}
            text = text[found.end() :]
        self._say(logging.INFO if _NEWS.search(text) else logging.WARNING, facts, "%s", text)

    def _say(self, level: int, facts: Mapping[str, object], message: str, *arguments: object) -> None:
        with about(run=self._run, **facts):
            _log.log(level, message, *arguments)
