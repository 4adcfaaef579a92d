"""Messages by site that are refused or of no use: the first of each minute are told one by one, and those that are
refused are kept as dead letters; the others are only counted."""

from collections.abc import Callable
from dataclasses import dataclass

from server_worker.watch.notices import Notice

KEPT_PER_MINUTE = 50
"""Of one site. A dead letter costs a confirmed publish, and their queue is bounded: a flood would evict the others."""
_MINUTE = 60.0


@dataclass
class _Minute:
    began: float
    refused: int = 0
    not_told: int = 0
    """Refusals that were not kept, and are in no notice yet"""


BAD = (
    "site {site} sends more than {most} bad messages a minute: {more} more refused and not kept as dead letters. What "
    "others send is read first; stop its workers, or remove its user from the broker"
)
LATE = "site {site} sends more than {most} answers a minute that come late or again: {more} more were dropped"


class RefusalSampler:
    def __init__(self, clock: Callable[[], float], note: Callable[[Notice], None], words: str = BAD) -> None:
        self._clock, self._note, self._words = clock, note, words
        self._minutes: dict[str, _Minute] = {}

    def keeps(self, site: str) -> bool:
        """Counts one refusal. A site over its rate is named at once, and then once a minute."""
        now = self._clock()
        minute = self._minutes.setdefault(site, _Minute(now))
        if now - minute.began >= _MINUTE:
            self._tell(site, minute)
            minute.began, minute.refused = now, 0
        minute.refused += 1
        if minute.refused <= KEPT_PER_MINUTE:
            return True
        minute.not_told += 1
        if minute.refused == KEPT_PER_MINUTE + 1:
            self._tell(site, minute)
        return False

    def is_over_rate(self, site: str) -> bool:
        minute = self._minutes.get(site)
        if minute is None or minute.refused <= KEPT_PER_MINUTE:
            return False
        return self._clock() - minute.began < _MINUTE

    def tell_rest(self) -> None:
        for site, minute in self._minutes.items():
            self._tell(site, minute)

    def _tell(self, site: str, minute: _Minute) -> None:
        if minute.not_told:
            words = self._words.format(site=site, most=KEPT_PER_MINUTE, more=minute.not_told)
            refused = minute.not_told if self._words is BAD else 0
            self._note(Notice(words, num_refused=refused, site=site))
            minute.not_told = 0
