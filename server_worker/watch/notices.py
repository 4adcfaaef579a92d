"""Lines that a person should see, as typed events: what each is about stands in its fields, its words in `template`."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Notice:
    """`str()` gives the whole line; log watchers take round, client and severity from the fields `round_number`,
    `client_number` and `is_trouble`."""

    is_trouble: ClassVar[bool] = True
    template: ClassVar[str]
    """The words, with the names of fields in braces"""

    @property
    def text(self) -> str:
        return self.template.format_map(vars(self))

    @property
    def round(self) -> int | None:
        return vars(self).get("round_number")

    @property
    def client(self) -> int | None:
        return vars(self).get("client_number")

    def __str__(self) -> str:
        if self.round is None:
            return self.text
        about = f"round {self.round}" if self.client is None else f"round {self.round}, client {self.client}"
        return f"{about}: {self.text}"


@dataclass(frozen=True)
class Remark(Notice):
    """Words that come from elsewhere: a broker's shortcomings, a worker pool."""

    template = "{words}"
    words: str


@dataclass(frozen=True)
class PageServed(Notice):
    is_trouble = False
    template = "watch it at {url}"
    url: str


@dataclass(frozen=True)
class AnotherServerLeads(Notice):
    template = "another server leads run {run}: waiting"
    run: str


@dataclass(frozen=True)
class SiteLost(Notice):
    template = "site {site} has no worker: its clients are not asked until it has one"
    site: str


@dataclass(frozen=True)
class SiteBack(Notice):
    is_trouble = False
    template = "site {site} is back"
    site: str


@dataclass(frozen=True)
class QueueRecreated(Notice):
    queue: str
    consequence: str = ""
    """Such as "its clients are asked again" """

    @property
    def text(self) -> str:
        then = f", and {self.consequence}" if self.consequence else ""
        return f"{self.queue} was deleted: it is declared again{then}"


UNKNOWN_SITE = "unknown"
"""Of a message whose sender is not the user of a site"""


@dataclass(frozen=True)
class MessageRefused(Notice):
    template = "message refused ({reason}): {detail}"
    reason: str
    detail: str
    site: str


@dataclass(frozen=True)
class RefusalsNotKept(Notice):
    template = (
        "site {site} sends more than {most} bad messages a minute: {count} more refused and not kept as dead letters; "
        "stop its workers, or remove its user from the broker"
    )
    site: str
    count: int
    most: int


@dataclass(frozen=True)
class ManyDeadLetters(Notice):
    template = "{count} dead letters in {queue}: see why, then purge that queue"
    count: int
    queue: str


@dataclass(frozen=True)
class LedgersUnreadable(Notice):
    template = "no digest of the ledgers: {error}"
    error: str


@dataclass(frozen=True)
class RoundRemark(Notice):
    """What the method says of a round, such as "no update was accepted"."""

    template = "{words}"
    round_number: int
    words: str


@dataclass(frozen=True)
class MoreClientsAsked(Notice):
    template = "{learned} of {asked} clients have trained, the quorum is {quorum}; asking {more} more"
    round_number: int
    learned: int
    asked: int
    quorum: int
    more: int


@dataclass(frozen=True)
class AnswerDropped(Notice):
    """A good answer that is of no use any more: late, duplicate, stale, or from a client without its model."""

    template = "{reason}"
    round_number: int
    client_number: int
    reason: str
