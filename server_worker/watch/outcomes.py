"""What may become of an update and of a message, in words for people."""

from fedil_model.methods.interface import ACCEPTED, INVALID, Display, Outcome
from server_worker.watch.events import MISSING, REFUSED, STALE

_ACCEPTED = Outcome(ACCEPTED, "accepted", "Part of the new model.")
_ENGINE = (
    Outcome(INVALID, "invalid", "Broken or absurd numbers: never part of the model."),
    Outcome(REFUSED, "refused", "The client could not do the task."),
    Outcome(MISSING, "missing", "No answer in time."),
    Outcome(STALE, "stale", "Started from a model that is too old."),
)

REASONS = {
    "body_missing": "its body is gone, or was never there",
    "contradiction": "parts of it do not belong together",
    "digest": "damaged on the way",
    "duplicate": "the same answer again; it counts once",
    "late": "answered after its round had closed",
    "misplaced": "sent to a queue where it does not belong",
    "model_missing": "its model is no longer in the log; the client was asked again",
    "ledger_missing": "its ledger is not in the store; the client was asked again",
    "not_asked": "this client was not asked",
    "not_fedil": "not a message of FedIL",
    "not_yours": "sent by a site that does not own this client",
    "other_run": "an answer for another run",
    "schema": "not of the agreed form",
    "stale": "started from a model that is too old",
    "too_large": "larger than such a message may be",
    "trailing_bytes": "more bytes than the message has",
    "truncated": "cut off",
    "unknown_version": "written by another version of FedIL",
    "wrong_kind": "not the kind of message that belongs there",
}
"""Why a message did not count"""


def all_outcomes(display: Display) -> tuple[Outcome, ...]:
    """The engine's outcomes of an update and the method's."""
    return (_ACCEPTED, *display.outcomes, *_ENGINE)
