"""A view is a Watcher with a beginning, an end, and an answer to Ctrl-C."""

from typing import Protocol, Self

from ops.inspect.summary import Summary
from server_worker.run.recipe import Recipe
from server_worker.watch.events import Watcher

OUTSIDE_ROUNDS = {
    "load_data": "reading the data",
    "baseline": "server-only training, for comparison",
    "pretrain": "server learns from the labels first",
}
STOPPING = "stopping once what is under way is safe; press Ctrl-C again to stop at once"


class View(Watcher, Protocol):
    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def stopping(self) -> None:
        """The person has asked to stop. Called by a signal handler, in the middle of anything: it must not print
        through buffers that the interrupted code may be filling."""

    def finish(self, summary: Summary, recipe: Recipe, resume_line: str) -> None:
        """The run has ended; `resume_line` is the command that continues a stopped one."""
