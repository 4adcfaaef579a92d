"""What a check has found, as one line."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from broker_config.protocol.errors import FedILError
from fedil_model.errors import LearningError


@dataclass(frozen=True)
class Finding:
    verdict: Literal["ok", "wrong", "unknown"]
    """unknown: this user cannot see it, or nothing was named to look at"""
    text: str

    @property
    def is_wrong(self) -> bool:
        return self.verdict == "wrong"

    def __str__(self) -> str:
        return f"{self.verdict}: {self.text}"


def findings_of(check: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """Of a check that may end with an error, which then is what it has found"""
    try:
        yield from check()
    except (FedILError, LearningError) as error:
        yield from (Finding("wrong", line) for line in str(error).splitlines())


def wrong_or_ok(where: str, problems: Iterable[str], otherwise: str) -> Iterator[Finding]:
    problems = list(problems)
    yield from (Finding("wrong", f"{where}: {problem}") for problem in problems)
    if not problems:
        yield Finding("ok", f"{where} {otherwise}")
