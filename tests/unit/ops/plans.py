"""Sizes of a network of 26 MB under FedIL, for tests."""

from dataclasses import replace

from ops.plan.trial import Sizes

NETWORK = 26_280_000
SIZES = Sizes(
    network=NETWORK,
    model=2 * NETWORK + 500,
    extras=0,
    task=2000,
    update=NETWORK + 600,
    ledger_head=200,
    ledger_arrays=((0, 1), (0, 1), (0, 1 / 8)),
    state=3 * NETWORK,
)


def sizes_of(**fields: int) -> Sizes:
    return replace(SIZES, **fields)  # type: ignore[arg-type]
