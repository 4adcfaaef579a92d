"""Accuracy and mistakes of the global model on the test set, by class."""

from ops.cli.view.rows import percent
from ops.inspect.quality import Quality
from ops.inspect.report.evidence import Evidence


def quality(evidence: Evidence) -> dict[str, object] | None:
    found = evidence.quality
    if not isinstance(found, Quality):
        return None
    return {
        "round": evidence.quality_round,
        "accuracy": percent(found.accuracy),
        "samples": f"{found.samples:,}",
        "classes": [
            (name, percent(share, 1), f"{sum(row):,}")
            for name, share, row in zip(found.class_names, found.per_class, found.confusion, strict=True)
        ],
        "mistakes": found.mistakes(),
    }
