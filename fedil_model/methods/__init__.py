"""Federated methods: interface.py is the contract, registry.py finds them by name."""

from fedil_model.methods.registry import (
    METHODS,
    find_method,
    make_learning,
    make_method,
    plugins_named,
    settings_class,
    validate,
)

__all__ = [
    "METHODS",
    "find_method",
    "make_learning",
    "make_method",
    "plugins_named",
    "settings_class",
    "validate",
]
