"""One file that needs nothing else: style inside, pictures inside, no script at all."""

from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import resources

from broker_config.process.version import software_version
from ops.inspect.report.curves import curves
from ops.inspect.report.drawing import Plot, panel
from ops.inspect.report.evidence import Evidence
from ops.inspect.report.evidence_plots import confusion_plot, per_class_plot, sample_plots, split_plot
from ops.inspect.report.markup import Content, Markup, element, join
from ops.inspect.report.reading import Run
from ops.inspect.report.sections.exclusions import exclusions, rounds_table
from ops.inspect.report.sections.headline import beginning
from ops.inspect.report.sections.quality import quality_section
from ops.inspect.report.sections.samples import samples_section
from ops.inspect.report.sections.setup import (
    digests_section,
    environment_section,
    settings_section,
    split_section,
)

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def run_page(run: Run, evidence: Evidence) -> str:
    content = [
        beginning(run),
        element("section", element("h2", "Curves"), element("div", map(panel, curves(run)), class_="grid")),
        exclusions(run),
        quality_section(run, evidence),
        samples_section(run, evidence),
        split_section(run, evidence),
        settings_section(run),
        element("div", environment_section(run), digests_section(evidence), class_="pair"),
        rounds_table(run),
    ]
    return page(f"{run.recipe.name}: {run.label}", content)


def run_plots(run: Run, evidence: Evidence) -> list[Plot]:
    """The same as in the page, and the galleries, as files."""
    more = [confusion_plot(evidence), per_class_plot(run, evidence), split_plot(run, evidence)]
    return [*curves(run), *more, *sample_plots(evidence)]


def page(title: str, content: Sequence[Content]) -> str:
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element(
            "style", Markup((resources.files("ops.inspect.report") / "page.css").read_text(encoding="utf-8"))
        ),
    )
    written = f"Written by FedIL {software_version()} on {datetime.now(UTC):%Y-%m-%d at %H:%M} UTC."
    body = element("body", element("main", content), element("footer", written))
    return "<!doctype html>\n" + join(element("html", head, body, lang="en"))
