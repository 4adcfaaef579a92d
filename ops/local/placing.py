"""A run's folder for one simulation at a time: taken, gone on with, or replaced."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from ops.inspect.run_place import is_run, refuse_if_taken, replacing
from server_worker.run.folder import RunDir
from server_worker.run.lock import sole_use
from server_worker.run.recipe import Recipe
from server_worker.run.resuming import refuse_differences, saved_recipe


@contextmanager
def placed(
    run_dir: Path, recipe: Recipe, *, resume: bool, overwrite: bool, more_rounds: bool
) -> Iterator[tuple[Recipe, bool]]:
    """The recipe to simulate with, and whether that goes on with a run. `more_rounds`: as many as the recipe has"""
    with sole_use(run_dir):
        refuse_if_taken(run_dir, resume=resume, overwrite=overwrite)
        goes_on = resume and is_run(run_dir)
        if goes_on:
            recipe = going_on(run_dir, recipe, more_rounds=more_rounds)
        with replacing(run_dir) if overwrite else nullcontext():
            yield recipe, goes_on


def going_on(run_dir: Path, recipe: Recipe, *, more_rounds: bool = False) -> Recipe:
    """The recipe to resume with, if it may: it finds the data where the run did, unless it says where."""
    saved = saved_recipe(RunDir(run_dir), recipe)
    if saved is None:
        return recipe
    remedy = "Use those, or --overwrite, or another --run-dir"
    refuse_differences(run_dir, saved, recipe, remedy, more_rounds=more_rounds)
    if recipe.data.root is not None:
        return recipe
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"root": saved.data.root})})
