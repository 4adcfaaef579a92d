"""The strong view of digits (our own choice: no published one was found): one mild affine map, then contrast and
brightness. No flips, and nothing that could turn one digit into another."""

import torch
from torch import Tensor

from fedil_model.data.augment.geometry import AffineMap, warp_bilinear

DEGREES = 15.0
SHEAR = 0.2
SCALE = 0.15
TRANSLATE = 0.15
CONTRAST = (0.5, 1.4)
BRIGHTNESS = (0.6, 1.2)


def random_affine_and_contrast(images_BCHW: Tensor, generator: torch.Generator) -> Tensor:
    """uint8 in, float32 in 0..255 out."""
    num_images, _, height, width = images_BCHW.shape
    draws_8B = torch.rand((8, num_images), generator=generator, device=generator.device)
    affine = _affine_map(draws_8B[:6] * 2 - 1, height, width)
    warped = warp_bilinear(images_BCHW.to(torch.float32), affine.to(images_BCHW.device))
    contrast, brightness = _factors(draws_8B[6:]).to(images_BCHW.device)
    mean_B111 = warped.mean(dim=(1, 2, 3), keepdim=True)
    return warped.sub_(mean_B111).mul_(contrast).add_(mean_B111).mul_(brightness).clamp_(0, 255)


def _affine_map(symmetric_6B: Tensor, height: int, width: int) -> AffineMap:
    """From draws in -1..1: angle, shear in x and in y, scale, translation in x and in y."""
    angle, shear_x, shear_y, scale, translate_x, translate_y = symmetric_6B
    radians = angle * (DEGREES * torch.pi / 180)
    cos, sin = radians.cos() * (1 + SCALE * scale), radians.sin() * (1 + SCALE * scale)
    linear_22B = torch.stack((cos, sin + SHEAR * shear_x, SHEAR * shear_y - sin, cos)).view(2, 2, -1)
    shift_2B = TRANSLATE * torch.stack((translate_x * width, translate_y * height))
    return AffineMap(linear_22B.permute(2, 0, 1), shift_2B.T)


def _factors(uniform_2B: Tensor) -> Tensor:
    low = torch.tensor([[CONTRAST[0]], [BRIGHTNESS[0]]], device=uniform_2B.device)
    high = torch.tensor([[CONTRAST[1]], [BRIGHTNESS[1]]], device=uniform_2B.device)
    return (low + (high - low) * uniform_2B)[:, :, None, None, None]
