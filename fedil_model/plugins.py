"""A user's own network or dataset, named in the recipe as `module:callable`."""

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from fedil_model.errors import SettingError


def is_plugin(name: str) -> bool:
    return ":" in name


def load_callable(path: str) -> Callable[..., Any]:
    module_name, _, callable_name = path.partition(":")
    if not module_name or not callable_name:
        raise SettingError(f"{path!r} is not of the form 'module:callable'")
    try:
        found: object = getattr(importlib.import_module(module_name), callable_name, None)
    except ImportError as error:
        raise SettingError(
            f"{path!r}: cannot import {module_name!r} ({error}); is its folder on PYTHONPATH?"
        ) from error
    if found is None:
        raise SettingError(f"{path!r}: module {module_name!r} has no {callable_name!r}")
    if not callable(found):
        raise SettingError(f"{path!r} is a {type(found).__name__}, not a callable")
    return found


def call_with_options(setting: str, make: Callable[..., Any], *given: Any, options: dict[str, Any]) -> Any:
    """`make(*given, **options)`; options that do not fit its signature are named before it runs, so that a
    TypeError from inside a user's code stays the user's own."""
    try:
        inspect.signature(make).bind(*given, **options)
    except TypeError as error:
        raise SettingError(f"{setting}: {error} (given: {sorted(options)})") from error
    return make(*given, **options)
