"""The page that compares several runs."""

import statistics
from collections.abc import Callable, Collection, Iterator, Sequence

from fedil_model.methods.interface import Model
from ops.cli.view.rows import percent
from ops.inspect.report.comparison import Comparison, Group, compare, differing_settings
from ops.inspect.report.comparison_plots import comparison_plots
from ops.inspect.report.drawing import SERIES, Plot, panel
from ops.inspect.report.reading import Run
from ops.inspect.report.rendering import render
from ops.inspect.report.sections.setup import written
from ops.inspect.report.verdicts import trend_of
from server_worker.watch.words import duration

FEW = 3
Cell = str | int
Column = tuple[str, Callable[[Group], Cell]]


def comparison_report(runs: Sequence[Run], variants: Sequence[str] | None = None) -> tuple[str, list[Plot]]:
    """The page and its plots. `variants` as for `compare`"""
    comparison = compare(runs, variants)
    return comparison_page(comparison), comparison_plots(comparison)


def comparison_page(comparison: Comparison) -> str:
    groups = comparison.groups
    num_runs = sum(len(group.all_runs) for group in groups)
    recipes = "one recipe" if len(groups) == 1 else f"{len(groups)} recipes"
    shared = comparison.last_common_round()
    columns = _columns(groups[0], shared, several=len(groups) > 1)
    few = f"Fewer than {FEW} seeds: a spread over so few says little, and a single run has none"
    fewest = min(len(group.runs) for group in groups)
    keys = differing_settings(group.all_runs for group in groups)
    return render(
        "comparison.html",
        title=f"Comparison: {' · '.join(group.name for group in groups)}",
        subtitle=f"{num_runs} runs of {recipes}",
        notes=[*comparison.notes, *([few] if fewest < FEW else [])],
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


def _columns(first: Group, shared: int | None, *, several: bool) -> list[Column]:
    columns: list[Column] = [
        ("n", lambda group: len(group.runs)),
        ("seeds", lambda group: ", ".join(str(run.recipe.seed) for run in group.runs)),
        *(_final(model) for model in first.runs[0].display.models),
    ]
    if shared is not None:
        at_shared = f"accuracy at round {shared}, %"
        columns.append((at_shared, lambda group: _percents(group.accuracy_at(shared).values(), group)))
        if several:
            columns.append((f"against {first.letter}, points", lambda group: _points(group, first, shared)))
    return [*columns, ("server-only, %", _baseline), ("seconds a round", _seconds_a_round)]


def _final(model: Model) -> Column:
    title = "accuracy at the end, %" if model.name == "global" else f"{model.label} at the end, %"
    return title, lambda group: _percents(group.final_accuracy(model.name), group)


def _baseline(group: Group) -> str:
    return _percents([run.baseline for run in group.runs if run.baseline is not None], group)


def _seconds_a_round(group: Group) -> str:
    known = [[record.seconds.get("total", 0.0) for record in run.records] for run in group.runs]
    medians = [statistics.median(seconds) for seconds in known if seconds]
    return f"{statistics.fmean(medians):.2f}" if medians else "–"


def _percents(found: Collection[float], group: Group) -> str:
    if not found:
        return "–"
    fewer = f", n = {len(found)}" if len(found) < len(group.runs) else ""
    spread = f" ({percent(min(found))} to {percent(max(found))})" if len(found) > 1 else ""
    return f"{percent(statistics.fmean(found))}{_deviation(found)}{spread}{fewer}"


def _deviation(found: Collection[float]) -> str:
    """Of a sample (n − 1); none of a single value"""
    return f" ± {percent(statistics.stdev(found))}" if len(found) > 1 else ""


def _points(group: Group, first: Group, shared: int) -> str:
    if group is first:
        return ""
    found = group.lead_over(first, shared)
    if not found:
        return "no seed in common"
    mean = f"{100 * statistics.fmean(found):+.2f}".replace("-", "−")
    return f"{mean}{_deviation(found)} (n = {len(found)})"


def _values(group: Group, key: str) -> str:
    found = (written(run.settings[key]) if key in run.settings else "–" for run in group.all_runs)
    return " / ".join(dict.fromkeys(found))


def _runs(comparison: Comparison) -> Iterator[tuple[Cell, ...]]:
    for group in comparison.groups:
        for run in group.all_runs:
            yield (
                group.letter,
                run.label,
                run.recipe.seed,
                run.state,
                percent(next(reversed(run.accuracy("global").values()), None)),
                duration(sum(record.seconds.get("total", 0.0) for record in run.records)),
                trend_of(run).headline,
            )
