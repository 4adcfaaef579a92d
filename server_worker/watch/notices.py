"""Lines that a person should see."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Notice:
    """`str()` gives the whole line; log watchers show round, client and severity beside the text."""

    text: str
    round: int | None = None
    client: int | None = None
    is_trouble: bool = True
    num_refused: int = 0
    """Bad messages that it tells of, …"""
    site: str = ""
    """… and the site that sent them"""

    def __str__(self) -> str:
        if self.round is None:
            return self.text
        about = f"round {self.round}" if self.client is None else f"round {self.round}, client {self.client}"
        return f"{about}: {self.text}"
