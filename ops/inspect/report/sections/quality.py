"""Accuracy and mistakes of the global model on the test set, by class."""

from ops.cli.view.rows import percent
from ops.inspect.quality import CONFUSIONS_LISTED, Quality
from ops.inspect.report.evidence import Evidence


def quality(evidence: Evidence) -> dict[str, object] | None:
    found = evidence.quality
    if not isinstance(found, Quality):
        return None
    names = found.class_names
    mistakes = [
        (count, names[true], names[predicted])
        for true, row in enumerate(found.confusion)
        for predicted, count in enumerate(row)
        if count and true != predicted
    ]
    return {
        "round": evidence.quality_round,
        "accuracy": percent(found.accuracy),
        "samples": f"{found.samples:,}",
        "classes": [
            (name, percent(share, 1), f"{sum(row):,}")
            for name, share, row in zip(names, found.per_class, found.confusion, strict=True)
        ],
        "mistakes": sorted(mistakes, key=lambda mistake: -mistake[0])[:CONFUSIONS_LISTED],
    }
