"""Views of images. B images of C channels and H×W pixels, stored as uint8."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedil_model.data.augment.affine import random_affine_and_contrast
from fedil_model.data.augment.distortion import Distortion, distort
from fedil_model.data.augment.geometry import crop_and_flip, cutout
from fedil_model.data.augment.randaugment import randaugment
from fedil_model.errors import DataError


@dataclass(frozen=True)
class ImageViews:
    """plain: scaled and normalised. weak: a random crop of the padded image, and a flip where allowed.
    strong "randaugment": FixMatch's, on top of weak; "affine": for digits and signs, on the raw image."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    pad: int = 4
    pad_mode: Literal["reflect", "zeros"] = "reflect"
    flip: bool = False
    """Only where a mirrored image keeps its class: never for digits."""
    strong_kind: Literal["randaugment", "affine"] = "randaugment"
    cutout_share: float = 0.5
    """Side of the gray square, as a share of the image's."""

    def plain(self, raw: Tensor) -> Tensor:
        return self._normalised(_checked(raw))

    def weak(self, raw: Tensor, generator: torch.Generator) -> Tensor:
        return self._normalised(self._cropped(_checked(raw), generator))

    def strong(self, raw: Tensor, generator: torch.Generator) -> Tensor:
        if self.strong_kind == "affine":
            images = random_affine_and_contrast(_checked(raw), generator)
        else:
            images = randaugment(self._cropped(_checked(raw), generator), generator)
        return self._normalised(cutout(images, self.cutout_share, generator))

    def distorted(self, raw: Tensor, generator: torch.Generator, distortion: Distortion) -> Tensor:
        """For self-supervised methods. "affine" images have their strong view: a crop turns one digit into another."""
        if self.strong_kind == "affine":
            return self.strong(raw, generator)
        return self._normalised(distort(_checked(raw), distortion, self.flip, generator))

    def _cropped(self, images_BCHW: Tensor, generator: torch.Generator) -> Tensor:
        return crop_and_flip(images_BCHW, self.pad, self.pad_mode, self.flip, generator)

    def _normalised(self, images_BCHW: Tensor) -> Tensor:
        """(x/255 − mean) / std, as one multiplication and one subtraction in place."""
        std = torch.tensor(self.std, device=images_BCHW.device).view(-1, 1, 1)
        mean = torch.tensor(self.mean, device=images_BCHW.device).view(-1, 1, 1)
        return images_BCHW.to(torch.float32).mul_(1 / (255 * std)).sub_(mean / std)


def _checked(raw: Tensor) -> Tensor:
    if raw.dtype != torch.uint8 or raw.dim() != 4:
        raise DataError(
            f"images must be uint8 of shape N×channels×height×width, not {raw.dtype} of {tuple(raw.shape)}"
        )
    return raw
