"""Datasets by name. Opening one is cheap; its files are read when its samples are asked for."""

from fedil_model.data.datasets.opening import DATASETS, open_dataset

__all__ = ["DATASETS", "open_dataset"]
