"""The page that compares several runs."""

from collections.abc import Callable

from ops.cli.view.ending import duration
from ops.cli.view.rows import percent
from ops.inspect.report.comparison import (
    Comparison,
    Group,
    Spread,
    accuracy_at,
    baseline,
    difference,
    differing_settings,
    final_accuracy,
    seconds_a_round,
)
from ops.inspect.report.comparison_plots import comparison_plots
from ops.inspect.report.drawing import SERIES, panel
from ops.inspect.report.markup import Content, Markup, element, join, table
from ops.inspect.report.page import page
from ops.inspect.report.sections.setup import written
from ops.inspect.report.verdicts import meaning_of

FEW = 3
Column = tuple[str, Callable[[Group], Content]]


def comparison_page(comparison: Comparison) -> str:
    groups = comparison.groups
    runs = sum(len(group.runs) + len(group.repeated) for group in groups)
    recipes = "one recipe" if len(groups) == 1 else f"{len(groups)} recipes"
    content: list[Content] = [
        element(
            "header",
            element("h1", "Comparison of runs"),
            element("p", f"{runs} runs of {recipes}", class_="subtitle"),
        ),
        _notes(comparison),
        _results(comparison),
        _curves(comparison),
        _settings(comparison),
        _runs(comparison),
    ]
    return page(f"Comparison: {' · '.join(group.name for group in groups)}", content)


def _notes(comparison: Comparison) -> Markup:
    notes = list(comparison.notes)
    if min(len(group.runs) for group in comparison.groups) < FEW:
        notes.append(f"Fewer than {FEW} seeds: a spread over so few says little, and a single run has none")
    if not notes:
        return Markup()
    return element("ul", (element("li", f"{note.rstrip('.')}.") for note in notes), class_="notes")


def _results(comparison: Comparison) -> Markup:
    shared = comparison.last_common_round()
    columns = _columns(comparison.groups[0], shared, several=len(comparison.groups) > 1)
    rows = [
        [join([swatch(place), group.label]), *(cell(group) for _, cell in columns)]
        for place, group in enumerate(comparison.groups)
    ]
    text = (
        "Mean ± standard deviation over the seeds (of a sample, n − 1), in brackets from the lowest to the highest. "
        "At the end: the last evaluation of each run."
    )
    if shared is not None:
        text += f" Round {shared} is the last that all runs have evaluated; differences are taken there, seed by seed."
    return element(
        "section",
        element("h2", "Accuracy"),
        table(["recipe", *(heading for heading, _ in columns)], rows, numbers=(1,)),
        element("p", text, class_="fine"),
    )


def swatch(place: int) -> Markup:
    return element("span", class_=f"swatch series-{place % len(SERIES)}")


def _columns(first: Group, shared: int | None, *, several: bool) -> list[Column]:
    columns: list[Column] = [
        ("n", lambda group: len(group.runs)),
        ("seeds", lambda group: ", ".join(map(str, group.seeds))),
        ("θ′ at the end, %", lambda group: _percents(final_accuracy(group, "global"), len(group.runs))),
        ("θ₀ at the end, %", lambda group: _percents(final_accuracy(group, "server"), len(group.runs))),
    ]
    if shared is not None:
        columns.append(
            (
                f"θ′ at round {shared}, %",
                lambda group: _percents(accuracy_at(group, "global", shared), len(group.runs)),
            )
        )
        if several:
            columns.append(
                (f"against {first.letter}, points", lambda group: _points(group, first, shared)),
            )
    return [
        *columns,
        ("server-only, %", lambda group: _percents(baseline(group), len(group.runs))),
        ("seconds a round", lambda group: _seconds(seconds_a_round(group))),
    ]


def _percents(spread: Spread | None, runs: int) -> str:
    if spread is None:
        return "–"
    fewer = f", n = {spread.n}" if spread.n < runs else ""
    if spread.deviation is None:
        return percent(spread.mean) + fewer
    low, high = min(spread.values), max(spread.values)
    return f"{percent(spread.mean)} ± {percent(spread.deviation)} ({percent(low)} to {percent(high)}){fewer}"


def _points(group: Group, first: Group, shared: int) -> str:
    if group is first:
        return ""
    spread = difference(group, first, shared)
    if spread is None:
        return "no seed in common"
    deviation = "" if spread.deviation is None else f" ± {percent(spread.deviation)}"
    return f"{100 * spread.mean:+.2f}{deviation} (n = {spread.n})".replace("-", "−")


def _seconds(spread: Spread | None) -> str:
    return "–" if spread is None else f"{spread.mean:.2f}"


def _curves(comparison: Comparison) -> Markup:
    text = (
        "Lines are means over seeds, at the rounds that all runs of a recipe have measured; bands go from the lowest "
        "run to the highest; thin lines are single runs."
    )
    panels = [panel(plot) for plot in comparison_plots(comparison)]
    return element(
        "section",
        element("h2", "Curves"),
        element("p", text, class_="fine"),
        element("div", panels, class_="grid"),
    )


def _settings(comparison: Comparison) -> Markup:
    groups = comparison.groups
    keys = differing_settings([*group.runs, *group.repeated] for group in groups)
    heading = element("h2", "Settings that differ")
    if not keys:
        return element("section", heading, element("p", "None but the seed."))
    rows = [[element("code", key), *(_values(group, key) for group in groups)] for key in keys]
    return element("section", heading, table(["setting", *(group.label for group in groups)], rows))


def _values(group: Group, key: str) -> str:
    found = dict.fromkeys(
        written(run.settings[key]) if key in run.settings else "–" for run in (*group.runs, *group.repeated)
    )
    return " / ".join(found)


def _runs(comparison: Comparison) -> Markup:
    rows: list[list[Content]] = [
        [
            group.letter,
            run.label,
            run.recipe.seed,
            run.state,
            _last(list(run.accuracy("global").values())),
            _last(list(run.accuracy("server").values())),
            duration(sum(record.seconds.get("total", 0.0) for record in run.records)),
            meaning_of(run).headline,
        ]
        for group in comparison.groups
        for run in (*group.runs, *group.repeated)
    ]
    headings = ["recipe", "run", "seed", "state", "θ′ %", "θ₀ %", "time in rounds", "what ‖Δθ‖ says"]
    text = "Each run by itself, with its confusion matrix, pseudo-labels and settings: fedil report RUN."
    return element(
        "section",
        element("h2", "Runs"),
        table(headings, rows, numbers=(2, 4, 5)),
        element("p", join(text), class_="fine"),
    )


def _last(values: list[float]) -> str:
    return percent(values[-1] if values else None)
