"""A user's own network or dataset, named in the recipe as `module:callable`."""

import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from traceback import walk_tb
from typing import Any

from fedil_model.errors import LearningError, SettingError

MODULES_BESIDE_RECIPE = "FEDIL_RECIPE_FOLDER"
"""Environment variable: one more folder with modules of the user's, for this process and those that it starts"""


def nearest(name: str, known: Collection[str]) -> str:
    """What was probably meant, as words for an error"""
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"


def is_plugin(name: str) -> bool:
    return ":" in name


def load_callable(setting: str, path: str) -> Callable[..., Any]:
    """`setting` is the one that named it."""
    module_name, _, callable_name = path.partition(":")
    if not module_name or not callable_name:
        raise SettingError(f"{setting}={path} is not of the form 'module:callable'")
    folder = os.environ.get(MODULES_BESIDE_RECIPE)
    if folder and folder not in sys.path:
        sys.path.append(folder)  # last: a file in it must not replace a module that something else imports
    with users_code(setting, path):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            # Another name is that of something which the user's module imports.
            if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
                raise
            raise SettingError(
                f"{setting}={path}: cannot import {module_name!r} ({error}); put it beside the recipe or where "
                "fedil is started, or its folder on PYTHONPATH"
            ) from error
    found: object = getattr(module, callable_name, None)
    if found is None:
        raise SettingError(f"{setting}={path}: module {module_name!r} has no {callable_name!r}")
    if not callable(found):
        raise SettingError(f"{setting}={path} is a {type(found).__name__}, not a callable")
    return found


@contextmanager
def users_code(setting: str, path: str, call: str = "") -> Iterator[None]:
    """What a user's own code raises in here becomes one line that names the setting, the error and its place. Our own
    code has no such excuse: its errors stay as they are."""
    try:
        yield
    except LearningError:
        raise
    except Exception as error:
        if not is_plugin(path):
            raise
        raise SettingError(": ".join(filter(None, (f"{setting}={path}", call, told(error, path))))) from error


def told(error: Exception, path: str) -> str:
    """`ValueError: what it says (file:line)`, in one line; the place is the innermost one in the user's package."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    said = ": ".join(filter(None, (type(error).__name__, " ".join(text.split()))))
    place = _place(error, path.partition(":")[0].partition(".")[0])
    return f"{said} ({place})" if place else said


def _place(error: Exception, package: str) -> str:
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}"
    places = [
        f"{frame.f_code.co_filename}:{line}"
        for frame, line in walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] == package
    ]
    return places[-1] if places else ""


def call_with_options(setting: str, make: Callable[..., Any], *given: Any, options: dict[str, Any]) -> Any:
    """`make(*given, **options)`; options that do not fit its signature are named before it runs, so that a
    TypeError from inside a user's code stays the user's own."""
    try:
        inspect.signature(make).bind(*given, **options)
    except TypeError as error:
        raise SettingError(f"{setting}: {error} (given: {sorted(options)})") from error
    return make(*given, **options)
