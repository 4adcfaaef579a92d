"""What a person or a machine sees of a run. All of them listen to the server as its Watcher."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ops.cli.invocation import brief_path
from ops.cli.view.interface import View
from ops.cli.view.lines import JsonView, PlainView, QuietView

if TYPE_CHECKING:
    from server_worker.run.recipe import Recipe

__all__ = ["JsonView", "PlainView", "QuietView", "View", "make_view"]


def make_view(recipe: "Recipe", run_dir: Path, where: str, *, as_json: bool, quiet: bool) -> View:
    """`where`: who does the work, such as "2 workers"."""
    if as_json:
        return JsonView(quiet=quiet)
    if quiet:
        return QuietView()
    if not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        return PlainView()
    from ops.cli.view.live import LiveView

    federation = recipe.federation
    buffered = federation.mode == "buffered"
    asked = federation.buffer_size if buffered else federation.clients_per_round + federation.over_select
    parts = [recipe.name, f"{recipe.split.clients} clients, {asked} a round", where]
    return LiveView(" · ".join([*parts, brief_path(run_dir)]), expected=asked)
