"""The files that a study ends in: results.json, table.csv, table.tex, report.html and plots."""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from broker_config.process.durable import write_atomically
from ops.inspect.report.reading import Run
from ops.study.results import gather, runs_of, to_csv, to_latex
from ops.study.runner import Progress, Study


def write_files(
    study: Study, progress: Sequence[Progress], command: str
) -> tuple[dict[str, Any], list[Path]]:
    from broker_config.process.version import software_version

    results = {"command": command, "version": software_version(), **gather(study, progress)}
    texts = {
        "results.json": json.dumps(results, indent=1) + "\n",
        "table.csv": to_csv(results),
        "table.tex": to_latex(results),
    }
    for name, text in texts.items():
        write_atomically(study.folder / name, [text.encode()])
    written = [study.folder / name for name in texts]
    runs = runs_of(study, progress)
    if len(runs) > 1:
        written += _write_report(study.folder, runs)
    return results, written


def _write_report(folder: Path, runs: Sequence[tuple[str, Run]]) -> Iterator[Path]:
    from fedil_model.errors import SettingError
    from ops.inspect.report.drawing import check_installed, write_plots

    try:
        check_installed()
    except SettingError as error:
        print(f"fedil: no report: {error}", file=sys.stderr)
        return
    from ops.inspect.report.comparison import compare
    from ops.inspect.report.comparison_page import comparison_page
    from ops.inspect.report.comparison_plots import comparison_plots

    comparison = compare([run for _, run in runs], [variant for variant, _ in runs])
    page = folder / "report.html"
    write_atomically(page, [comparison_page(comparison).encode("utf-8", "replace")])
    yield page
    written, _ = write_plots(comparison_plots(comparison)[:2], folder / "plots", "png")
    yield from written
