"""What a person or a machine sees of a run. Every view is a Watcher of the server."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

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
    if not _redraws():
        return PlainView(recipe)
    from ops.cli.view.live import LiveView

    asked = recipe.federation.expected
    parts = [recipe.name, f"{recipe.split.clients} clients, {asked} a round", where, brief_path(run_dir)]
    return LiveView(recipe, " · ".join(parts), RunDir(run_dir).history)


def _redraws() -> bool:
    """A terminal does; a notebook does with ipywidgets, which rich uses there."""
    if sys.stdout.isatty():
        return os.environ.get("TERM") != "dumb"
    return "ipykernel" in sys.modules and Console().is_jupyter and find_spec("ipywidgets") is not None
