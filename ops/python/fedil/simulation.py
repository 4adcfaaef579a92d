"""A federation on this machine, called as a function."""

import difflib
import inspect
import signal
import threading
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

from broker_config.protocol.errors import FedILError
from fedil.recipes import Given, made
from fedil.run import Run
from fedil.words import arguments_instead_of_options
from fedil_model.errors import LearningError, SettingError
from ops.cli.commands.simulate import default_workers
from ops.cli.interruption import interruptible
from ops.inspect.run_place import has_checkpoint
from ops.inspect.summary import Summary
from ops.local.placing import placed
from server_worker.run.recipe import Recipe
from server_worker.watch.events import RoundRecord, Watcher

Callback = Callable[[RoundRecord], object]


class Stop(Exception):
    """Raised by a callback: the run stops as after Ctrl-C, and `simulate` returns it; it can be resumed."""


class _Callbacks(Watcher):
    def __init__(self, callbacks: Iterable[Callback]) -> None:
        super().__init__()
        self._callbacks = tuple(callbacks)
        self.stop = threading.Event()
        self.error: Exception | None = None

    def round_closed(self, record: RoundRecord) -> None:
        """An error leaves the round loop by the way that Ctrl-C takes, so that it costs nothing that was done."""
        try:
            for callback in self._callbacks if self.error is None else ():
                callback(record)
        except Stop:
            self.stop.set()
        except Exception as error:
            self.error = error
            self.stop.set()


def simulate(
    recipe: Given = "digits",
    run_dir: str | Path | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    callbacks: Iterable[Callback] = (),
    workers: int | None = None,
    device: str = "auto",
    progress: bool = True,
    **overrides: Any,
) -> Run:
    """Trains on this machine, and returns the run. What `fedil simulate` does, with the same digests.

    recipe     a built-in name, a .toml file, a dict, or a `fedil.Recipe(...)`
    run_dir    where the run is kept; default: runs/<recipe name>
    resume     go on with the run in run_dir, if there is one; with rounds=N to so many rounds
    overwrite  replace the run in run_dir
    callbacks  each is called with every round's RoundRecord, once it is evaluated, and the run waits for it. One that
               raises `fedil.Stop` ends the run early; any other error does so too and comes out of this function
    workers    processes; default: one per core
    progress   a line per round, or a live table in a terminal and, with ipywidgets, in a notebook
    overrides  settings of the recipe: rounds=10, client__lr=0.1, split={"labelled": 30}

    Ctrl-C (or a notebook's stop button) stops once what is under way is safe and raises KeyboardInterrupt;
    resume=True goes on from there.
    """
    with arguments_instead_of_options():
        _refuse_misspelt_arguments(overrides)
        if resume and overwrite:
            raise SettingError(
                "resume=True goes on with a run and overwrite=True replaces it: give one of them"
            )
        chosen = made(recipe, overrides)
        where = Path(run_dir) if run_dir is not None else Path("runs") / chosen.name
        how = {"resume": resume, "overwrite": overwrite, "more_rounds": "rounds" in overrides}
        with placed(where, chosen, **how) as (chosen, goes_on):
            count = workers or default_workers(chosen)
            _play_or_say_how_to_go_on(chosen, where, goes_on, count, device, progress, callbacks)
    return Run(where, chosen)


def _refuse_misspelt_arguments(overrides: Collection[str]) -> None:
    arguments = set(inspect.signature(simulate).parameters) - {"overrides"}
    for key in overrides:
        near = difflib.get_close_matches(key, arguments | set(Recipe.model_fields), n=1)
        if near and near[0] in arguments:
            raise SettingError(f"unknown argument {key}; did you mean {near[0]}?")


def _play_or_say_how_to_go_on(
    recipe: Recipe,
    where: Path,
    goes_on: bool,
    workers: int,
    device: str,
    progress: bool,
    callbacks: Iterable[Callback],
) -> None:
    try:
        _play(recipe, where, goes_on, workers, device, progress, _Callbacks(callbacks))
    except (KeyboardInterrupt, FedILError, LearningError, OSError) as error:
        if has_checkpoint(where):
            error.add_note(f"what was saved in {where} is intact: the same call with resume=True goes on")
        raise


def _play(
    recipe: Recipe,
    where: Path,
    goes_on: bool,
    workers: int,
    device: str,
    progress: bool,
    called: _Callbacks,
) -> None:
    import torch

    from ops.cli.view import make_view
    from ops.local.simulate import simulate as play

    view = make_view(recipe, where, f"{workers} workers", as_json=False, quiet=not progress)
    threads = torch.get_num_threads()
    with view, interruptible(on_first=view.stopping, signals=(signal.SIGINT,)) as interruption:
        called.stop = interruption.stop
        try:
            summary = play(
                recipe,
                where,
                workers=workers,
                device=device,
                resume=goes_on,
                watcher=Watcher(view, called),
                stop=interruption.stop,
            )
        finally:
            torch.set_num_threads(threads)  # the caller's own: a run sets one, for its digests
    if called.error is not None:
        raise called.error
    if interruption.exit_code and summary.stopped:
        raise KeyboardInterrupt(_stopped(summary))


def _stopped(summary: Summary) -> str:
    return f"stopped after {summary.rounds_done} of {summary.rounds} rounds"
