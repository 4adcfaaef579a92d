"""Tables without lines, for terminals and pipes."""

from collections.abc import Collection, Iterable
from typing import Any

from rich.table import Table
from rich.text import Text


def plain_table(headings: Iterable[str], left: Collection[str] = (), **more: Any) -> Table:
    """Columns are aligned to the right, except those in `left`."""
    table = Table(**{"box": None, "padding": (0, 2, 0, 0), "pad_edge": False, **more})
    for heading in headings:
        table.add_column(Text(heading), justify="left" if heading in left else "right")
    return table
