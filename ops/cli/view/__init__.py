"""What a person or a machine sees of a run. Every view is a Watcher of the server."""

import os
import sys
from pathlib import Path

from ops.cli.invocation import brief_path
from ops.cli.view.lines import JsonView, PlainView, QuietView
from server_worker.run.folder import RunDir
from server_worker.run.recipe import Recipe

__all__ = ["JsonView", "PlainView", "QuietView", "make_view"]


def make_view(recipe: Recipe, run_dir: Path, where: str, *, as_json: bool, quiet: bool) -> QuietView:
    """`where`: what does the work, such as "2 workers"."""
    if as_json:
        return JsonView(quiet=quiet)
    if quiet:
        return QuietView()
    if not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        return PlainView(recipe)
    from ops.cli.view.live import LiveView

    asked = recipe.federation.expected
    parts = [recipe.name, f"{recipe.split.clients} clients, {asked} a round", where, brief_path(run_dir)]
    return LiveView(recipe, " · ".join(parts), RunDir(run_dir).history)
