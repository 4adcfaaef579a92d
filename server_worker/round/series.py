"""The numbers of a round that a method declares, from what the server and the clients report."""

from collections.abc import Mapping, Sequence

from fedil_model.methods.interface import INVALID, Display
from server_worker.watch.events import ClientOutcome

Totals = Mapping[str, tuple[float, ...]]
"""Series of source client_total → what each client of the run reported last"""


def no_totals(display: Display, clients: int) -> Totals:
    return {series.name: (0.0,) * clients for series in display.series() if series.source == "client_total"}


def add_to_totals(before: Totals, outcomes: Sequence[ClientOutcome]) -> Totals:
    """With what this round's clients report; an invalid update tells nothing."""
    after = {name: list(values) for name, values in before.items()}
    for outcome in outcomes:
        if outcome.outcome != INVALID:
            for name in after.keys() & outcome.metrics.keys():
                after[name][outcome.client] = outcome.metrics[name]
    return {name: tuple(values) for name, values in after.items()}


def round_series(
    display: Display,
    server: Mapping[str, float],
    outcomes: Sequence[ClientOutcome],
    before: Totals,
    after: Totals,
) -> dict[str, float | None]:
    """All declared series but those that need the truth about labels, which are None until it is looked up."""
    found: dict[str, float | None] = {}
    for series in display.series():
        match series.source:
            case "server":
                found[series.name] = server.get(series.name)
            case "client_mean":
                found[series.name] = mean_of_most(series.name, outcomes)
            case "client_total":
                found[series.name] = sum(after[series.name])
            case "client_gain":
                pairs = zip(before[series.of], after[series.of], strict=True)
                found[series.name] = sum(max(0.0, now - then) for then, now in pairs)
            case "label_set":
                found[series.name] = None
    return found


def mean_of_most(name: str, outcomes: Sequence[ClientOutcome]) -> float | None:
    """Mean over the clients that report it, if these are more than half of those that report anything: a client may
    report whatever it likes."""
    values = [outcome.metrics[name] for outcome in outcomes if name in outcome.metrics]
    reporting = sum(1 for outcome in outcomes if outcome.metrics)
    if 2 * len(values) <= reporting:
        return None
    # Divided first: a sum of what clients claim may overflow.
    return sum(value / len(values) for value in values)
