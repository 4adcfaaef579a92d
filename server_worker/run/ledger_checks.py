"""Whether the store still has what a run's clients committed."""

from contextlib import suppress

from broker_config.protocol.errors import FedILError, LedgerMissing
from broker_config.stores.interface import Store

_EVER = 2**62
"""An activation that no client reaches"""


def check_ledgers(store: Store, run: str, answered: tuple[int, ...]) -> None:
    """Raises an error if the store has lost the run, or the ledgers of all clients that have answered, or is ahead of
    the checkpoint. One client's ledger may be its own site's fault; all of them are the store's. `answered`: the last
    activation that each client has answered."""
    # First: clients that trained while the store was emptied have committed ledgers since.
    store.check_begun(run)
    lost: LedgerMissing | None = None
    for client, activation in enumerate(answered):
        if activation:
            try:
                store.read(run, client, activation + 1, at_least=activation)
            except LedgerMissing as error:
                lost = lost or error
            else:
                return
    if lost is not None and any(_only_later(store, run, *each) for each in enumerate(answered)):
        raise FedILError(
            f"the ledgers of run {run} are ahead of its newest checkpoint: restore the run's folder and the store "
            "together, or start a new run"
        ) from lost
    if lost is not None:
        raise lost


def _only_later(store: Store, run: str, client: int, activation: int) -> bool:
    """The store dropped this generation for later ones, which it has. A store that was restored from an older copy may
    hold a later one too, from a task that was under way, but it dropped nothing for it."""
    try:
        store.read(run, client, activation + 1)
    except LedgerMissing:
        with suppress(LedgerMissing):
            return store.read(run, client, _EVER, at_least=activation + 1) is not None
    return False
