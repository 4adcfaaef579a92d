"""The page that compares several runs."""

from collections.abc import Callable, Iterator
from functools import partial

from fedil_model.methods.interface import Model
from ops.cli.view.ending import duration
from ops.cli.view.rows import percent
from ops.inspect.report import comparison as figures
from ops.inspect.report.comparison import Comparison, Group, Spread
from ops.inspect.report.comparison_plots import comparison_plots
from ops.inspect.report.drawing import SERIES, panel
from ops.inspect.report.rendering import render
from ops.inspect.report.sections.setup import written
from ops.inspect.report.verdicts import meaning_of

FEW = 3
Cell = str | int
Column = tuple[str, Callable[[Group], Cell]]


def comparison_page(comparison: Comparison) -> str:
    groups = comparison.groups
    num_runs = sum(len(group.runs) + len(group.repeated) for group in groups)
    recipes = "one recipe" if len(groups) == 1 else f"{len(groups)} recipes"
    shared = comparison.last_common_round()
    columns = _columns(groups[0], shared, several=len(groups) > 1)
    keys = figures.differing_settings([*group.runs, *group.repeated] for group in groups)
    return render(
        "comparison.html",
        title=f"Comparison: {' · '.join(group.name for group in groups)}",
        subtitle=f"{num_runs} runs of {recipes}",
        notes=_notes(comparison),
        results={
            "headings": ["recipe", *(heading for heading, _ in columns)],
            "rows": [[group.label, *(cell(group) for _, cell in columns)] for group in groups],
            "colours": len(SERIES),
        },
        shared_round=shared,
        curves=map(panel, comparison_plots(comparison)),
        settings={
            "headings": ["setting", *(group.label for group in groups)],
            "rows": [[key, *(_values(group, key) for group in groups)] for key in keys],
        },
        runs=list(_runs(comparison)),
    )


def _notes(comparison: Comparison) -> list[str]:
    few = f"Fewer than {FEW} seeds: a spread over so few says little, and a single run has none"
    fewest = min(len(group.runs) for group in comparison.groups)
    return [*comparison.notes, *([few] if fewest < FEW else [])]


def _columns(first: Group, shared: int | None, *, several: bool) -> list[Column]:
    columns: list[Column] = [
        ("n", lambda group: len(group.runs)),
        ("seeds", lambda group: ", ".join(map(str, group.seeds))),
        *(_final(model) for model in first.runs[0].display.models),
    ]
    if shared is not None:
        at_shared = partial(figures.accuracy_at, model="global", number=shared)
        columns.append((f"accuracy at round {shared}, %", lambda group: _percents(at_shared(group), group)))
    if shared is not None and several:
        columns.append((f"against {first.letter}, points", lambda group: _points(group, first, shared)))
    return [
        *columns,
        ("server-only, %", lambda group: _percents(figures.baseline(group), group)),
        ("seconds a round", lambda group: f"{s.mean:.2f}" if (s := figures.seconds_a_round(group)) else "–"),
    ]


def _final(model: Model) -> Column:
    title = "accuracy at the end, %" if model.name == "global" else f"{model.title} at the end, %"
    return title, lambda group: _percents(figures.final_accuracy(group, model.name), group)


def _percents(spread: Spread | None, group: Group) -> str:
    if spread is None:
        return "–"
    fewer = f", n = {spread.n}" if spread.n < len(group.runs) else ""
    if spread.deviation is None:
        return percent(spread.mean) + fewer
    low, high = min(spread.values), max(spread.values)
    return f"{percent(spread.mean)} ± {percent(spread.deviation)} ({percent(low)} to {percent(high)}){fewer}"


def _points(group: Group, first: Group, shared: int) -> str:
    if group is first:
        return ""
    spread = figures.difference(group, first, shared)
    if spread is None:
        return "no seed in common"
    deviation = "" if spread.deviation is None else f" ± {percent(spread.deviation)}"
    return f"{100 * spread.mean:+.2f}{deviation} (n = {spread.n})".replace("-", "−")


def _values(group: Group, key: str) -> str:
    found = dict.fromkeys(
        written(run.settings[key]) if key in run.settings else "–" for run in (*group.runs, *group.repeated)
    )
    return " / ".join(found)


def _runs(comparison: Comparison) -> Iterator[tuple[Cell, ...]]:
    for group in comparison.groups:
        for run in (*group.runs, *group.repeated):
            yield (
                group.letter,
                run.label,
                run.recipe.seed,
                run.state,
                percent(next(reversed(run.accuracy("global").values()), None)),
                duration(sum(record.seconds.get("total", 0.0) for record in run.records)),
                meaning_of(run).headline,
            )
