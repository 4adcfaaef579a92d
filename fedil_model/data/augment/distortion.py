"""Distorted images, of which self-supervised methods compare two: a resized crop, then changed colours, gray, blur and
solarization, each with a probability and parameters of its own for every image. B images."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedil_model.data.augment import colour
from fedil_model.data.augment.geometry import resized_crop

JITTER_PROBABILITY, GRAY_PROBABILITY = 0.8, 0.2
SIGMA = (0.1, 2.0)
SOLARIZE_FROM = 128


@dataclass(frozen=True)
class Distortion:
    min_area: float
    """Least share of the image that a crop keeps"""
    brightness: float
    contrast: float
    saturation: float
    """Factors are drawn from 1 ± this, and are not negative."""
    hue: float
    """Turns are drawn from ± this share of the colour circle."""
    blur_probability: float = 0.0
    solarize_probability: float = 0.0


SIMCLR = Distortion(0.08, 0.8, 0.8, 0.8, 0.2)
"""arXiv 2002.05709, without its blur, as for images of 32×32 pixels"""


def distort(images_BCHW: Tensor, kind: Distortion, flip: bool, generator: torch.Generator) -> Tensor:
    """uint8 in and out. The changes of colour come in one order, and not in a random one: then all images are changed
    together."""
    images, device = resized_crop(images_BCHW, kind.min_area, flip, generator), images_BCHW.device
    draws_9B = torch.rand((9, len(images)), generator=generator, device=generator.device).to(device)
    *jitter_4, applied, gray, blur, sigma, solarize = draws_9B
    # An image that does not draw a change gets the parameter that changes nothing.
    by_4 = [(2 * draw - 1) * (applied < JITTER_PROBABILITY) for draw in jitter_4]
    images = colour.brightness(images, (1 + kind.brightness * by_4[0]).clamp_(min=0))
    images = colour.contrast(images, (1 + kind.contrast * by_4[1]).clamp_(min=0))
    if images.shape[1] == 3:
        images = colour.saturation(images, (1 + kind.saturation * by_4[2]).clamp_(min=0))
        images = colour.hue(images, kind.hue * by_4[3])
        images = colour.saturation(images, gray >= GRAY_PROBABILITY)
    if kind.blur_probability > 0:
        images = colour.blur(
            images, (SIGMA[0] + (SIGMA[1] - SIGMA[0]) * sigma) * (blur < kind.blur_probability)
        )
    if kind.solarize_probability > 0:
        images = colour.solarize(
            images, torch.where(solarize < kind.solarize_probability, SOLARIZE_FROM, 256)
        )
    return images
