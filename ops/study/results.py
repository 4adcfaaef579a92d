"""What a study found: accuracy of the model that ships, as the mean of a run's last evaluations, and what it took;
and the files that it ends in: results.json, table.csv, table.tex, report.html and plots.

Never the best evaluation: choosing it on the test set would flatter every method, and unequally.
"""

import csv
import io
import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from broker_config.process.durable import write_atomically
from broker_config.process.version import software_version
from broker_config.protocol.errors import FedILError
from ops.inspect.report.reading import Run, read_run
from ops.study.cells import budget_differences
from ops.study.runner import Progress, Study

LAST = 5
"""Evaluations that a run's figure is the mean of"""


def write_files(
    study: Study, progress: Sequence[Progress], command: str
) -> tuple[dict[str, Any], list[Path]]:
    begun = [one.cell for one in progress if one.round]
    runs = {cell.name: read_run(study.file_of(cell).run_dir, cell.recipe.plugins) for cell in begun}
    results = {"command": command, "version": software_version(), **gather(study, progress, runs)}
    texts = {
        "results.json": json.dumps(results, indent=1) + "\n",
        "table.csv": to_csv(results),
        "table.tex": to_latex(results),
    }
    for name, text in texts.items():
        write_atomically(study.folder / name, [text.encode()])
    written = [study.folder / name for name in texts]
    if len(runs) > 1:
        written += _write_report(study.folder, list(runs.values()), [cell.variant for cell in begun])
    return results, written


def _write_report(folder: Path, runs: Sequence[Run], variants: Sequence[str]) -> Iterator[Path]:
    from ops.inspect.report import check_installed

    try:
        check_installed()
    except FedILError as error:
        print(f"fedil: no report: {error}", file=sys.stderr)
        return
    from ops.inspect.report.comparison_page import comparison_report
    from ops.inspect.report.drawing import write_plots

    page, plots = comparison_report(runs, variants)
    write_atomically(folder / "report.html", [page.encode("utf-8", "replace")])
    yield folder / "report.html"
    written, _ = write_plots(plots[:2], folder / "plots", "png")
    yield from written


def gather(study: Study, progress: Sequence[Progress], runs: Mapping[str, Run]) -> dict[str, Any]:
    """`runs`: those that have begun, by the name of the cell"""
    cells = [_cell(one, runs.get(one.cell.name)) for one in progress]
    variants = list(dict.fromkeys(one.cell.variant for one in progress))
    return {
        "recipe": study.cells[0].recipe.name,
        "data": study.cells[0].recipe.data.name,
        "last_evaluations": LAST,
        "cpu_seconds_budget": study.cpu_seconds,
        "split_digests": _split_digests(cells),
        "budget_differences": [] if study.cpu_seconds else budget_differences(study.cells),
        "table": [_row(name, [cell for cell in cells if cell["variant"] == name]) for name in variants],
        "cells": cells,
        "machine": next((run.environment[-1] for run in runs.values() if run.environment), {}),
    }


def _cell(progress: Progress, run: Run | None) -> dict[str, Any]:
    cell = progress.cell
    fields = {"variant": cell.variant, "seed": cell.seed, "state": progress.state, "reason": progress.reason}
    if run is None:
        return fields
    models = [model.name for model in run.display.models if run.accuracy(model.name)]
    return fields | {
        "rounds": run.rounds_done,
        "accuracy": {name: _last_mean(run.accuracy(name)) for name in models},
        "cpu_seconds": round(sum(record.cpu_seconds for record in run.records), 1),
        "seconds": round(sum(record.seconds.get("total", 0.0) for record in run.records), 1),
        "bytes_sent": sum(record.bytes_sent for record in run.records),
        "bytes_received": sum(record.bytes_received for record in run.records),
        "split_digest": run.split.digest if run.split else None,
        "curve": _curve(run),
    }


def _last_mean(by_round: Mapping[int, float]) -> float:
    return round(statistics.fmean(list(by_round.values())[-LAST:]), 6)


def _curve(run: Run) -> list[list[float]]:
    """Round, CPU seconds so far, accuracy of the model that ships"""
    points, spent = [], 0.0
    for record in run.records:
        spent += record.cpu_seconds
        if record.accuracy:
            points.append([record.round, round(spent, 1), round(record.accuracy["global"], 6)])
    return points


def _row(variant: str, cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    done = [cell for cell in cells if cell["state"] == "done"]
    found = [100.0 * cell["accuracy"]["global"] for cell in done]

    def mean(key: str, unit: float = 1.0) -> float | None:
        return round(statistics.fmean(cell[key] for cell in done) / unit, 2) if done else None

    return {
        "variant": variant,
        "accuracy": round(statistics.fmean(found), 2) if found else None,
        "deviation": round(statistics.stdev(found), 2) if len(found) > 1 else None,
        "seeds": len(done),
        "failed": sum(cell["state"] == "failed" for cell in cells),
        "rounds": mean("rounds"),
        "cpu_seconds": mean("cpu_seconds"),
        "seconds": mean("seconds"),
        "megabytes_sent": mean("bytes_sent", 1e6),
        "megabytes_received": mean("bytes_received", 1e6),
    }


def _split_digests(cells: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """By seed. Variants of one seed must have the same."""
    found: dict[str, str] = {}
    for cell in cells:
        digest = cell.get("split_digest")
        if digest and found.setdefault(str(cell["seed"]), digest) != digest:
            found[str(cell["seed"])] = "differs between variants"
    return found


def accuracy_words(row: Mapping[str, Any]) -> str:
    if row["accuracy"] is None:
        return "failed" if row["failed"] else "–"
    deviation = "" if row["deviation"] is None else f" ± {row['deviation']:.2f}"
    return f"{row['accuracy']:.2f}{deviation}"


def to_csv(results: Mapping[str, Any]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, results["table"][0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(results["table"])
    return out.getvalue()


def to_latex(results: Mapping[str, Any]) -> str:
    """A tabular with booktabs' rules; the best mean is bold."""
    best = max((row["accuracy"] for row in results["table"] if row["accuracy"] is not None), default=None)
    lines = [
        r"\begin{tabular}{lrrr}",
        r"\toprule",
        r"method & accuracy (\%) & CPU seconds & MB received \\",
        r"\midrule",
    ]
    for row in results["table"]:
        words = accuracy_words(row).replace("±", r"$\pm$").replace("–", "--")
        if best is not None and row["accuracy"] == best:
            words = rf"\textbf{{{words}}}"
        name = row["variant"].replace("_", r"\_")
        lines.append(
            rf"{name} & {words} & {_number(row['cpu_seconds'])} & {_number(row['megabytes_received'])} \\"
        )
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _number(value: float | None) -> str:
    return "--" if value is None else f"{value:.0f}"
