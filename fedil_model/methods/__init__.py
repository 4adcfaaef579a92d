"""Federated methods by the name that a recipe gives them, and settings validated by the method's own class.
interface.py is the contract."""

import difflib
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import Field, create_model

from fedil_model.errors import SettingError
from fedil_model.methods.interface import Method, MethodContext, MethodSpec, Tensors
from fedil_model.plugins import is_plugin, load_callable, users_code
from fedil_model.settings import Learning, merge

if TYPE_CHECKING:
    import torch

    from fedil_model.data.datasets.interface import Dataset

METHODS: dict[str, str] = {
    "fedil": "fedil_model.methods.fedil:spec",
    "fedavg_fixmatch": "fedil_model.methods.consistency:fedavg_fixmatch",
    "fedprox_fixmatch": "fedil_model.methods.consistency:fedprox_fixmatch",
    "fedavg_uda": "fedil_model.methods.consistency:fedavg_uda",
    "fedprox_uda": "fedil_model.methods.consistency:fedprox_uda",
    "semifl": "fedil_model.methods.semifl:spec",
    "fedmatch": "fedil_model.methods.fedmatch:spec",
    "fl2": "fedil_model.methods.fl2:spec",
    "rscfed": "fedil_model.methods.rscfed:spec",
    "server_only": "fedil_model.methods.server_only:server_only",
    "supervised": "fedil_model.methods.server_only:supervised",
    "fedu": "fedil_model.methods.fedu:spec",
    "fedema": "fedil_model.methods.fedema:spec",
    "orchestra": "fedil_model.methods.orchestra:spec",
}
"""Name → `module:callable` of its MethodSpec. Imported when a recipe names it, since most of them import torch."""
DEFAULT_METHOD = "fedil"

_L = TypeVar("_L", bound=Learning)


@cache
def find_method(name: str) -> MethodSpec:
    if not is_plugin(name) and name not in METHODS:
        near = difflib.get_close_matches(name, METHODS, n=1)
        hint = (
            f"did you mean {near[0]}?"
            if near
            else f"known: {', '.join(METHODS)}, or your own 'module:callable'"
        )
        raise SettingError(f"method.name: unknown {name!r}; {hint}")
    make = load_callable("method.name", METHODS.get(name, name))
    with users_code("method.name", name):
        spec = make()
    if not isinstance(spec, MethodSpec):
        raise SettingError(f"method.name: {name!r} returned a {type(spec).__name__}, not a MethodSpec")
    return spec


def method_named(values: Mapping[str, Any]) -> str:
    """The method that a recipe's values name; what is no name is left for validation to refuse."""
    table = values.get("method")
    name = table.get("name", DEFAULT_METHOD) if isinstance(table, Mapping) else DEFAULT_METHOD
    return name if isinstance(name, str) else DEFAULT_METHOD


def plugins_named(values: Mapping[str, Any]) -> list[str]:
    """The user's own code that a recipe's values name, in its dataset, network and method."""
    tables = [values.get(key) for key in ("data", "network", "method")]
    names = [table.get("name") for table in tables if isinstance(table, Mapping)]
    return [name for name in names if isinstance(name, str) and is_plugin(name)]


@cache
def settings_class(kind: type[_L], method: str) -> type[_L]:
    """`kind` with the method's own settings and profiles."""
    spec = find_method(method)
    profiles = tuple(spec.profiles)
    fields: dict[str, Any] = {
        "profile": (
            Literal[profiles],
            Field(profiles[0], description=kind.model_fields["profile"].description),
        ),
        "method": (spec.settings, spec.settings(name=method)),
    }
    typed: type[_L] = create_model(kind.__name__, __base__=kind, __module__=kind.__module__, **fields)
    return typed


def validate(kind: type[_L], values: Mapping[str, Any]) -> _L:
    """Raises pydantic's ValidationError, or SettingError for an unknown method. Runs the code of a method that the
    values name as `module:callable`."""
    method = method_named(values)
    spec = find_method(method)
    typed: type[_L] = settings_class(kind, method)
    profile = values.get("profile", next(iter(spec.profiles)))
    filled = spec.profiles.get(profile, {}) if isinstance(profile, str) else {}
    return typed.model_validate(merge(filled, values))


def make_learning(values: Mapping[str, Any]) -> Learning:
    return validate(Learning, values)


def make_method(
    learning: Learning, dataset: "Dataset", device: "torch.device", initial: Tensors | None = None
) -> Method:
    """`initial`: the weights that a run begins with, where they are given"""
    classes = len(dataset.class_names)
    context = MethodContext(learning, dataset.input_shape, classes, dataset.views, device, initial)
    return find_method(learning.method.name).make(context)
