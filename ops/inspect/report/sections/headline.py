"""What a reader should know first: how good, against what, how far, and what the steps say."""

import statistics
from collections.abc import Iterator

from ops.cli.view.ending import duration
from ops.cli.view.rows import percent
from ops.inspect.report.markup import Content, Markup, element, join, table
from ops.inspect.report.reading import Run
from ops.inspect.report.verdicts import ALWAYS, HOW, figures, meaning_of

LAST_EVALUATIONS = 10


def title(run: Run) -> Markup:
    parts: list[Content] = [element("h1", run.recipe.name)]
    place = run.label if run.run_id in (None, run.label) else f"{run.label} · {run.run_id}"
    parts.append(
        element(
            "p",
            element("span", run.state, class_=f"state {'running' if run.running else ''}".strip()),
            f" · {place} · seed {run.recipe.seed} · profile {run.recipe.profile}",
            class_="subtitle",
        )
    )
    if run.recipe.description:
        parts.append(element("p", run.recipe.description, class_="description"))
    return element("header", parts)


def notes(run: Run) -> Markup:
    found = list(run.notes)
    if run.running:
        found.insert(0, "The run is still going on: this page shows it as it was when it was written")
    if not found:
        return Markup()
    return element("ul", (element("li", f"{note.rstrip('.')}.") for note in found), class_="notes")


def cards(run: Run) -> Markup:
    shown = [
        element(
            "div",
            element("dt", name),
            element("dd", value),
            element("dd", below, class_="below") if below else None,
            class_="card",
        )
        for name, value, below in _cards(run)
    ]
    return element("dl", shown, class_="cards")


def _cards(run: Run) -> Iterator[tuple[str, str, str]]:
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


def verdict(run: Run) -> Markup:
    meaning = meaning_of(run)
    rows = list(figures(run))
    return element(
        "section",
        element("h2", meaning.headline),
        element("p", meaning.text),
        element("p", ALWAYS, class_="fine"),
        element(
            "details",
            element("summary", "What it rests on"),
            table([], rows),
            element("p", HOW, class_="fine"),
        )
        if rows
        else None,
        class_=f"verdict {meaning.mood}",
    )


def beginning(run: Run) -> Markup:
    return join([title(run), notes(run), cards(run), verdict(run)])
