"""Files in, labels out."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn

from broker_config.process.durable import write_atomically
from fedil_model.data.datasets.interface import Dataset
from fedil_model.data.datasets.pictures import UnreadablePicture, picture_shape, read_picture
from fedil_model.training.evaluate import predict_logits

BATCH = 256  # pictures held in memory at a time


@dataclass(frozen=True)
class Prediction:
    file: Path
    label: str
    confidence: float


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
            yield from label(network, dataset, pictures)


def label(network: nn.Module, dataset: Dataset, pictures: dict[Path, Tensor]) -> Iterator[Prediction]:
    logits = predict_logits(network, torch.stack(list(pictures.values())), dataset.views)
    confidences, classes = logits.softmax(dim=1).max(dim=1)
    for file, index, confidence in zip(pictures, classes.tolist(), confidences.tolist(), strict=True):
        yield Prediction(file, dataset.class_names[index], confidence)


def write_csv(file: Path, predictions: Sequence[Prediction]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["file", "label", "confidence"])
    writer.writerows([str(p.file), p.label, f"{p.confidence:.6f}"] for p in predictions)
    write_atomically(file, [text.getvalue().encode("utf-8", errors="surrogateescape")])
