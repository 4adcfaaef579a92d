"""Samples in, probabilities out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn

from fedil_model.data.datasets.interface import Dataset
from fedil_model.data.datasets.npz import NpzFile
from fedil_model.data.datasets.pictures import UnreadablePicture, picture_shape, read_picture
from fedil_model.training.evaluate import predict_logits
from ops.inspect.other_data import part_of, read_rows
from ops.inspect.picture_files import files_in

BATCH = 256  # pictures held in memory at a time


@dataclass(frozen=True)
class Prediction:
    file: Path
    probabilities: Sequence[float]
    """In the order of the classes"""
    row: int | None = None
    """Of a .csv file as an editor counts, of an .npz file from 0"""

    @property
    def confidence(self) -> float:
        return max(self.probabilities)


def predict(network: nn.Module, dataset: Dataset, source: Path) -> Iterator[Prediction | UnreadablePicture]:
    """`source`: a folder of pictures, a picture, or an .npz or .csv file."""
    if source.suffix == ".npz" and source.is_file():
        images = NpzFile(source).images(part_of(source), picture_shape(dataset))
        return _predict_rows(network, dataset, source, images, range(len(images)))
    if source.suffix == ".csv" and source.is_file():
        rows = read_rows(source, dataset)
        return _predict_rows(network, dataset, source, rows.inputs, rows.lines)
    return predict_files(network, dataset, [source] if source.is_file() else files_in(source))


def predict_files(
    network: nn.Module, dataset: Dataset, files: Sequence[Path]
) -> Iterator[Prediction | UnreadablePicture]:
    shape = picture_shape(dataset)
    remaining = iter(files)
    while batch := list(islice(remaining, BATCH)):
        pictures: dict[Path, Tensor] = {}
        for file in batch:
            try:
                pictures[file] = torch.from_numpy(read_picture(file, shape))
            except UnreadablePicture as error:
                yield error
        if pictures:
            inputs = torch.stack(list(pictures.values()))
            for file, probabilities in zip(pictures, _probabilities(network, dataset, inputs), strict=True):
                yield Prediction(file, probabilities)


def _predict_rows(
    network: nn.Module, dataset: Dataset, file: Path, inputs: Tensor, rows: Sequence[int]
) -> Iterator[Prediction]:
    for row, probabilities in zip(rows, _probabilities(network, dataset, inputs), strict=True):
        yield Prediction(file, probabilities, row)


def _probabilities(network: nn.Module, dataset: Dataset, inputs: Tensor) -> list[list[float]]:
    probabilities: list[list[float]] = predict_logits(network, inputs, dataset.views).softmax(dim=1).tolist()
    return probabilities
