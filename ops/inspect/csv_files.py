"""Tables as CSV files."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from broker_config.process.durable import write_atomically


def write_csv(file: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    write_atomically(file, [text.getvalue().encode("utf-8", errors="surrogateescape")])
