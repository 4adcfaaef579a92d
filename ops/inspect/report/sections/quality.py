"""How θ′ does on the test set, class by class."""

from ops.cli.view.rows import percent
from ops.inspect.quality import CONFUSIONS_LISTED, Quality
from ops.inspect.report.drawing import panel
from ops.inspect.report.evidence import Evidence
from ops.inspect.report.evidence_plots import confusion_plot, per_class_plot
from ops.inspect.report.markup import Markup, element, join, table
from ops.inspect.report.reading import Run


def quality_section(run: Run, evidence: Evidence) -> Markup:
    quality = evidence.quality
    return element(
        "section",
        element("h2", "Test set"),
        _sentence(quality, evidence.quality_round) if isinstance(quality, Quality) else None,
        element("div", panel(confusion_plot(evidence)), panel(per_class_plot(run, evidence)), class_="grid"),
        _tables(quality) if isinstance(quality, Quality) else None,
    )


def _sentence(quality: Quality, round_number: int) -> Markup:
    return element(
        "p",
        f"θ′ of round {round_number} is right on {percent(quality.accuracy)} % of {quality.samples:,} test samples.",
    )


def _tables(quality: Quality) -> Markup:
    classes = [
        (name, percent(share, 1), f"{sum(row):,}")
        for name, share, row in zip(quality.class_names, quality.per_class, quality.confusion, strict=True)
    ]
    mistakes = sorted(
        (
            (count, quality.class_names[true], quality.class_names[said])
            for true, row in enumerate(quality.confusion)
            for said, count in enumerate(row)
            if count and true != said
        ),
        key=lambda mistake: -mistake[0],
    )[:CONFUSIONS_LISTED]
    return element(
        "div",
        element(
            "details",
            element("summary", "Accuracy of each class"),
            table(["class", "right %", "test samples"], classes, numbers=(1, 2)),
        ),
        element(
            "details",
            element("summary", "Most frequent mistakes"),
            table(["count", "is", "taken for"], mistakes, numbers=(0,)),
        )
        if mistakes
        else join("No mistakes."),
        class_="pair",
    )
