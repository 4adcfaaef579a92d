"""Federated methods by the name that a recipe gives them."""

from collections.abc import Callable

import torch

from fedil_model.data.datasets.interface import Dataset, Views
from fedil_model.methods.fedil.method import FedIL
from fedil_model.methods.interface import Method
from fedil_model.settings import Learning

METHODS: dict[str, Callable[[Learning, tuple[int, ...], int, Views, torch.device], Method]] = {
    "fedil": FedIL,
}


def make_method(learning: Learning, dataset: Dataset, device: torch.device) -> Method:
    make = METHODS[learning.method.name]
    return make(learning, dataset.input_shape, len(dataset.class_names), dataset.views, device)
