"""The page of one run: a single file with style and pictures inside and no script."""

from ops.inspect.report.curves import curves
from ops.inspect.report.drawing import Plot, panel
from ops.inspect.report.evidence import Evidence
from ops.inspect.report.evidence_plots import quality_plots, sample_plots, split_plot
from ops.inspect.report.reading import Run
from ops.inspect.report.rendering import render
from ops.inspect.report.sections.evidence import quality, samples, split
from ops.inspect.report.sections.exclusions import exclusions, rounds_table
from ops.inspect.report.sections.headline import cards
from ops.inspect.report.sections.setup import environment_table, settings
from ops.inspect.report.verdicts import figures, trend_of


def run_page(run: Run, evidence: Evidence) -> str:
    still_running = "The run is still going on: this page shows it as it was when it was written"
    return render(
        "run.html",
        title=f"{run.recipe.name}: {run.label}",
        run=run,
        place=run.label if run.run_id in (None, run.label) else f"{run.label} · {run.run_id}",
        notes=[*([still_running] if run.running else []), *run.notes],
        cards=cards(run),
        trend=trend_of(run),
        figures=list(figures(run)),
        curves=map(panel, curves(run)),
        exclusions=exclusions(run),
        quality=quality(evidence),
        quality_plots=map(panel, quality_plots(run, evidence)),
        samples=samples(evidence),
        split=split(run, evidence),
        settings=settings(run),
        environment=list(map(environment_table, run.environment)),
        digests=evidence.digests,
        rounds=rounds_table(run),
    )


def run_plots(run: Run, evidence: Evidence) -> list[Plot]:
    """The plots of the page, and the galleries, as files."""
    return [*curves(run), *quality_plots(run, evidence), split_plot(run, evidence), *sample_plots(evidence)]
