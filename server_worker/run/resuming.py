"""Whether a run that was begun may go on with a recipe, and with how many rounds."""

from collections.abc import Iterator
from pathlib import Path

from fedil_model.errors import SettingError
from fedil_model.methods import plugins_named
from server_worker.run.folder import RunDir, read_json
from server_worker.run.recipe import Recipe, make_recipe, numbers_depend_on

OTHERWISE = "Use those, or another --run-dir"


def saved_recipe(where: RunDir, asked: Recipe) -> Recipe | None:
    """The recipe that the run in this folder has; None if there is none. The folder may come from elsewhere: code of
    which the asked recipe does not know is not run."""
    values = read_json(where.recipe)
    if values is None:
        return None
    for name in set(plugins_named(values)) - set(asked.plugins):
        raise SettingError(
            f"{where.recipe} names code that would run here, {name}: name the recipe that the run was started with"
        )
    return make_recipe(values, str(where.recipe))


def refuse_differences(
    run_dir: Path, saved: Recipe, asked: Recipe, remedy: str = OTHERWISE, *, more_rounds: bool = False
) -> None:
    """`more_rounds`: another number of rounds was asked for in so many words."""
    changes = differences(saved, asked)
    if more_rounds:
        changes = [change for change in changes if not change.startswith("rounds ")]
        _refuse_too_few(run_dir, asked.rounds)
    elif asked.rounds > saved.rounds:
        remedy = f"{remedy}; --rounds {asked.rounds} goes on to so many rounds"
    if changes:
        raise SettingError(f"{run_dir} was started with other settings: {'; '.join(changes)}. {remedy}")


def differences(saved: Recipe, asked: Recipe) -> list[str]:
    """Why a saved run cannot go on with this recipe as it is, one phrase per key; empty when it can."""
    before, after = (numbers_depend_on(recipe) | {"rounds": recipe.rounds} for recipe in (saved, asked))
    changed = [key for key in sorted(before | after) if before.get(key) != after.get(key)]
    return [f"{key} was {before.get(key)!r}, is {after.get(key)!r}" for key in changed]


def _refuse_too_few(run_dir: Path, rounds: int) -> None:
    done = rounds_done(run_dir)
    if rounds < done:
        raise SettingError(f"{run_dir} has {done} rounds behind it: it cannot go on to {rounds}")


def rounds_done(run_dir: Path) -> int:
    """By the name of its last checkpoint, which is not read"""
    names = [path.stem for path in RunDir(run_dir).checkpoints.glob("round-*.ckpt")]
    return max((int(name.removeprefix("round-")) for name in names), default=0)


def stretched_schedules(where: RunDir, recipe: Recipe) -> Iterator[str]:
    """One line for each learning rate whose cosine is over other rounds from here on than it was until now. To be
    called before the new recipe is written."""
    values, done = read_json(where.recipe), rounds_done(where.root)
    before = values.get("rounds") if isinstance(values, dict) else None
    if not isinstance(before, int) or before == recipe.rounds or not done:
        return
    from fedil_model.training.optimiser import learning_rate

    for side in ("client", "server"):
        settings = getattr(recipe, side)
        if settings.lr_schedule == "cosine":
            last, following = (
                learning_rate(settings, done, before),
                learning_rate(settings, done + 1, recipe.rounds),
            )
            yield (
                f"{side}.lr follows a cosine over {recipe.rounds} rounds from here on, not over {before}: round {done} "
                f"had {last:.3g}, round {done + 1} has {following:.3g}"
            )
