"""Which generations of a client's ledger exist, and which may be written. Decisions only, no I/O."""

from dataclasses import dataclass, replace

from broker_config.protocol.errors import LedgerFenced, LedgerMissing

KEPT_GENERATIONS = 2


@dataclass(frozen=True)
class LedgerRecord:
    """In the methods, `owner` names run and client for error messages."""

    opened: int = 0
    """The latest activation that was opened or committed"""
    first: int = 0
    """The first activation ever committed, 0 if none: tells a lost ledger from one that never existed"""
    kept: tuple[int, ...] = ()
    """The generations that are stored, oldest first"""

    def open(self, activation: int, owner: str) -> "LedgerRecord":
        if activation < self.opened:
            raise LedgerFenced(f"{owner}: activation {activation} is over, {self.opened} is open")
        return replace(self, opened=activation)

    def commit(self, activation: int, owner: str) -> "LedgerRecord":
        """The same record if this generation exists."""
        if activation in self.kept:
            return self
        kept = (*self.kept, activation)[-KEPT_GENERATIONS:]
        return replace(self.open(activation, owner), first=self.first or activation, kept=kept)

    def latest_before(self, activation: int, owner: str) -> int | None:
        """The newest kept generation earlier than `activation`; None if none that early was ever committed."""
        earlier = [generation for generation in self.kept if generation < activation]
        if self.kept and not earlier and 0 < self.first < activation:
            raise LedgerMissing(
                f"{owner}: the ledger before activation {activation} was replaced by those of {self.kept}: "
                "drop this task, a later one is under way"
            )
        return max(earlier, default=None)
