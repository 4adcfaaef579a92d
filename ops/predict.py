"""Files in, labels out: reading pictures of any kind into the shape that the network was trained on."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor, nn

from broker_config.durable import write_atomically
from fedil_model.datasets.interface import Dataset
from fedil_model.errors import SettingError
from fedil_model.evaluate import predict_logits

BATCH = 256  # pictures held in memory at a time
MODES = {1: "L", 3: "RGB"}


@dataclass(frozen=True)
class Prediction:
    file: Path
    label: str
    confidence: float


@dataclass(frozen=True)
class Unreadable:
    file: Path
    reason: str


def predict_files(
    network: nn.Module, dataset: Dataset, files: Sequence[Path]
) -> Iterator[Prediction | Unreadable]:
    shape = picture_shape(dataset)
    remaining = iter(files)
    while batch := list(islice(remaining, BATCH)):
        read = [(file, read_picture(file, shape)) for file in batch]
        yield from (answer for _, answer in read if isinstance(answer, Unreadable))
        pictures = {file: answer for file, answer in read if isinstance(answer, Tensor)}
        if pictures:
            yield from label(network, dataset, pictures)


def picture_shape(dataset: Dataset) -> tuple[int, int, int]:
    shape = dataset.input_shape
    if len(shape) != 3 or shape[0] not in MODES:
        raise SettingError(
            f"predict reads pictures, but this model was trained on samples of {'×'.join(map(str, shape))}"
        )
    channels, height, width = shape
    return channels, height, width


def label(network: nn.Module, dataset: Dataset, pictures: dict[Path, Tensor]) -> Iterator[Prediction]:
    logits = predict_logits(network, torch.stack(list(pictures.values())), dataset.views)
    confidences, classes = logits.softmax(dim=1).max(dim=1)
    for file, index, confidence in zip(pictures, classes.tolist(), confidences.tolist(), strict=True):
        yield Prediction(file, dataset.class_names[index], confidence)


def read_picture(file: Path, shape: tuple[int, int, int]) -> Tensor | Unreadable:
    """uint8, channels×height×width."""
    channels, height, width = shape
    try:
        with Image.open(file) as opened:
            upright = ImageOps.exif_transpose(opened)
            picture = eight_bit(upright).convert(MODES[channels])
    # Pillow's decoders report damage in all of these ways.
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        return Unreadable(file, reason(error))
    resized = picture.resize((width, height), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(resized, dtype=np.uint8)).view(height, width, channels).permute(2, 0, 1)


def reason(error: Exception) -> str:
    return "not an image" if isinstance(error, UnidentifiedImageError) else str(error)


def eight_bit(picture: Image.Image) -> Image.Image:
    """16-bit and floating-point pictures by their range: Pillow's own conversion cuts them off at 255."""
    if not picture.mode.startswith(("I", "F")):
        return picture
    values = np.asarray(picture, dtype=np.float64)
    full = next((full for full in (1.0, 255.0, 65535.0) if values.max() <= full), values.max())
    return Image.fromarray((values.clip(0) / full * 255).round().astype(np.uint8))


def write_csv(file: Path, predictions: Sequence[Prediction]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["file", "label", "confidence"])
    writer.writerows([str(p.file), p.label, f"{p.confidence:.6f}"] for p in predictions)
    write_atomically(file, [text.getvalue().encode("utf-8", errors="surrogateescape")])
