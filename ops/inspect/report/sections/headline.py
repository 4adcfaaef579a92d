"""The head of a run's page: notes and the cards with its main figures."""

import statistics
from collections.abc import Iterator

from ops.cli.view.ending import duration
from ops.cli.view.rows import percent
from ops.inspect.report.reading import Run

LAST_EVALUATIONS = 10


def place(run: Run) -> str:
    return run.label if run.run_id in (None, run.label) else f"{run.label} · {run.run_id}"


def notes(run: Run) -> list[str]:
    still_running = "The run is still going on: this page shows it as it was when it was written"
    return [*([still_running] if run.running else []), *run.notes]


def cards(run: Run) -> Iterator[tuple[str, str, str]]:
    """Name, value and a remark below it"""
    evaluated = run.evaluated
    if evaluated:
        last = evaluated[-1]
        mean = statistics.fmean(list(run.accuracy("global").values())[-LAST_EVALUATIONS:])
        counted = min(LAST_EVALUATIONS, len(evaluated))
        below = f"round {last.round}"
        if counted > 1:
            below += f"; mean of the last {counted} evaluations {percent(mean)} %"
        yield "accuracy of θ′", _percent(last.accuracy["global"]), below
        if "server" in last.accuracy:
            yield "accuracy of θ₀", _percent(last.accuracy["server"]), "after the server’s own step"
        if "ema" in last.accuracy:
            yield "moving average of θ′", _percent(last.accuracy["ema"]), ""
    else:
        yield "accuracy of θ′", "–", "not known" if run.rounds_lost else "not evaluated"
    if run.baseline is not None:
        below = "the same network on the same labels"
        if evaluated:
            below += f"; θ′ {points(evaluated[-1].accuracy['global'] - run.baseline)}"
        yield "server-only baseline", _percent(run.baseline), below
    done = run.rounds_done or run.rounds_lost
    yield "rounds", f"{done:,} of {run.recipe.rounds:,}", _updates(run)
    seconds = [record.seconds.get("total", 0.0) for record in run.records]
    if seconds:
        yield "time in rounds", duration(sum(seconds)), f"{statistics.median(seconds):.2f} s a round (median)"
    yield from _label_cards(run)


def points(difference: float) -> str:
    return f"{100 * difference:+.2f} points".replace("-", "−")


def _percent(share: float) -> str:
    return f"{percent(share)} %"


def _updates(run: Run) -> str:
    asked = sum(record.selected for record in run.records)
    accepted = sum(record.accepted for record in run.records)
    return f"{accepted:,} of {asked:,} updates counted" if asked else ""


def _label_cards(run: Run) -> Iterator[tuple[str, str, str]]:
    if run.split is not None:
        unlabelled = sum(map(len, run.split.clients))
        below = (
            f"and {unlabelled:,} samples without at {len(run.split.clients)} clients" if unlabelled else ""
        )
        yield "labels at the server", f"{len(run.split.labelled):,}", below
    if not run.records:
        return
    last = run.records[-1]
    yield "pseudo-labels", f"{last.pseudo_labels:,}", f"{last.credible:,} of them promoted (credible)"
    pure = last.purity.get("pseudo_labels")
    if pure is not None:
        credible = last.purity.get("credible")
        below = f"of the promoted {_percent(credible)}" if credible is not None else "none promoted yet"
        yield "right pseudo-labels", _percent(pure), below
    else:
        yield "right pseudo-labels", "–", "the truth is not known, as in a real deployment"
