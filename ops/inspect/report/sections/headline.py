"""The head of a run's page: notes and the cards with its main figures."""

import statistics
from collections.abc import Iterator

from fedil_model.methods.interface import Series
from ops.cli.view.rows import percent
from ops.inspect.report.reading import Run
from server_worker.watch.words import duration

LAST_EVALUATIONS = 10


def cards(run: Run) -> Iterator[tuple[str, str, str]]:
    """Name, value and a remark below it"""
    shares = run.accuracy("global")
    if shares:
        last, latest = max(shares), list(shares.values())[-LAST_EVALUATIONS:]
        below = f"round {last}"
        if len(latest) > 1:
            below += f"; mean of the last {len(latest)} evaluations {percent(statistics.fmean(latest))} %"
        for model in run.display.models:
            if (share := run.accuracy(model.name).get(last)) is not None:
                yield (
                    f"accuracy of the {model.label}",
                    _percent(share),
                    below if model.name == "global" else model.help,
                )
    else:
        yield "accuracy", "–", "not known" if run.rounds_lost else "not evaluated"
    if run.baseline is not None:
        below = "the same network on the same labels"
        if shares:
            gain = f"{100 * (shares[max(shares)] - run.baseline):+.2f}".replace("-", "−")
            below += f"; {run.display.models[0].title} {gain} points"
        yield "server-only baseline", _percent(run.baseline), below
    done = run.rounds_done or run.rounds_lost
    asked, accepted = (
        sum(getattr(record, key) for record in run.records) for key in ("selected", "accepted")
    )
    updates = f"{accepted:,} of {asked:,} updates counted" if asked else ""
    yield "rounds", f"{done:,} of {run.recipe.rounds:,}", updates
    seconds = [record.seconds.get("total", 0.0) for record in run.records]
    if seconds:
        yield "time in rounds", duration(sum(seconds)), f"{statistics.median(seconds):.2f} s a round (median)"
    yield from _label_cards(run)


def _percent(share: float) -> str:
    return f"{percent(share)} %"


def _label_cards(run: Run) -> Iterator[tuple[str, str, str]]:
    if run.split is not None:
        labelled, unlabelled = len(run.split.labelled), sum(map(len, run.split.clients))
        below = (
            f"and {unlabelled:,} samples without at {len(run.split.clients)} clients" if unlabelled else ""
        )
        if run.recipe.spec.labels == "all":
            labelled, below = labelled + unlabelled, "of all training samples"
        yield "labels at the server", f"{labelled:,}", below
    for chart in run.display.charts if run.records else ():
        for series in chart.series:
            if series.source in ("client_total", "label_set"):
                name = series.title if series.source == "client_total" else f"{chart.title}: {series.title}"
                yield name, *_series_card(series, run.records[-1].series.get(series.name))


def _series_card(series: Series, value: float | None) -> tuple[str, str]:
    if value is None:
        return "–", "the truth is not known" if series.source == "label_set" else "not known"
    return _percent(value) if series.unit == "share" else f"{value:,.0f}", series.help
