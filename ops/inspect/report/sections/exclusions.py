"""Excluded updates by reason and by client, and the table of rounds."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from ops.cli.view.rows import Columns, excluded, percent
from ops.cli.view.rows import exclusions as excluded_in
from ops.inspect.report.reading import Run, num_rounds
from ops.inspect.report.rendering import brief
from server_worker.watch.events import RoundRecord
from server_worker.watch.outcomes import REASONS, all_outcomes

MOST_CLIENTS, MOST_NAMED, MOST_ROUNDS = 15, 6, 500

Row = tuple[str | int, ...]


def exclusions(run: Run) -> dict[str, object]:
    asked = Counter(outcome.client for record in run.records for outcome in record.outcomes)
    out = [(record.round, one) for record in run.records for one in record.outcomes if not one.counts]
    reasons = Counter(one.outcome for _, one in out)
    last = {one.outcome: f"round {number}, {excluded(one)}" for number, one in out}
    by_client: dict[int, Counter[str]] = defaultdict(Counter)
    for _, one in out:
        by_client[one.client][one.outcome] += 1
    some = f" (the first {MOST_CLIENTS} of {len(by_client)})" if len(by_client) > MOST_CLIENTS else ""
    none = "Not known: the history is missing." if run.rounds_lost else "No client has been asked yet."
    if asked:
        none = f"None: all {asked.total():,} updates of {num_rounds(len(run.records))} counted."
    return {
        "none": none,
        "asked": asked.total(),
        "by_reason": list(_by_reason(run, reasons, last, asked.total())),
        "by_client": list(_by_client(by_client, asked)),
        "clients_shown": some,
        "messages": _messages(run),
    }


def _by_reason(run: Run, reasons: "Counter[str]", last: Mapping[str, str], asked: int) -> Iterator[Row]:
    meanings = {outcome.name: outcome.help for outcome in all_outcomes(run.display)}
    for reason, count in reasons.most_common():
        share, meaning = percent(count / asked, 1), meanings.get(reason, "")
        yield _words(reason), f"{count:,}", share, meaning, brief(last[reason], 160)


def _by_client(reasons: "Mapping[int, Counter[str]]", asked: Mapping[int, int]) -> Iterator[Row]:
    worst = sorted(reasons, key=lambda client: (-reasons[client].total(), client))
    for client in worst[:MOST_CLIENTS]:
        why = ", ".join(f"{_words(reason)} {count}" for reason, count in reasons[client].most_common())
        yield client, asked[client], reasons[client].total(), why


def _messages(run: Run) -> list[Row]:
    refused = sum((Counter(record.refused) for record in run.records), Counter[str]())
    return [(reason, f"{count:,}", REASONS.get(reason, "")) for reason, count in refused.most_common(20)]


def _words(reason: str) -> str:
    return reason.replace("_", " ")


def rounds_table(run: Run) -> dict[str, object]:
    shown = run.records[-MOST_ROUNDS:]
    left_out = len(run.records) - len(shown)
    which = "The last" if left_out else "All"
    columns = Columns(run.display, thousands=",").in_order
    return {
        "left_out": f"{left_out:,}" if left_out else "",
        "summary": f"{which} {num_rounds(len(shown))}" if len(shown) > 1 else "1 round",
        "headings": [*(column.title for column in columns), "excluded, and why"],
        "rows": [[*(column.cell(record) for column in columns), _excluded(record)] for record in shown],
    }


def _excluded(record: RoundRecord) -> str:
    out = [brief(text, 100) for text in excluded_in(record.outcomes)]
    more = [f"and {len(out) - MOST_NAMED} more"] if len(out) > MOST_NAMED else []
    return "; ".join(out[:MOST_NAMED] + more)
