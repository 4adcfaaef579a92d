"""Lines that a person should see, as typed events: what each is about stands in its fields, its words in `text`."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Notice:
    """`str()` gives the whole line; log watchers take round, client and severity from the fields."""

    is_trouble: ClassVar[bool] = True

    @property
    def text(self) -> str:
        raise NotImplementedError

    @property
    def round(self) -> int | None:
        return None

    @property
    def client(self) -> int | None:
        return None

    def __str__(self) -> str:
        if self.round is None:
            return self.text
        about = f"round {self.round}" if self.client is None else f"round {self.round}, client {self.client}"
        return f"{about}: {self.text}"


@dataclass(frozen=True)
class Remark(Notice):
    """Words that come from elsewhere: a broker's shortcomings, a worker pool."""

    words: str

    @property
    def text(self) -> str:
        return self.words


@dataclass(frozen=True)
class PageServed(Notice):
    is_trouble = False
    url: str

    @property
    def text(self) -> str:
        return f"watch it at {self.url}"


@dataclass(frozen=True)
class AnotherServerLeads(Notice):
    run: str

    @property
    def text(self) -> str:
        return f"another server leads run {self.run}: waiting"


@dataclass(frozen=True)
class SiteLost(Notice):
    site: str

    @property
    def text(self) -> str:
        return f"site {self.site} has no worker: its clients are not asked until it has one"


@dataclass(frozen=True)
class SiteBack(Notice):
    is_trouble = False
    site: str

    @property
    def text(self) -> str:
        return f"site {self.site} is back"


@dataclass(frozen=True)
class QueueRecreated(Notice):
    queue: str
    consequence: str = ""
    """Such as "its clients are asked again" """

    @property
    def text(self) -> str:
        then = f", and {self.consequence}" if self.consequence else ""
        return f"{self.queue} was deleted: it is declared again{then}"


@dataclass(frozen=True)
class MessageRefused(Notice):
    reason: str
    detail: str

    @property
    def text(self) -> str:
        return f"message refused ({self.reason}): {self.detail}"


@dataclass(frozen=True)
class ManyDeadLetters(Notice):
    count: int
    queue: str

    @property
    def text(self) -> str:
        return f"{self.count} dead letters in {self.queue}: see why, then purge that queue"


@dataclass(frozen=True)
class LedgersUnreadable(Notice):
    error: str

    @property
    def text(self) -> str:
        return f"no digest of the ledgers: {self.error}"


@dataclass(frozen=True)
class AboutRound(Notice):
    number: int

    @property
    def round(self) -> int | None:
        return self.number


@dataclass(frozen=True)
class RoundRemark(AboutRound):
    """What the method says of a round, such as "no update was accepted"."""

    words: str

    @property
    def text(self) -> str:
        return self.words


@dataclass(frozen=True)
class MoreClientsAsked(AboutRound):
    learned: int
    asked: int
    quorum: int
    more: int

    @property
    def text(self) -> str:
        return (
            f"{self.learned} of {self.asked} clients have trained, the quorum is {self.quorum}; "
            f"asking {self.more} more"
        )


@dataclass(frozen=True)
class AnswerDropped(AboutRound):
    """A good answer that is of no use any more: late, duplicate, stale, or from a client without its model."""

    client_number: int
    reason: str

    @property
    def client(self) -> int | None:
        return self.client_number

    @property
    def text(self) -> str:
        return self.reason
