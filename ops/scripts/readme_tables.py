"""Writes the tables between `<!-- table NAME -->` and `<!-- end -->` from ops/results/NAME.json.

A file of `fedil compare` or `fedil sweep` becomes a row for each variant; one with "rows" is printed as it is.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_BLOCK = re.compile(r"(<!-- table (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(text: str, results: Path) -> str:
    def block(match: re.Match[str]) -> str:
        file = results / f"{match['name']}.json"
        found = json.loads(file.read_text(encoding="utf-8"))
        return f"{match[1]}{_table(found)}\n{match[3]}"

    return _BLOCK.sub(block, text)


def _table(found: Mapping[str, Any]) -> str:
    if "table" in found:
        headings = ["", "accuracy, %", "seeds", "rounds", "CPU seconds", "MB received"]
        return _lines(headings, [_row(row) for row in found["table"]])
    return _lines(found["headings"], found["rows"])


def _row(row: Mapping[str, Any]) -> list[str]:
    deviation = "" if row["deviation"] is None else f" ± {row['deviation']:.2f}"
    accuracy = "failed" if row["accuracy"] is None else f"{row['accuracy']:.2f}{deviation}"
    numbers = (row[key] for key in ("rounds", "cpu_seconds", "megabytes_received"))
    return [
        f"`{row['variant']}`",
        accuracy,
        str(row["seeds"]),
        *("–" if number is None else f"{number:.0f}" for number in numbers),
    ]


def _lines(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def main() -> int:
    root, *options = sys.argv[1:]
    differ = False
    for page in (Path(root) / "README.md", *sorted(Path(root).glob("ops/docs/*.md"))):
        before = page.read_text(encoding="utf-8")
        after = filled(before, Path(root) / "ops" / "results")
        if before == after:
            continue
        if "--check" in options:
            differ = True
            place = page.relative_to(root)
            print(
                f"{place}: tables differ from ops/results; run ./ops/scripts/readme_tables", file=sys.stderr
            )
        else:
            page.write_text(after, encoding="utf-8")
    return int(differ)


if __name__ == "__main__":
    sys.exit(main())
