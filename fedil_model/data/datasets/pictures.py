"""Pictures of any size and mode, in the shape that a dataset gives its samples. Whoever trains on pictures, labels
them or holds them without labels reads them here, so that the same file is the same sample to all."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from fedil_model.data.datasets.interface import Dataset
from fedil_model.errors import DataError, SettingError

Shape = tuple[int, int, int]
"""Channels, height, width"""
MODES = {1: "L", 3: "RGB"}


class UnreadablePicture(DataError):
    def __init__(self, file: Path, reason: str) -> None:
        super().__init__(f"cannot read {file} as a picture ({reason}): remove or replace it")
        self.file, self.reason = file, reason


def picture_shape(dataset: Dataset) -> Shape:
    shape = dataset.input_shape
    if len(shape) != 3 or shape[0] not in MODES:
        raise SettingError(
            f"this dataset has samples of {'×'.join(map(str, shape))}: pictures have 1 or 3 channels × height × width"
        )
    channels, height, width = shape
    return channels, height, width


def read_pictures(
    files: Sequence[Path], shape: Shape, on_read: Callable[[int], None] = lambda _: None
) -> np.ndarray:
    """uint8, N×channels×height×width. Only one is in memory in its full size; `on_read` hears how many are done."""
    pictures = np.empty((len(files), *shape), dtype=np.uint8)
    for place, file in enumerate(files):
        pictures[place] = read_picture(file, shape)
        on_read(place + 1)
    return pictures


def read_picture(file: Path, shape: Shape) -> np.ndarray:
    """uint8, channels×height×width."""
    channels, height, width = shape
    try:
        with Image.open(file) as opened:
            upright = ImageOps.exif_transpose(opened)
            picture = _eight_bit(upright).convert(MODES[channels])
    # Pillow's decoders report damage in all of these ways.
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise UnreadablePicture(file, _reason(error)) from error
    resized = picture.resize((width, height), Image.Resampling.BILINEAR)
    return np.array(resized, dtype=np.uint8).reshape(height, width, channels).transpose(2, 0, 1)


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "not an image"
    return (isinstance(error, OSError) and error.strerror) or str(error)


def _eight_bit(picture: Image.Image) -> Image.Image:
    """16-bit and floating-point pictures by their range: Pillow's own conversion cuts them off at 255."""
    if not picture.mode.startswith(("I", "F")):
        return picture
    values = np.asarray(picture, dtype=np.float64)
    full = next((full for full in (1.0, 255.0, 65535.0) if values.max() <= full), values.max())
    return Image.fromarray((values.clip(0) / full * 255).round().astype(np.uint8))
