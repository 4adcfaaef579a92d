"""Who did not count, and why; and the rounds, one row each."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from ops.cli.view.rows import excluded, number, percent
from ops.inspect.report.markup import Content, Markup, brief, element, join, table
from ops.inspect.report.reading import Run, num_rounds
from server_worker.watch.events import RoundRecord

MEANINGS = {
    "rejected_cosine": "the update points away from the server’s own step (cosine below 0)",
    "invalid": "the update is not finite, absurdly large, or does not fit the model",
    "refused": "the worker declined the task and said why",
    "missing": "no answer before the round closed",
    "stale": "it started from a model that is too old",
}
REFUSALS = {
    "late": "the round had closed",
    "duplicate": "it had been counted already",
    "model_missing": "the client found no model in the log, and was asked again",
    "digest": "its bytes are not what their digest says",
}
MOST_CLIENTS, MOST_NAMED, MOST_ROUNDS = 15, 6, 500


def exclusions(run: Run) -> Markup:
    asked = sum(len(record.outcomes) for record in run.records)
    reasons = Counter(o.outcome for record in run.records for o in record.outcomes if not o.counts)
    parts: list[Content] = [element("h2", "Who was excluded, and why")]
    if not asked:
        said = "Not known: the history is missing." if run.rounds_lost else "Nobody has been asked yet."
        parts.append(element("p", said, class_="absent"))
    elif not reasons:
        parts.append(
            element("p", f"Nobody: all {asked:,} updates of {num_rounds(len(run.records))} counted.")
        )
    else:
        parts += [_by_reason(run, reasons, asked), _by_client(run)]
    parts.append(_refused_messages(run))
    return element("section", parts)


def _by_reason(run: Run, reasons: "Counter[str]", asked: int) -> Markup:
    last: dict[str, str] = {}
    for record in run.records:
        for outcome in record.outcomes:
            if not outcome.counts:
                last[outcome.outcome] = f"round {record.round}, {excluded(outcome)}"
    rows = [
        (
            reason.replace("_", " "),
            f"{count:,}",
            percent(count / asked, 1),
            MEANINGS.get(reason, ""),
            brief(last[reason], 160),
        )
        for reason, count in reasons.most_common()
    ]
    headings = ["reason", "updates", "% of all", "what it means", "the last one"]
    return table(headings, rows, numbers=(1, 2))


def _by_client(run: Run) -> Markup:
    asked: Counter[int] = Counter()
    reasons: dict[int, Counter[str]] = defaultdict(Counter)
    for record in run.records:
        for outcome in record.outcomes:
            asked[outcome.client] += 1
            if not outcome.counts:
                reasons[outcome.client][outcome.outcome] += 1
    worst = sorted(reasons, key=lambda client: (-reasons[client].total(), client))
    rows = [
        (
            client,
            asked[client],
            reasons[client].total(),
            ", ".join(
                f"{reason.replace('_', ' ')} {count}" for reason, count in reasons[client].most_common()
            ),
        )
        for client in worst[:MOST_CLIENTS]
    ]
    more = f" (the first {MOST_CLIENTS} of {len(worst)})" if len(worst) > MOST_CLIENTS else ""
    return join(
        [
            element("h3", f"Clients excluded most often{more}"),
            table(["client", "asked", "excluded", "why"], rows, numbers=(0, 1, 2)),
        ]
    )


def _refused_messages(run: Run) -> Markup:
    refused: Counter[str] = Counter()
    for record in run.records:
        refused.update({reason: int(count) for reason, count in record.refused.items()})
    if not refused:
        return Markup()
    rows = [(reason, f"{count:,}", REFUSALS.get(reason, "")) for reason, count in refused.most_common(20)]
    return join(
        [
            element("h3", "Messages that arrived and did not count"),
            table(["reason", "messages", "what it means"], rows, numbers=(1,)),
        ]
    )


def rounds_table(run: Run) -> Markup:
    if not run.records:
        return Markup()
    shown = run.records[-MOST_ROUNDS:]
    left_out = len(run.records) - len(shown)
    headings = [
        *("round", "θ′ %", "θ₀ %", "‖Δθ‖", "accepted", "pseudo", "promoted", "seconds"),
        "excluded, and why",
    ]
    rows = [_row(record) for record in shown]
    all_of_them = f"All {len(shown)} rounds" if len(shown) > 1 else "1 round"
    return element(
        "section",
        element("h2", "Rounds"),
        element("p", f"The first {left_out:,} are in history.jsonl.", class_="fine") if left_out else None,
        element(
            "details",
            element("summary", f"The last {len(shown)} rounds" if left_out else all_of_them),
            table(headings, rows, numbers=range(8)),
        ),
    )


def _row(record: RoundRecord) -> list[Content]:
    return [
        record.round,
        percent(record.accuracy.get("global")),
        percent(record.accuracy.get("server")),
        number(record.delta_norm),
        f"{record.accepted}/{record.selected}",
        f"{record.pseudo_labels:,}",
        f"{record.promoted:,}",
        f"{record.seconds.get('total', 0.0):.1f}",
        "; ".join(_named(record)),
    ]


def _named(record: RoundRecord) -> Iterator[str]:
    out = [outcome for outcome in record.outcomes if not outcome.counts]
    for outcome in out[:MOST_NAMED]:
        yield brief(excluded(outcome), 100)
    if len(out) > MOST_NAMED:
        yield f"and {len(out) - MOST_NAMED} more"
